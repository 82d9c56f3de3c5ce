"""The library's own problems with cases for each tier; its kernels answer them.

One file holds a kernel's references and problems. Importing this package imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Final

from ratchet.judge.problems.problem import Case, Problem, Tier
from ratchet.judge.problems.suites.shipped.cases import WorkloadShapes

Problems = Callable[[WorkloadShapes], tuple[Problem, ...]]
"""Returns the problems of one library kernel at a workload's sizes."""


@dataclass(frozen=True, slots=True)
class KernelHome:
    """A library kernel's file, here and in `ratchet.judge.kernels.library`, and its entries."""

    file: str
    entries: tuple[str, ...]
    """Names of its problems, which its ops and its sources have too."""


HOMES: Final[dict[str, KernelHome]] = {
    "attention": KernelHome("attention", ("attention_forward", "attention_backward")),
    "linear_cross_entropy": KernelHome(
        "linear_cross_entropy", ("linear_cross_entropy", "cross_entropy_rows")
    ),
    "adamw": KernelHome("adamw", ("gradient_square_sum", "adamw_step")),
    "gated_activation": KernelHome(
        "gated_activation", ("gated_activation_forward", "gated_activation_backward")
    ),
    "rms_norm": KernelHome(
        "norms",
        ("rms_norm_forward", "rms_norm_backward", "add_rms_norm_forward", "add_rms_norm_backward"),
    ),
    "layer_norm": KernelHome(
        "norms",
        (
            *("layer_norm_forward", "layer_norm_backward"),
            *("add_layer_norm_forward", "add_layer_norm_backward"),
        ),
    ),
    "rope": KernelHome("rope", ("rope_forward", "rope_backward")),
    "linear": KernelHome("linear", ("linear_forward", "linear_dgrad", "linear_wgrad")),
}
"""The library's kernels by name, in the order in which to try them."""
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
    found: Problems = getattr(import_module(f"{__name__}.{HOMES[name].file}"), f"{name}_problems")
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
