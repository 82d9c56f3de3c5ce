"""The least time that this machine needs for a problem's timed cases, to stop a search in time.

The floor is the roofline of rates that were measured here: operations over the fastest GEMM, and
the bytes of inputs and outputs over the bandwidth of the cache level that they fit in. The judge's
own floor (`judge.speed.floor_time_s`) is a quarter of it, since it must never blame a kernel.
"""

from __future__ import annotations

import math
from typing import Final

from ratchet.base.devices.ceilings import Ceilings
from ratchet.judge.problems.problem import Case, Problem

BYTES: Final = {
    "float64": 8,
    "int64": 8,
    "float32": 4,
    "int32": 4,
    "bfloat16": 2,
    "float16": 2,
}
"""Bytes of an element; 1 for every other dtype."""
NEAR: Final = 1.15
"""A kernel that takes at most this many times the floor leaves nothing worth a search."""


def floor_s(problem: Problem, ceilings: Ceilings) -> float | None:
    """Return the geometric mean of the floors of the timed cases in seconds; None if unknown.

    Only inputs are counted for a problem of a file: what it puts out is known only after running
    it, which only the judge may do. That floor is too low, and never stops a search too early.
    """
    floors = [_floor_s(problem, case, ceilings) for case in problem.cases if case.timed]
    if not floors or min(floors) <= 0:
        return None
    return math.exp(math.fsum(map(math.log, floors)) / len(floors))


def _floor_s(problem: Problem, case: Case, ceilings: Ceilings) -> float:
    moved = sum(
        math.prod(spec.shape) * BYTES.get(spec.dtype, 1) * (2 if spec.in_place else 1)
        for spec in case.inputs
        if spec.layout != "broadcast"
    )
    flops = 0.0
    if not problem.text and problem.model is None:
        put_out, flops = _outputs_and_flops(problem, case)
        moved += put_out
    memory_s = moved / ceilings.bandwidth_bytes_per_s(moved)
    return max(memory_s, flops / max(ceilings.gemm_flops_per_s.values()))


def _outputs_and_flops(problem: Problem, case: Case) -> tuple[int, float]:
    """Return bytes of the new outputs and operations of a call, from a run without values."""
    import torch

    from ratchet.judge.problems.inputs import dtype_named
    from ratchet.judge.problems.references import FlopCount

    given = [
        torch.empty(spec.shape, dtype=dtype_named(spec.dtype), device="meta")
        for spec in case.inputs
    ]
    counted = FlopCount()
    try:
        with torch.no_grad(), counted:
            found = problem.load_reference()(*given, case.scalars)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return 0, 0.0  # the reference reads values
    new = found[sum(spec.in_place for spec in case.inputs) :]
    return sum(one.numel() * one.element_size() for one in new), counted.total
