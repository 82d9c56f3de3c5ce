import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, y):
        return (torch.logsumexp(x, 1) - x.gather(1, y[:, None]).squeeze(1)).mean()
