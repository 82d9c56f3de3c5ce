"""The library's own problems with cases for each tier; its kernels answer them. No torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from ratchet.kernels.library.shapes import WorkloadShapes
from ratchet.problems.problem import Case, Problem, Tier

SHAPES: Final[dict[Tier, WorkloadShapes]] = {
    "ci": WorkloadShapes(
        batch=1,
        sequence=64,
        hidden=64,
        intermediate=128,
        heads=4,
        kv_heads=2,
        head_dim=16,
        vocabulary=640,
        parameters=((128, 64), (64,)),
    ),
    "cpu": WorkloadShapes(),
    "gpu": WorkloadShapes(
        batch=4,
        sequence=4096,
        hidden=4096,
        intermediate=14336,
        heads=32,
        kv_heads=8,
        head_dim=128,
        vocabulary=128256,
        parameters=((14336, 4096), (4096, 4096), (4096,)),
    ),
}
"""Sizes of a test, of llama-60m, and of an 8 B model."""


def at_every_tier(
    problems: Callable[[WorkloadShapes], tuple[Problem, ...]],
) -> list[Problem]:
    """Return each problem once: all tiers' timed cases, with the untimed ones as hidden cases."""
    found: dict[str, Problem] = {}
    cases: dict[str, dict[str, Case]] = {}
    for tier, shapes in SHAPES.items():
        for problem in problems(shapes):
            found.setdefault(problem.name, problem)
            own = cases.setdefault(problem.name, {})
            for case in problem.cases:
                if case.timed:
                    name = f"{tier} {case.name}"
                    own[name] = replace(case, name=name, tier=tier)
                elif tier == "ci":
                    own[f"hidden {case.name}"] = replace(
                        case, name=f"hidden {case.name}", hidden=True
                    )
    return [
        replace(problem, cases=tuple(cases[name].values()), task="own", libraries=("matmul",))
        for name, problem in found.items()
    ]
