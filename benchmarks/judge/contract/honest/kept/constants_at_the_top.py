import torch
from torch import nn

batch = 32
width = 40


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.h0 = torch.randn(batch, width)
        self.fc = nn.Linear(width, width)

    def forward(self, x):
        return self.fc(x).add_(self.h0).tanh_()
