import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)

    def forward(self, x):
        y = torch.func.functional_call(self.fc, dict(self.fc.named_parameters()), (x,))
        return y.relu_().mul_(0.5)
