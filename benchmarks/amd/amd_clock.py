"""Compare estimates of a kernel's time on AMD GPUs with times that others published.

    python benchmarks/amd/amd_clock.py FOLDER [--draws 1000] [--exam]

FOLDER holds public times with what the emulator counted for each: one file for each space,
`KIND_DEVICE.jsonl` with KIND conv, ded or gemm, and one point a line. A point has `kind`, `target`,
the time `us`, `threads` and `grid` (workgroups), the shape `M`, `N`, `K` of a product, and the
counts of one workgroup: `mn` (instructions) and `lanes` by mnemonic, `bytes`, `touched` (bytes in
lines of 64), `l64`, `ldsb`, `ldsc` (LDS bytes and conflicts). `predicted_s` may be there.

For each space and each estimate of the time, it prints

    error      median of |estimate / time - 1|
    tau        Kendall's rank correlation over the space's points
    within10   share of draws of 20 points, uniform over the space, whose first by the estimate is
               within 10 % of the best of the 20
    shortlist  the same for the best of the first five

An estimate with a scale takes its one factor from the other spaces, so the space itself is in no
fit. The spaces that are kept for an exam, and a third of the products by the hash of their shape,
are left out without --exam. Products are published as winners alone: their tau is over shapes, and
nothing is drawn. The last line is a JSON object.

Sources: whole search spaces of github.com/AutoTuningAssociation/benchmark_hub, and products of
github.com/ROCm/aiter (aiter/configs). Neither's code is here.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import kendalltau

from ratchet.amd.architectures import ARCHITECTURES
from ratchet.amd.emulator.estimates import bound_on, read_told
from ratchet.base.devices import catalogue
from ratchet.base.devices.catalogue import CatalogueDevice, Fact

EXAM = ("ded_W7800", "conv_MI250X")
TOP_US = {"ded_MI250X": 69718.4, "conv_W7800": 1060.2}
"""The published time that 2 % of the whole space stay below. Points up to it were sampled more
often, so draws leave them out: their best is the best of what a uniform draw mostly meets."""
CANDIDATES, SHORTLIST, NEAR = 20, 5, 1.1
DEVICES = {"MI250X": "MI250X", "gfx950": "MI355X", "MI355X": "MI355X"}
W7800 = {"compute_units": "70", "memory_bandwidth": "576", "max_engine_clock": "2.5"}
"""Radeon PRO W7800, in CU, GB/s and GHz: AMD's product page and ROCm's gpu-specs.rst."""
PEAKS = {"conv": "vector_fp32", "ded": "vector_fp32", "gemm": "matrix_bf16"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One published time, and the estimates of it, in seconds."""

    time_s: float
    uniform: bool  # a draw may take it
    bound_s: float
    roofline_s: float
    predicted_s: float | None


def device_of(name: str) -> CatalogueDevice:
    """Return the device of a space's name; the W7800 is a smaller Radeon of the same code."""
    known = catalogue.load()
    if name != "W7800":
        return known[DEVICES[name]]
    radeon = known["RX 7900 XTX"]
    own = {field: replace(radeon.facts[field], value=value) for field, value in W7800.items()}
    peak = radeon.number("peak_dense.vector_fp32") or 0.0
    scaled = f"{peak * 70 / 96:.1f}"
    own["peak_dense.vector_fp32"] = replace(radeon.facts["peak_dense.vector_fp32"], value=scaled)
    facts: dict[str, Fact] = radeon.facts | own
    return CatalogueDevice(name="W7800", facts=facts)


def work(row: Mapping[str, Any]) -> tuple[float, float]:
    """Return the operations of a row's problem, and the bytes that it must move."""
    if row["kind"] == "conv":  # 4096 x 4096 outputs of a filter of 15 x 15, float32
        return 2 * 225 * 4096**2, 4 * (4110**2 + 4096**2)
    if row["kind"] == "ded":  # 2048 measures of 25,000 samples over 1,536 channels of bytes
        return 2 * 2048 * 25000 * 1536, 25650 * 1536 + 4 * 2048 * 25000
    m, n, k = row["M"], row["N"], row["K"]
    return 2 * m * n * k, 2 * (m * k + n * k + m * n)


def bound_s(row: Mapping[str, Any], device: CatalogueDevice) -> float:
    """Return today's bound, from the counts of one workgroup scaled to the grid."""
    grid, lanes = row["grid"], ARCHITECTURES[row["target"]].wavefront_size
    told = {
        "launches": 1,
        "programs": grid,
        "waves": grid * -(-row["threads"] // lanes),
        "by_mnemonic": {name: count * grid for name, count in row["mn"].items()},
        "lanes": sum(row["lanes"].values()) * grid,
        "bytes": row["bytes"] * grid,
        "touched_bytes": int(min(row["touched"] * grid, work(row)[1])),
        "lines_64": row["l64"] * grid,
        "lds_bytes": row["ldsb"] * grid,
        "lds_conflicts": row["ldsc"] * grid,
        "by_place": {},
    }
    found = bound_on(device, row["target"], read_told({"kernel": told}, row["target"]))
    assert found is not None, device.name
    return found.time_s


def is_kept_back(row: Mapping[str, Any]) -> bool:
    """Return whether a product belongs to the third that is left for an exam."""
    if row["kind"] != "gemm":
        return False
    shape = f"{row['M']}x{row['N']}x{row['K']}"
    return int(hashlib.sha256(shape.encode()).hexdigest(), 16) % 3 == 0


def read_space(path: Path, *, exam: bool) -> list[Point]:
    """Return the points of a file."""
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    device = device_of(path.stem.partition("_")[2])
    bandwidth = device.memory_bytes_per_s()
    assert bandwidth is not None
    found = []
    for row in rows:
        if is_kept_back(row) and not exam:
            continue
        operations, moved = work(row)
        peak = device.peak_flops_per_s(PEAKS[row["kind"]])
        assert peak is not None
        found.append(
            Point(
                time_s=row["us"] * 1e-6,
                uniform=row["us"] > TOP_US.get(path.stem, 0.0),
                bound_s=bound_s(row, device),
                roofline_s=max(moved / bandwidth, operations / peak),
                predicted_s=row.get("predicted_s"),
            )
        )
    return found


def estimates_of(
    points: Sequence[Point], others: Sequence[Sequence[Point]]
) -> dict[str, list[float]]:
    """Return each estimate's values; factors are the median over the other spaces' medians."""
    raw = {
        "bound": [one.bound_s for one in points],
        "roofline": [one.roofline_s for one in points],
    }
    if all(one.predicted_s for one in points):
        raw["predicted"] = [one.predicted_s or 0.0 for one in points]
    found = dict(raw)
    for name, values in raw.items():
        factors = [_factor(name, one) for one in others]
        if any(factors):
            known = [math.log(one) for one in factors if one]
            scale = math.exp(statistics.median(known))
            found[f"{name}, scaled"] = [scale * value for value in values]
    return found


def _factor(name: str, points: Sequence[Point]) -> float | None:
    """Return the median of time over an estimate; None where a point has no such estimate."""
    values = [getattr(one, f"{name}_s") for one in points]
    if not values or not all(values):
        return None
    return statistics.median(one.time_s / value for one, value in zip(points, values, strict=True))


def scores(
    points: Sequence[Point], values: Sequence[float] | None, *, draws: int, ranks: bool
) -> dict[str, float | None]:
    """Return how an estimate does on a space; `values` None picks at random."""
    rng = random.Random(0)
    times = [one.time_s for one in points]
    drawn = [at for at, one in enumerate(points) if one.uniform]
    near = listed = 0
    for _ in range(draws if ranks and len(drawn) >= CANDIDATES else 0):
        some = rng.sample(drawn, CANDIDATES)  # in random order, which ties keep
        order = some if values is None else sorted(some, key=lambda at: values[at])
        best = min(times[at] for at in some)
        near += times[order[0]] <= NEAR * best
        listed += min(times[at] for at in order[:SHORTLIST]) <= NEAR * best
    error, tau = None, 0.0
    if values is not None:
        error = statistics.median(
            abs(value / time - 1) for value, time in zip(values, times, strict=True)
        )
        if len(set(values)) > 1:  # one value for all is no order
            tau = float(kendalltau(np.array(values), np.array(times)).statistic)
    has_draws = ranks and len(drawn) >= CANDIDATES
    return {
        "error": error,
        "tau": tau,
        "within10": near / draws if has_draws else None,
        "shortlist": listed / draws if has_draws else None,
    }


def compare(
    spaces: Mapping[str, Sequence[Point]], draws: int
) -> dict[str, dict[str, dict[str, float | None]]]:
    """Return each estimate's scores by space."""
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    for name, points in spaces.items():
        others = [one for other, one in spaces.items() if other != name]
        ranks = not name.startswith("gemm")
        rows = {
            estimate: scores(points, values, draws=draws, ranks=ranks)
            for estimate, values in estimates_of(points, others).items()
        }
        found[name] = rows | {"random": scores(points, None, draws=draws, ranks=ranks)}
    return found


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--exam", action="store_true", help="also what is kept for an exam")
    given = parser.parse_args(words)
    files = [
        one for one in sorted(given.folder.glob("*.jsonl")) if given.exam or one.stem not in EXAM
    ]
    if not files:
        parser.error(f"no KIND_DEVICE.jsonl in {given.folder}: --help says what is in one")
    spaces = {one.stem: read_space(one, exam=given.exam) for one in files}
    found = compare(spaces, given.draws)
    for name, rows in found.items():
        times = [one.time_s * 1e6 for one in spaces[name]]
        print(f"{name}: {len(times)} points, {min(times):.3g} to {max(times):.3g} us")
        print(f"  {'':20}{'error':>8}{'tau':>8}{'within10':>10}{'shortlist':>11}")
        for estimate, row in rows.items():
            error, tau, near, listed = (_cell(value) for value in row.values())
            print(f"  {estimate:20}{error:>8}{tau:>8}{near:>10}{listed:>11}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
