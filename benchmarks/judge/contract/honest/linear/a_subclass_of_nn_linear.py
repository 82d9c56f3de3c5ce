from torch import nn


class Fused(nn.Linear):
    def forward(self, x):
        return super().forward(x).relu() * 0.5


class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = Fused(n, m)

    def forward(self, x):
        return self.fc(x)
