"""A transformer block: causal attention and a gated feed-forward, each behind a norm."""

import torch
from torch import nn
from torch.nn import functional


class Model(nn.Module):
    def __init__(self, width, heads, hidden):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.gate, self.up = nn.Linear(width, hidden), nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            one.view(batch, length, self.heads, -1).transpose(1, 2)
            for one in self.qkv(self.first(x)).chunk(3, -1)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        z = self.second(x)
        return x + self.down(functional.silu(self.gate(z)) * self.up(z))


batch_size = 2
length = 128


def get_inputs():
    return [torch.randn(batch_size, length, 256)]


def get_init_inputs():
    return [256, 8, 704]
