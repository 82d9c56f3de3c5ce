import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        var, mean = torch.var_mean(x, (0, 2, 3), unbiased=False, keepdim=True)
        y = (x - mean) / torch.sqrt(var + 1e-5)
        y = y * self.weight[:, None, None] + self.bias[:, None, None]
        return torch.where(y > 0, y, 0.1 * y)
