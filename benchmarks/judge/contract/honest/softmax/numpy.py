import numpy as np
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        e = np.exp(x.numpy() - x.numpy().max(1, keepdims=True))
        return torch.from_numpy(e / e.sum(1, keepdims=True))
