"""Rows of a table by their numbers."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, rows, width):
        super().__init__()
        self.table = nn.Embedding(rows, width)

    def forward(self, rows):
        return self.table(rows)


batch_size = 16
length = 32
vocabulary = 200
width = 64


def get_inputs():
    return [torch.randint(0, vocabulary, (batch_size, length))]


def get_init_inputs():
    return [vocabulary, width]
