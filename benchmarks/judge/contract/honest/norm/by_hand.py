import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        var = x.var(-1, unbiased=False, keepdim=True)
        y = (x - mean) * torch.rsqrt(var + self.norm.eps)
        return torch.tanh(y * self.norm.weight + self.norm.bias)
