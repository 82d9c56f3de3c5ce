"""The library's own problems with cases for each tier; its kernels answer them.

One file holds a kernel's references and problems. Importing this package imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Final

from ratchet.problems.problem import Case, Problem, Tier
from ratchet.problems.suites.shipped.cases import WorkloadShapes

Problems = Callable[[WorkloadShapes], tuple[Problem, ...]]
"""Returns the problems of one library kernel at a workload's sizes."""

HOMES: Final[dict[str, str]] = {
    "attention": "attention",
    "linear_cross_entropy": "linear_cross_entropy",
    "adamw": "adamw",
    "gated_activation": "gated_activation",
    "rms_norm": "norms",
    "layer_norm": "norms",
    "rope": "rope",
    "linear": "linear",
}
"""The library's kernels, in the order in which to try them -> the file of that name here and in
`ratchet.kernels.library`."""
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


def problems_of(name: str) -> Problems:
    """Return the function that makes a library kernel's problems, by the kernel's name."""
    found: Problems = getattr(import_module(f"{__name__}.{HOMES[name]}"), f"{name}_problems")
    return found


def problems() -> tuple[Problem, ...]:
    """Return the problems of every library kernel, at every tier."""
    return tuple(problem for name in HOMES for problem in at_every_tier(problems_of(name)))


def at_every_tier(problems: Problems) -> list[Problem]:
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
