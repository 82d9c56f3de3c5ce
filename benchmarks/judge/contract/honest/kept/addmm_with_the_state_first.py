import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.h0 = torch.randn(32, width)
        self.fc = nn.Linear(width, width)

    def forward(self, x):
        return torch.tanh(torch.addmm(self.h0 + self.fc.bias, x, self.fc.weight.t()))
