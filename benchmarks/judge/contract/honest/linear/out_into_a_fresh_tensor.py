import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)

    def forward(self, x):
        out = torch.empty(x.shape[0], self.fc.out_features)
        torch.addmm(self.fc.bias, x, self.fc.weight.t(), out=out)
        return out.relu_().mul_(0.5)
