import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)
        self.all = [self.fc.weight, self.fc.bias]

    def forward(self, x):
        return F.linear(x, *self.all).relu_().mul_(0.5)
