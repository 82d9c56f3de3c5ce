import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)
        self.w = self.fc.weight.detach()

    def forward(self, x):
        return F.linear(x, self.w, self.fc.bias).relu_().mul_(0.5)
