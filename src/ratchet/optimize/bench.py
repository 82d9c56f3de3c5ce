"""Run `ratchet bench` as a library call: workloads as written, each in its own process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ratchet.devices.fingerprint import software
from ratchet.devices.probe import probe
from ratchet.judge.steps.arms import ArmProcess, ArmSpec
from ratchet.ledger import Ledger

FACTORY = "ratchet.optimize.bench:make_bench"
MIDDLE_SIZES = ("llama-60m", "gpt2", "moe", "bert", "vit")


class BenchArm:
    """A workload to bench in this process."""

    calls = ("bench",)

    def __init__(self, workload: Any, warnings: Sequence[str]) -> None:
        self._workload = workload
        self._warnings = list(warnings)

    def step(self, iterations: int) -> None:
        self.bench(iterations)

    def describe(self) -> dict[str, Any]:
        return {"name": self._workload.name}

    def bench(self, steps: int) -> dict[str, Any]:
        """Time `steps` steps of the workload as written (JSON of a BenchResult)."""
        from ratchet.workloads.bench import bench

        found = bench(self._workload, self._workload.as_written(), steps)
        return {**asdict(found), "warnings": self._warnings}


def make_bench(*, workload: str, options: dict[str, Any]) -> BenchArm:
    """Build the workload in this process."""
    from ratchet.workloads import check, load

    built = load(workload, **options)
    return BenchArm(built, check(built))


def bench_all(
    workloads: Sequence[str], *, options: dict[str, Any], steps: int, ledger: str | None
) -> list[dict[str, Any]]:
    """Bench the workloads one after the other and record each result in the ledger."""
    device = probe(str(options.get("device", "auto")))
    results = []
    with Ledger.open(ledger) as book:
        fingerprint = book.here(device)
        for workload in workloads or MIDDLE_SIZES:
            spec = ArmSpec(
                name=workload,
                factory=FACTORY,
                arguments={"workload": workload, "options": options},
            )
            with ArmProcess(spec) as arm:
                result: dict[str, Any] = arm.call("bench", steps=steps)
            result["versions"] = asdict(software())
            book.remember("bench", workload, result, fingerprint=fingerprint)
            results.append(result)
    return results
