"""Change points: false alarms, power, F1, covering and speed, beside the peers that are installed.

    python benchmarks/guard/guard_changepoints.py --series 100

Series of 200 points of five kinds of noise, each of standard deviation 1 (the spikes come on top).
`false`: series without a change that get a point. `power`: series with one step of 1.5 in their
middle half that get a point within 5 of it. `F1` and `covering` are those of van den Burg and
Williams (arXiv 2003.06222; margin 5, the first index counts as found) over series of 0 to 3 steps;
`never report` is the row of a detector that says nothing. The last line is JSON.

Peers: asv's `step_detect`, Otava's defaults (window 30, p < 0.001), PELT of ruptures (rank cost,
penalty 3 log n). An absent one is named. PELT takes 0.2 s a series, so it gets the first 25 of each
kind.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Callable

import numpy as np

from ratchet.guard.history.segments import ChangePointFinder, change_points

LENGTH, STEP, MARGIN = 200, 1.5, 5
MOST_SERIES = {"PELT": 25}
KINDS = ("gaussian", "exponential", "log-t3", "ar1", "spikes")
Detector = Callable[[np.ndarray], list[int]]


def noise(kind: str, rng: np.random.Generator, length: int = LENGTH) -> np.ndarray:
    """Return noise of standard deviation 1."""
    if kind == "exponential":
        return rng.exponential(size=length)
    if kind == "log-t3":
        return rng.standard_t(3, size=length) / math.sqrt(3)
    normal = rng.standard_normal(length + 100)
    if kind == "ar1":
        for at in range(1, len(normal)):
            normal[at] = 0.5 * normal[at - 1] + math.sqrt(0.75) * normal[at]
    found = normal[100:]
    if kind == "spikes":
        found = found + 10 * (rng.random(length) < 0.02)
    return found


def shown(kind: str, values: np.ndarray) -> np.ndarray:
    """Return times, all above 0; log-t3 is noise of the logarithm."""
    return np.exp(values / 5) if kind == "log-t3" else values + 100


def detectors() -> dict[str, Detector]:
    found: dict[str, Detector] = {
        "ratchet": lambda values: [one.index for one in change_points(values)],
        "never report": lambda values: [],
    }
    try:
        from asv.step_detect import detect_steps

        found["asv"] = lambda values: [one[0] for one in detect_steps(values.tolist())][1:]
    except ImportError:
        print("asv is not installed")
    try:
        from otava.analysis import compute_change_points

        found["otava"] = lambda values: [
            one.index for one in compute_change_points(values.tolist(), 30, 0.001, 0.0)[0]
        ]
    except ImportError:
        print("apache-otava is not installed")
    try:
        import ruptures

        found["PELT"] = lambda values: (
            ruptures.Pelt(model="rank", min_size=4, jump=1)
            .fit(values)
            .predict(3 * math.log(len(values)))[:-1]
        )
    except ImportError:
        print("ruptures is not installed")
    return found


def f1(true: list[int], said: list[int]) -> float:
    truth, answers = {0, *true}, {0, *said}
    free, hits = set(answers), 0
    for one in sorted(truth):
        near = [other for other in free if abs(other - one) <= MARGIN]
        if near:
            free.remove(min(near, key=lambda other: abs(other - one)))
            hits += 1
    precision, recall = hits / len(answers), hits / len(truth)
    return 2 * precision * recall / (precision + recall)


def covering(true: list[int], said: list[int]) -> float:
    def parts(cuts: list[int]) -> list[tuple[int, int]]:
        ends = [0, *sorted(cuts), LENGTH]
        return list(itertools.pairwise(ends))

    total = 0.0
    for low, high in parts(true):
        best = max(
            max(0, min(high, b) - max(low, a)) / (max(high, b) - min(low, a))
            for a, b in parts(said)
        )
        total += (high - low) * best
    return total / LENGTH


def with_steps(kind: str, rng: np.random.Generator) -> tuple[np.ndarray, list[int]]:
    """Return a series of 0 to 3 steps, at least 30 points apart."""
    count = int(rng.integers(4))
    while True:
        cuts = sorted(int(one) for one in rng.integers(30, LENGTH - 30, size=count))
        if all(b - a >= 30 for a, b in itertools.pairwise(cuts)):
            break
    values = noise(kind, rng)
    for cut in cuts:
        values[cut:] += rng.choice([-1, 1]) * rng.uniform(1.0, 4.0)
    return shown(kind, values), cuts


def speed() -> dict[str, float]:
    """Return the CPU time of a million points, and of appending one to them."""
    values = np.random.default_rng(0).standard_normal(1_000_000)
    values[300_000:] += 1
    finder = ChangePointFinder()
    started = time.process_time(), time.perf_counter()
    finder.append(values)
    found = [one.index for one in finder.points()]
    took = time.process_time() - started[0], time.perf_counter() - started[1]
    started_s = time.process_time()
    finder.append(np.zeros(1))
    finder.points()
    appended_s = time.process_time() - started_s
    print(
        f"1,000,000 points: {took[0]:.2f} s of CPU, {took[1]:.2f} s; one more: {appended_s:.3f} s"
    )
    assert any(abs(one - 300_000) < 20 for one in found), found
    return {"million_cpu_s": took[0], "million_wall_s": took[1], "append_cpu_s": appended_s}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--speed-only", action="store_true")
    asked = parser.parse_args()
    rows = []
    if asked.speed_only:
        print(json.dumps(speed()))
        return
    print(f"{'detector':14} {'noise':12} {'false':>6} {'power':>6} {'F1':>6} {'covering':>8}   ms")
    for name, detect in detectors().items():
        count = min(asked.series, MOST_SERIES.get(name, asked.series))
        for place, kind in enumerate(KINDS):
            rng = np.random.default_rng([asked.seed, place])
            false = power = 0
            scores = []
            started_s = time.process_time()
            for _ in range(count):
                false += bool(detect(shown(kind, noise(kind, rng))))
                at = int(rng.integers(LENGTH // 4, 3 * LENGTH // 4))
                values = noise(kind, rng)
                values[at:] += STEP
                power += any(abs(one - at) <= MARGIN for one in detect(shown(kind, values)))
                series, cuts = with_steps(kind, rng)
                said = [int(one) for one in detect(series)]
                scores.append((f1(cuts, said), covering(cuts, said)))
            mean_f1, mean_covering = (float(one) for one in np.mean(scores, axis=0))
            each_ms = (time.process_time() - started_s) / count / 3 * 1e3
            row = {"series": count, "false": false / count, "power": power / count}
            row |= {"f1": mean_f1, "covering": mean_covering, "ms": each_ms}
            rows.append({"detector": name, "noise": kind, **row})
            print(
                f"{name:14} {kind:12} {row['false']:6.3f} {row['power']:6.3f} {mean_f1:6.3f} "
                f"{mean_covering:8.3f} {each_ms:4.1f}",
                flush=True,
            )
    found = speed()
    print(json.dumps({"series": asked.series, "seed": asked.seed, "rows": rows, **found}))


if __name__ == "__main__":
    main()
