import torch
import torch.nn.functional as F
from torch import nn


@torch.library.custom_op("contract::fused", mutates_args=())
def fused(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.linear(x, w, b).relu() * 0.5


class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)

    def forward(self, x):
        return torch.ops.contract.fused(x, self.fc.weight, self.fc.bias)
