from __future__ import annotations

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Tiles:
    rows: int = 64
    factor: float = 0.5


class ModelNew(nn.Module):
    def __init__(self, n, m):
        super().__init__()
        self.fc = nn.Linear(n, m)
        self.tiles = Tiles()

    def forward(self, x):
        return self.fc(x).relu_() * self.tiles.factor
