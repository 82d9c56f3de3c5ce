"""Steps that are not a plain fp32 loss with AdamW, tiny; the arms load them by name."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ratchet.train.workloads.workload import Workload


def batch(index: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(16, 8, generator=torch.Generator().manual_seed(index)).to(dtype)


def loss(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().mean().to(torch.float32)


def workload(model: nn.Module, **fields: Any) -> Workload:
    return Workload(**{"name": "odd", "model": model, "loss": loss, "batch": batch, **fields})


def weight_norm() -> Workload:
    return workload(_two(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))))


def spectral_norm() -> Workload:
    return workload(_two(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))))


def orthogonal() -> Workload:
    return workload(_two(nn.utils.parametrizations.orthogonal(nn.Linear(8, 8))))


def _two(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), layer)


class Recomputed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.inner, x.requires_grad_(), use_reentrant=True)


def reentrant() -> Workload:
    return workload(Recomputed())


class Tables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(32, 8, mode="sum", sparse=True)
        self.top = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Any:
        ids = (x.abs() * 10).long().clamp(max=31)
        return self.top(self.table(ids))


def sparse() -> Workload:
    return workload(Tables(), optimizer=lambda p: torch.optim.SGD(p, lr=0.1))


def sparse_adam() -> Workload:
    optimizers = {
        "tables": lambda model: torch.optim.SparseAdam(list(model.table.parameters())),
        "rest": lambda model: torch.optim.Adam(model.top.parameters()),
    }
    return workload(Tables(), optimizers=optimizers)


def adam_over_sparse() -> Workload:
    return workload(Tables(), optimizer=torch.optim.Adam)


class Spectrum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.filter = nn.Parameter(torch.randn(5, dtype=torch.cfloat))

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(self.inner(x)) * self.filter, n=8)


def complex_filter() -> Workload:
    return workload(Spectrum())


def double() -> Workload:
    return workload(_two(nn.Tanh()).double(), batch=lambda index: batch(index, torch.float64))


def bf16() -> Workload:
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8)).bfloat16()
    return workload(model, batch=lambda index: batch(index, torch.bfloat16))


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Any:
        h = self.inner(x)
        if h.abs().mean().item() > 0.1:
            h = h / 2
        return h[h[:, 0] > -1.0]


def branches() -> Workload:
    return workload(Branches())


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 8, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        return self.lstm(x.view(4, 4, 8))[0]


def lstm() -> Workload:
    return workload(Recurrent())


class Noisy(nn.Module):
    """Batch statistics, dropout and noise."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Any:
        return self.out(F.dropout(self.norm(x) + torch.randn_like(x), 0.5, self.training))


def train_step(model: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    found = loss(model, x)
    found.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
    return found.detach()


def noisy() -> Workload:
    return workload(Noisy(), loss=None, train_step=train_step, optimizer=torch.optim.Adam)


def normed() -> Workload:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8))
    return workload(model, loss=None, train_step=train_step)


def diverging() -> Workload:
    """The loss is infinite from the second step on."""
    return workload(
        nn.Linear(8, 1), loss=lambda m, x: m(x).exp().mean(), optimizer=lambda p: _Leap(p)
    )


class _Leap(torch.optim.SGD):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=1e6)
