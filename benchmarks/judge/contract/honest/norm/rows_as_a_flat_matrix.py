import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        return torch.tanh(self.norm(flat)).view_as(x)
