import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)
        self.factor = nn.Parameter(torch.tensor(0.5), requires_grad=False)

    def forward(self, x):
        return self.fc(x).relu_() * self.factor
