"""Layer normalisation with scale and shift."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.norm = nn.LayerNorm(shape)

    def forward(self, x):
        return self.norm(x)


batch_size = 16
features = 256


def get_inputs():
    return [torch.rand(batch_size, 8, features)]


def get_init_inputs():
    return [(features,)]
