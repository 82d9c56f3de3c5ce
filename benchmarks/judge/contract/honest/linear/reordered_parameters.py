import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        fc = nn.Linear(n, m)
        self.bias = nn.Parameter(fc.bias)
        self.w = nn.Parameter(fc.weight)

    def forward(self, x):
        return F.linear(x, self.w, self.bias).relu_().mul_(0.5)
