"""A small model of a script's own, and recipes for it on this machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from ratchet.base.devices.probe import probe, software
from ratchet.base.ledger import Fingerprint, Ledger
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.library import LIBRARY
from ratchet.judge.problems.problem import Problem
from ratchet.judge.revision import revision
from ratchet.judge.terms import Terms, trial_of
from ratchet.judge.verdict import Verdict
from ratchet.train.recipe import Recipe, signature_of
from ratchet.train.recipe.installed import InstalledKernel
from ratchet.train.workloads.config import StepConfig

EAGER = StepConfig(optimizer="kernel", kernels=("rms_norm",))
"""No compilation: what is tested comes before it."""


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, 32)
        self.norm = nn.RMSNorm(32, eps=1e-6)
        self.head = nn.Linear(32, 64)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.embedding(x)))
        return out


def make() -> tuple[Model, torch.optim.AdamW]:
    torch.manual_seed(0)
    model = Model()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    def step(x: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(model(x).view(-1, 64), (x.view(-1) + 1) % 64)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def batch(index: int, rows: int = 4) -> Tensor:
    return torch.randint(64, (rows, 16), generator=torch.Generator().manual_seed(index))


def kernels_of(*libraries: str) -> tuple[InstalledKernel, ...]:
    isa = probe("cpu").target
    return tuple(
        InstalledKernel(library=name, entry=kernel.entry, hash=kernel.hash, isa=isa)
        for name in libraries
        for kernel in LIBRARY[name].kernels(isa)
    )


def recipe(config: StepConfig = EAGER, **changes: Any) -> Recipe:
    here = probe("cpu")
    wanted = (*config.kernels, *(("adamw",) if config.optimizer == "kernel" else ()))
    values: dict[str, Any] = {
        "workload": "train.py:make",
        "device": here.fingerprint,
        "device_name": here.model,
        "software": software().fingerprint,
        "versions": {},
        "config": config,
        "kernels": kernels_of(*wanted),
        "model": signature_of(Model()),
        "optimizer": "AdamW",
        "speedup": {},
        "changes_arithmetic": False,
        "created_at": "2026-01-01T00:00:00+00:00",
    }
    return Recipe(**{**values, **changes}).sealed()


def believe(ledger: str, kernels: tuple[InstalledKernel, ...]) -> None:
    """Make the kernels proven in this ledger."""
    fingerprint = Fingerprint(device=probe("cpu").fingerprint, software=software().fingerprint)
    with Ledger.open(ledger) as opened:
        for kernel in kernels:
            opened.record_verdict(said("proven", kernel.hash, "p"), fingerprint=fingerprint)


def said(status: str, kernel: str, problem: str) -> dict[str, Any]:
    """A verdict as the ledger keeps it."""
    verdict = msgspec.to_builtins(made_up(status, kernel, problem))
    return {**verdict, "trial": trial_of(Terms(), "")}


def made_up(status: Any, kernel: str, problem: str) -> Verdict:
    return Verdict(
        status=status,
        reason=f"this one says {status}",
        isolation="none",
        environment={"judge": revision()},
        kernel_hash=kernel,
        problem_hash=problem,
    )


@dataclass
class MadeUpJudge:
    """Stands in for KernelJudge: answers at once, and keeps what it was asked."""

    right: dict[str, str] = field(default_factory=dict)
    """Entry -> status where nothing is timed; `correct` without one."""
    fast: dict[str, str] = field(default_factory=dict)
    """Entry -> status where the problem is timed; `proven` without one."""
    raises: Exception | None = None
    asked: list[tuple[str, bool]] = field(default_factory=list)

    def __call__(self, *, threads: int | None = None) -> MadeUpJudge:
        return self

    def close(self) -> None: ...

    def judge(self, kernel: Kernel, problem: Problem, **_: object) -> Verdict:
        timed = any(case.timed for case in problem.cases)
        self.asked.append((kernel.entry, timed))
        if self.raises is not None:
            raise self.raises
        status = (
            self.fast.get(kernel.entry, "proven")
            if timed
            else self.right.get(kernel.entry, "correct")
        )
        return made_up(status, kernel.hash, problem.hash)
