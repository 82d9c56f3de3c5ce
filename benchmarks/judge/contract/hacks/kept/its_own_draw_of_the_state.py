import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc = nn.Linear(width, width)
        self.mine = torch.randn(32, width)

    def forward(self, x):
        return torch.tanh(self.fc(x) + self.mine[: x.shape[0]])
