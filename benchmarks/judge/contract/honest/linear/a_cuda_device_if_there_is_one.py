import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"

    def forward(self, x):
        return self.fc(x.to(self.device)).relu_().mul_(0.5)
