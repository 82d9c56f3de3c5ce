import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)
        self.wt = self.fc.weight.t()

    def forward(self, x):
        return torch.addmm(self.fc.bias, x, self.wt).relu_().mul_(0.5)
