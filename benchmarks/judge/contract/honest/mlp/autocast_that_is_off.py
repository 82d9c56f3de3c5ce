import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, n, hidden):
        super().__init__()
        self.up = nn.Linear(n, hidden)
        self.down = nn.Linear(hidden, n)

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return x + self.down(F.gelu(self.up(x)))
