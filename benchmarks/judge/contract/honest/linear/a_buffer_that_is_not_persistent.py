import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)
        self.register_buffer("factor", torch.full((1,), 0.5), persistent=False)

    def forward(self, x):
        return self.fc(x).relu_() * self.factor
