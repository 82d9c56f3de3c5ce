"""A convolution, the positive part, and a bias of its own."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels, filters, kernel, bias_shape):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, kernel)
        self.bias = nn.Parameter(torch.randn(bias_shape))

    def forward(self, x):
        return torch.relu(self.conv(x)) + self.bias


batch_size = 8
channels = 3
filters = 16
side = 20


def get_inputs():
    return [torch.rand(batch_size, channels, side, side)]


def get_init_inputs():
    return [channels, filters, 3, (filters, 1, 1)]
