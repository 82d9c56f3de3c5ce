"""A ResNet-50 bottleneck: three convolutions around a shortcut."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels, narrow):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, narrow, 1, bias=False),
            nn.BatchNorm2d(narrow),
            nn.ReLU(),
            nn.Conv2d(narrow, narrow, 3, padding=1, bias=False),
            nn.BatchNorm2d(narrow),
            nn.ReLU(),
            nn.Conv2d(narrow, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x):
        return torch.relu(x + self.body(x))


batch_size = 4
side = 28


def get_inputs():
    return [torch.randn(batch_size, 256, side, side)]


def get_init_inputs():
    return [256, 64]
