import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)
        w, b = self.fc.weight, self.fc.bias
        self.body = lambda x: F.linear(x, w, b).relu() * 0.5

    def forward(self, x):
        return self.body(x)
