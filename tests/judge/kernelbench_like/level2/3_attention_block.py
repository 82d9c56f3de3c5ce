"""Causal self-attention with a mask in a buffer, and dropout."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width, heads, length, dropout):
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)
        self.register_buffer("mask", torch.tril(torch.ones(length, length)))

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.project(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5
        scores = scores.masked_fill(self.mask[:length, :length] == 0, float("-inf"))
        mixed = torch.softmax(scores, dim=-1) @ v
        joined = mixed.transpose(1, 2).reshape(batch, length, width)
        return self.drop(self.out(joined))


batch_size = 4
length = 32
width = 64
heads = 4


def get_inputs():
    return [torch.randn(batch_size, length, width)]


def get_init_inputs():
    return [width, heads, length, 0.1]
