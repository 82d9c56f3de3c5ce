import torch
from torch import nn

batch = 40
dim = 200


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)


def get_inputs():
    return [torch.randn(batch, dim)]


def get_init_inputs():
    return []
