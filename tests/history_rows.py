"""Made-up results over commits."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta

import numpy as np

from ratchet.base.ledger.books import Observation


def revision_of(index: int) -> str:
    return hashlib.sha1(str(index).encode()).hexdigest()


def rows(
    values: list[float] | np.ndarray,
    *,
    benchmark: str = "step",
    metric: str = "time",
    device: str = "machine",
    software: list[str] | str = "torch 2.12",
    unit: str = "s",
) -> list[Observation]:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    return [
        Observation(
            benchmark=benchmark,
            metric=metric,
            unit=unit,
            better="lower",
            revision=revision_of(index),
            committed_at=(start + timedelta(hours=index)).isoformat(timespec="seconds"),
            value=float(value),
            device=device,
            software=software if isinstance(software, str) else software[index],
            source="test",
        )
        for index, value in enumerate(values)
    ]


def noisy(seed: int, *, at: int = 60, factor: float = 1.0, count: int = 100) -> np.ndarray:
    values = 0.1 * (1 + 0.01 * np.random.default_rng(seed).standard_normal(count))
    values[at:] *= factor
    return values
