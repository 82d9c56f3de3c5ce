import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)
        self.fast = torch.compile(self.body)

    def forward(self, x):
        return self.fast(x)

    def body(self, x):
        return torch.relu(self.fc(x)) * 0.5
