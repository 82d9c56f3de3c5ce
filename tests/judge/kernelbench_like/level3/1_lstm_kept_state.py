"""An LSTM whose first state is drawn in the constructor and kept as plain attributes."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width, hidden, layers, outputs):
        super().__init__()
        self.h0 = torch.randn((layers, batch_size, hidden))
        self.c0 = torch.randn((layers, batch_size, hidden))
        self.lstm = nn.LSTM(width, hidden, layers, batch_first=True, bidirectional=False)
        self.out = nn.Linear(hidden, outputs)

    def forward(self, x):
        self.h0 = self.h0.to(x.device)
        self.c0 = self.c0.to(x.device)
        mixed, (self.hn, self.cn) = self.lstm(x, (self.h0, self.c0))
        return self.out(mixed[:, -1, :])


batch_size = 6
length = 8
width = 16
hidden = 24
layers = 2
outputs = 5


def get_inputs():
    return [torch.randn(batch_size, length, width)]


def get_init_inputs():
    return [width, hidden, layers, outputs]
