import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels, out):
        super().__init__()
        self.conv = nn.Conv2d(channels, out, 3, padding=1)
        self.bias = nn.Parameter(torch.randn(out, 1, 1))

    def forward(self, x):
        columns = F.unfold(x, 3, padding=1)
        w = self.conv.weight.flatten(1)
        y = (w @ columns + self.conv.bias[:, None]).view(x.shape[0], -1, *x.shape[2:])
        return F.relu(y + self.bias)
