import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, n, hidden):
        super().__init__()
        self.up = nn.Linear(n, hidden)
        self.down = nn.Linear(hidden, n)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


def get_inputs():
    return [torch.randn(24, 64)]


def get_init_inputs():
    return [64, 112]
