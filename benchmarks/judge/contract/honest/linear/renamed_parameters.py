import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        fc = nn.Linear(n, m)
        self.w, self.b = fc.weight, fc.bias

    def forward(self, x):
        return F.linear(x, self.w, self.b).relu_().mul_(0.5)
