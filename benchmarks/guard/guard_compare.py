"""False alarms and power of `ratchet compare`, on real processes and on a simulated machine.

python benchmarks/guard/guard_compare.py [--times 1.0] [--step-ms 100] [--busy 2]
    [--aa 3] [--slower 3]

Real: two arms run a step that computes (numpy, one thread) in processes of their own, while
`--busy` other processes keep the cores busy. Equal arms must not be told apart; an arm that
computes 3 % more must be found slower within the budget. Simulated: the same plan and looks over
the noise model of tests/simulated_machine.py. `--times` scales all counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from simulated_machine import Machine, simulate  # noqa: E402

from ratchet.base.measure.contest import (  # noqa: E402  # noqa: E402
    CompareSettings,
    compare_contest,
    look_confidence,
    make_plan,
)
from ratchet.base.measure.metrics import BASELINE, NEW, TIME, TWIN, Readings, decide  # noqa: E402
from ratchet.guard.compare.workloads import WorkloadContest, WorkloadSide  # noqa: E402
from ratchet.judge.steps.arms import ArmSpec  # noqa: E402

SLOWDOWN = 1.03
SIZE = 96
ARMS = (BASELINE, NEW, TWIN)


class ComputingStep:
    """A step that multiplies small matrices a fixed number of times."""

    calls = ()

    def __init__(self, products: int) -> None:
        self._products = products
        self._matrix = np.random.default_rng(0).standard_normal((SIZE, SIZE)) / SIZE

    def step(self, iterations: int) -> None:
        for _ in range(iterations * self._products):
            self._matrix @ self._matrix

    def describe(self) -> dict[str, Any]:
        return {"peak_memory_bytes": 1, "per_batch": 1, "unit": "products"}


class ComputingSide(WorkloadSide):
    """A side of the comparison that needs no torch."""

    def spec(self, name: str) -> ArmSpec:
        return ArmSpec(
            name=name,
            factory="guard_compare:ComputingStep",
            arguments=dict(self.options),
            environment={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )


def products_for(step_s: float) -> int:
    """Return the number of products that takes about `step_s`."""
    probe = ComputingStep(1)
    probe.step(200)
    began_s = time.perf_counter()
    probe.step(2000)
    return max(100, round(step_s / ((time.perf_counter() - began_s) / 2000)))


def real(count: int, slowdown: float, products: int, budget_s: float) -> list[dict[str, Any]]:
    """Run comparisons one after the other."""
    found = []
    for seed in range(count):
        a = ComputingSide(title="a", workload="", options={"products": products})
        more = round(products * slowdown)
        b = ComputingSide(title="b", workload="", options={"products": more})
        contest = WorkloadContest(a, b, seed=seed)
        outcome = compare_contest(contest, CompareSettings(budget_s=budget_s, seed=seed))
        one = outcome.answers[0] if outcome.answers else None
        found.append(
            {
                "answer": one.answer if one else "undecided",
                "ratio": one.ratio if one else None,
                "low": one.low if one else None,
                "high": one.high if one else None,
                "pairs": one.pairs if one else 0,
                "spent_s": outcome.spent_s,
            }
        )
        print(f"  {slowdown:.2f} {found[-1]}", file=sys.stderr, flush=True)
    return found


def simulated(count: int, slowdown: float, machine: Machine, seed: int) -> list[str]:
    """Return the answers of simulated comparisons at the default plan of a 100 ms step."""
    plan = make_plan(300, setup_s=1.5, round_s=0.3)
    assert plan is not None
    answers = []
    rng = np.random.default_rng(seed)
    for _ in range(count):
        times = simulate(
            rng,
            machine,
            experiments=1,
            launches=plan.launches,
            rounds=plan.rounds,
            speedups=(1.0, 1 / slowdown, 1.0),
        )[0]
        answer = "undecided"
        for look in plan.looks:
            readings = Readings()
            for (arm, launch, index), value in np.ndenumerate(times[:, :look]):
                readings.add(TIME.name, ARMS[arm], launch, index, float(value))
            one = decide(readings, TIME, allowed=0, confidence=look_confidence(1))
            assert one is not None
            answer = one.answer
            if one.settled:
                break
        answers.append(answer)
    return answers


def row(name: str, answers: list[str], wanted: set[str]) -> dict[str, Any]:
    """Count answers; the bounds are Clopper and Pearson's 95 %."""
    hits, count = sum(one in wanted for one in answers), len(answers)
    low = float(stats.beta.ppf(0.025, hits, count - hits + 1)) if hits else 0.0
    high = float(stats.beta.ppf(0.975, hits + 1, count - hits)) if hits < count else 1.0
    return {"case": name, "hits": hits, "of": count, "low": low, "high": high}


def main() -> None:
    """Print a table and a last line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=float, default=1.0)
    parser.add_argument("--step-ms", type=float, default=100.0)
    parser.add_argument("--budget-s", type=float, default=300.0)
    parser.add_argument("--busy", type=int, default=2)
    parser.add_argument("--aa", type=int, default=4)
    parser.add_argument("--slower", type=int, default=4)
    parser.add_argument("--simulated", type=int, default=200)
    words = parser.parse_args()
    wrong, rows = {"faster", "slower"}, []
    runs: dict[str, list[dict[str, Any]]] = {}
    for name, machine in {
        "quiet launches": Machine(launch=0.002),
        "launches differ by 0.5 %": Machine(launch=0.005),
        "and noise of 5 %": Machine(launch=0.005, noise=0.05),
    }.items():
        count = max(1, round(words.simulated * words.times))
        equal = simulated(count, 1.0, machine, 1)
        slower = simulated(max(1, count // 4), SLOWDOWN, machine, 2)
        rows.append(row(f"simulated, {name}: false", equal, wanted=wrong))
        rows.append(row(f"simulated, {name}: 3 % found", slower, wanted={"slower"}))
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: sum(range(10**6))"])
        for _ in range(words.busy)
    ]
    try:
        products = products_for(words.step_ms / 1000)
        for name, count, slowdown, wanted in (
            ("false", words.aa, 1.0, wrong),
            ("3 % found", words.slower, SLOWDOWN, {"slower"}),
        ):
            count = round(count * words.times)
            runs[name] = real(count, slowdown, products, words.budget_s)
            answers = [one["answer"] for one in runs[name]]
            if answers:
                rows.append(row(f"real, {words.busy} busy processes: {name}", answers, wanted))
    finally:
        for process in busy:
            process.kill()
            process.wait()
    print(f"{'case':<52} {'hits':>5} {'of':>5}   95 % interval")
    for one in rows:
        interval = f"{one['low']:.3f} to {one['high']:.3f}"
        print(f"{one['case']:<52} {one['hits']:>5} {one['of']:>5}   {interval}")
    print(json.dumps({"rows": rows, "real": runs, "step_ms": words.step_ms, "busy": words.busy}))


if __name__ == "__main__":
    main()
