import torch
import torch.nn.functional as F
from torch import nn


class Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, b):
        y = F.linear(x, w, b).relu()
        ctx.save_for_backward(x, w, y)
        return y * 0.5

    @staticmethod
    def backward(ctx, g):
        x, w, y = ctx.saved_tensors
        g = g * 0.5 * (y > 0)
        return g @ w, g.t() @ x, g.sum(0)


class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)

    def forward(self, x):
        return Fused.apply(x, self.fc.weight, self.fc.bias)
