import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.space = {}

    def forward(self, q, k, v):
        key = (*q.shape[:-1], k.shape[-2])
        if key not in self.space:
            self.space[key] = torch.empty(key)
        s = self.space[key]
        torch.matmul(q, k.transpose(-1, -2), out=s)
        s.mul_(q.shape[-1] ** -0.5)
        return s.softmax(-1) @ v
