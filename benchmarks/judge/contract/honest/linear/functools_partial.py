import functools

import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)
        self.body = functools.partial(F.linear, weight=self.fc.weight, bias=self.fc.bias)

    def forward(self, x):
        return self.body(x).relu_().mul_(0.5)
