"""A product of two matrices."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, a, b):
        return a @ b


M = 64 * 2
K = 192
N = 96


def get_inputs():
    return [torch.rand(M, K), torch.rand(K, N)]


def get_init_inputs():
    return []
