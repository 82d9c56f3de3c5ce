import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)
        self.register_buffer("factor", torch.tensor(0.5))

    def forward(self, x):
        return self.fc(x).relu_() * self.factor
