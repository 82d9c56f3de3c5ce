"""A GRU with a state in a submodule; two outputs, one nested; it is given None and an int."""

import torch
from torch import nn


class Start(nn.Module):
    def __init__(self, layers, hidden):
        super().__init__()
        self.first = torch.randn(layers, 1, hidden)

    def forward(self, batch):
        return self.first.expand(-1, batch, -1).contiguous()


class Model(nn.Module):
    def __init__(self, width, hidden, layers):
        super().__init__()
        self.start = Start(layers, hidden)
        self.gru = nn.GRU(width, hidden, layers)

    def forward(self, x, h0, last):
        given = self.start(x.size(1)) if h0 is None else h0
        mixed, state = self.gru(x, given)
        return mixed, (state[last], [state.sum(0)])


length = 7
batch_size = 5
width = 12
hidden = 16
layers = 2


def get_inputs():
    return [torch.randn(length, batch_size, width), None, -1]


def get_init_inputs():
    return [width, hidden, layers]
