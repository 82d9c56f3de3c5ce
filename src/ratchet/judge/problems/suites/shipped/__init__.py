"""The library's own problems with cases for each tier; its kernels answer them.

A module holds kernels' references and problems. Its `ENTRIES` are one literal: the entries of each
kernel by its name. For each it has `NAME_problems(shapes)`. Nothing else lists a kernel's problems.
Importing this package imports no torch.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Final

from ratchet.judge.problems.problem import Case, Problem, TensorSpec, Tier

DISTRIBUTIONS: Final = ("shifted", "heavy_tailed", "outliers", "zeros", "tiny", "large")
"""Distributions of the small cases; the timed case has `normal`."""

Inputs = Callable[[str, bool], Sequence[TensorSpec]]
"""(distribution, ragged) -> the inputs; ragged sizes fill no vector and no thread evenly."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadShapes:
    """Sizes of a transformer's step; the defaults are llama-60m's."""

    batch: int = 2
    sequence: int = 512
    hidden: int = 512
    intermediate: int = 2048
    heads: int = 8
    kv_heads: int = 8
    head_dim: int = 64
    vocabulary: int = 32000
    dtype: str = "bfloat16"  # Dtype of activations
    weight_dtype: str = "float32"  # Dtype of the small weights (norms) as the op receives them
    parameters: tuple[tuple[int, ...], ...] = ((2048, 512), (512, 2048), (512, 512), (512,))
    """Shapes of typical parameters that the optimizer updates."""

    @property
    def tokens(self) -> int:
        """Number of rows of the activations."""
        return self.batch * self.sequence


def standard_cases(inputs: Inputs, scalars: tuple[float, ...] = ()) -> tuple[Case, ...]:
    """Return the timed case, one small ragged case per distribution, and a hidden one."""
    timed = Case(name="timed", inputs=tuple(inputs("normal", False)), scalars=scalars, timed=True)
    small = tuple(
        Case(name=name, inputs=tuple(inputs(name, True)), scalars=scalars) for name in DISTRIBUTIONS
    )
    hidden = Case(name="hidden", inputs=tuple(inputs("normal", True)), scalars=scalars, hidden=True)
    return (timed, *small, hidden)


def problem_of(module: str, entry: str, cases: Sequence[Case]) -> Problem:
    """Return an entry's problem; its reference is the function of that name in `module`."""
    return Problem(name=entry, reference=f"{module}:{entry}", cases=tuple(cases))


Problems = Callable[[WorkloadShapes], tuple[Problem, ...]]
"""Returns the problems of one library kernel at a workload's sizes."""
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


def _modules() -> list[str]:
    return [one.name for one in pkgutil.iter_modules(__path__)]


@cache
def entries() -> dict[str, tuple[str, ...]]:
    """Return the entries of each library kernel by its name, without importing a module."""
    found: dict[str, tuple[str, ...]] = {}
    for name in _modules():
        text = Path(__path__[0], f"{name}.py").read_text(encoding="utf-8")
        literal = re.search(r"^ENTRIES: Final = (\{.*?\})$", text, re.MULTILINE | re.DOTALL)
        assert literal is not None, f"{name}.py names no entries"
        found |= ast.literal_eval(literal[1])
    return found


def problems() -> tuple[Problem, ...]:
    """Return the problems of every library kernel, at every tier."""
    modules = [importlib.import_module(f"{__name__}.{name}") for name in _modules()]
    return tuple(
        problem
        for module in modules
        for kernel in module.ENTRIES
        for problem in at_every_tier(getattr(module, f"{kernel}_problems"))
    )


def at_every_tier(make: Problems) -> list[Problem]:
    """Return each problem once: all tiers' timed cases, with the untimed ones as hidden cases."""
    found: dict[str, Problem] = {}
    cases: dict[str, dict[str, Case]] = {}
    for tier, shapes in SHAPES.items():
        for problem in make(shapes):
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
