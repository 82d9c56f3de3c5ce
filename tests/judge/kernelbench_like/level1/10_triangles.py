"""A product of two upper triangular matrices."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, a, b):
        return torch.triu(a @ b)


N = 96


def get_inputs():
    return [torch.triu(torch.rand(N, N)), torch.triu(torch.rand(N, N))]


def get_init_inputs():
    return []
