from torch import nn


class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)
        self.body = None

    def forward(self, x):
        if self.body is None:
            self.body = nn.Sequential(self.fc, nn.ReLU())
        return self.body(x) * 0.5
