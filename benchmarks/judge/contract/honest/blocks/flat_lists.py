import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.fcs = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x):
        for norm, fc in zip(self.norms, self.fcs, strict=True):
            x = x + F.silu(fc(norm(x)))
        return x
