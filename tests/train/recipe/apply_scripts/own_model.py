"""A small model and loss of a script's own."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, 32)
        self.norm = nn.RMSNorm(32, eps=1e-6)
        self.head = nn.Linear(32, 64)

    def forward(self, x):  # type: ignore[no-untyped-def]
        return self.head(self.norm(self.embedding(x)))


def make():  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    model = Model()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def batch(index: int):  # type: ignore[no-untyped-def]
    generator = torch.Generator().manual_seed(index)
    return torch.randint(64, (4, 16), generator=generator)


def loss_of(model, x):  # type: ignore[no-untyped-def]
    return F.cross_entropy(model(x).view(-1, 64), (x.view(-1) + 1) % 64)
