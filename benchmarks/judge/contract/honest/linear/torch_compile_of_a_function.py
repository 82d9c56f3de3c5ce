import torch
import torch.nn.functional as F
from torch import nn


@torch.compile
def body(x, w, b):
    return torch.relu(F.linear(x, w, b)) * 0.5


class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)

    def forward(self, x):
        return body(x, self.fc.weight, self.fc.bias)
