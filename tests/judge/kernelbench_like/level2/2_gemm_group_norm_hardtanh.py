"""A linear layer, group normalisation, and a clamp."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, inputs, outputs, groups, low, high):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.norm = nn.GroupNorm(groups, outputs)
        self.clamp = nn.Hardtanh(low, high)

    def forward(self, x):
        return self.clamp(self.norm(self.linear(x)))


batch_size = 32
inputs = 128
outputs = 64
groups = 8


def get_inputs():
    return [torch.rand(batch_size, inputs)]


def get_init_inputs():
    return [inputs, outputs, groups, -2.0, 2.0]
