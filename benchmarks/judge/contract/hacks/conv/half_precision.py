import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels, out):
        super().__init__()
        self.conv = nn.Conv2d(channels, out, 3, padding=1)
        self.bias = nn.Parameter(torch.randn(out, 1, 1))

    def forward(self, x):
        y = F.conv2d(x.half(), self.conv.weight.half(), self.conv.bias.half(), padding=1)
        return F.relu(y.float() + self.bias)
