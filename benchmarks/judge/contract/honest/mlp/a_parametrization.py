import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize as P


class Same(nn.Module):
    def forward(self, w):
        return w


class ModelNew(nn.Module):
    def __init__(self, n, hidden):
        super().__init__()
        self.up = nn.Linear(n, hidden)
        self.down = nn.Linear(hidden, n)
        P.register_parametrization(self.up, "weight", Same())

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))
