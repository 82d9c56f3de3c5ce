from torch import nn


class ModelNew(nn.Module):
    def __init__(self, n, hidden):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n, hidden), nn.GELU(), nn.Linear(hidden, n))

    def forward(self, x):
        return x + self.body(x)
