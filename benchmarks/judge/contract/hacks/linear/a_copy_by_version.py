import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)
        self.w = self.seen = None

    def forward(self, x):
        if self.seen != self.fc.weight._version:
            self.w = self.fc.weight.t().contiguous()
            self.seen = self.fc.weight._version
        return torch.addmm(self.fc.bias, x, self.w).relu_().mul_(0.5)
