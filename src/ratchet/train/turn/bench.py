"""Run `ratchet bench` as a library call: workloads as written, each in its own process."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ratchet.base import address, git
from ratchet.base.devices.gpu_use import warnings_of
from ratchet.base.devices.probe import probe, software
from ratchet.base.ledger import Ledger
from ratchet.base.ledger.books import Observation, ObservationBook
from ratchet.base.ledger.connect import utc_now
from ratchet.base.ledger.schema import Fingerprint
from ratchet.judge.steps.arms import ArmProcess, ArmSpec
from ratchet.train.workloads.names import SIZES, LoadOptions

if TYPE_CHECKING:
    from ratchet.train.workloads.bench import BenchResult
    from ratchet.train.workloads.workload import Workload


class BenchArm:
    calls = ("bench",)

    def __init__(self, workload: Workload, warnings: Sequence[str]) -> None:
        self._workload = workload
        self._warnings = tuple(warnings)

    def step(self, iterations: int) -> None:
        self.bench(iterations)

    def describe(self) -> dict[str, object]:
        return {"name": self._workload.name}

    def bench(self, steps: int) -> dict[str, object]:
        """Time `steps` steps of the workload as written (JSON of a BenchResult)."""
        from ratchet.train.workloads.bench import WARMUP_STEPS, bench

        found = bench(self._workload, self._workload.as_written(), steps)
        warnings, loss = self._warnings, found.loss
        if loss is not None and not math.isfinite(loss):  # JSON has no NaN
            ran = steps + WARMUP_STEPS
            warnings = (*warnings, f"the loss of {found.workload} is {loss} after {ran} steps")
            loss = None
        return asdict(replace(found, warnings=warnings, loss=loss))


def make_bench(*, workload: str, options: LoadOptions) -> BenchArm:
    from ratchet.train.workloads.check import load_checked

    return BenchArm(*load_checked(workload, **options))


FACTORY = address(make_bench)


def bench_all(
    workloads: Sequence[str], *, options: LoadOptions, steps: int, ledger: str | None
) -> list[BenchResult]:
    """Bench the workloads one after the other and record each result in the ledger."""
    from ratchet.train.workloads.bench import BenchResult

    device = probe(options.get("device", "auto"))
    commit, results = git.stamp(Path.cwd()), []
    warnings = warnings_of(device.index) if device.kind == "cuda" else []
    with Ledger.open(ledger) as book:
        fingerprint = book.here(device)
        for workload in workloads or SIZES:
            spec = ArmSpec(
                name=workload,
                factory=FACTORY,
                arguments={"workload": workload, "options": options},
            )
            with ArmProcess(spec) as arm:
                found = msgspec.convert(arm.call("bench", steps=steps), BenchResult)
            result = replace(
                found,
                warnings=(*warnings, *found.warnings),
                versions=asdict(software()),
                commit=commit.revision,
            )
            book.remember("bench", workload, asdict(result), fingerprint=fingerprint)
            figures: list[Figure] = [
                ("step_time_s", "s", result.step_time_s, result.low_s, result.high_s),
                ("first_step_s", "s", result.first_step_s, None, None),
                ("peak_memory_bytes", "B", result.peak_memory_bytes, None, None),
            ]
            name = f"{workload} ({result.device}, {result.precision})"
            ObservationBook(book).record(observed(name, figures, commit, fingerprint))
            results.append(result)
    return results


Figure = tuple[str, str, float, float | None, float | None]
"""A metric's name, unit, value and the ends of its interval, if it has one; less is better."""


def observed(
    benchmark: str, figures: Iterable[Figure], commit: git.CommitStamp, here: Fingerprint
) -> list[Observation]:
    """Return the figures of a bench that `ratchet history` follows over commits."""
    return [
        Observation(
            benchmark=benchmark,
            metric=metric,
            unit=unit,
            better="lower",
            revision=commit.revision,
            committed_at=commit.committed_at or utc_now(),
            value=float(value),
            low=low,
            high=high,
            device=here["device"],
            software=here["software"],
            source="bench",
        )
        for metric, unit, value, low, high in figures
    ]
