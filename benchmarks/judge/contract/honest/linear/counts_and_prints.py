from torch import nn


class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls < 3:
            print("call", self.calls)
        return self.fc(x).relu_().mul_(0.5)
