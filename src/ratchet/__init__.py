"""Ratchet: PyTorch training that only gets faster.

`Workload` is what your own `file.py:function` returns; `optimize` finds a `Recipe` for it and
returns an `Outcome`; `apply` and `compile` put a proven recipe into a training script, and
`trainer_callback` and `lightning_callback` into a Trainer of transformers or of Lightning. `judge`
says whether a `Kernel` is a right and faster answer to a `Problem`. `trace.read` and `trace.report`
say where the time of a profiler trace goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ratchet import trace
    from ratchet.api import optimize
    from ratchet.base.errors import RatchetError
    from ratchet.court.calls import judge
    from ratchet.judge.verdict import Verdict
    from ratchet.kernels.kernel import Kernel
    from ratchet.optimize.recipe.apply import apply, compile
    from ratchet.optimize.recipe.loops import lightning_callback, trainer_callback
    from ratchet.optimize.recipe.recipe import Recipe
    from ratchet.optimize.turn.loop import Outcome
    from ratchet.optimize.turn.settings import Settings
    from ratchet.problems.gradients import gradient_of
    from ratchet.problems.problem import Case, Problem, TensorSpec
    from ratchet.problems.tolerance import Tolerance
    from ratchet.workloads.workload import AdamWSpec, Workload

__version__ = "0.1.0"

__all__ = [
    "AdamWSpec",
    "Case",
    "Kernel",
    "Outcome",
    "Problem",
    "RatchetError",
    "Recipe",
    "Settings",
    "TensorSpec",
    "Tolerance",
    "Verdict",
    "Workload",
    "apply",
    "compile",
    "gradient_of",
    "judge",
    "lightning_callback",
    "optimize",
    "trace",
    "trainer_callback",
]

# Imported when first asked for: the sandboxed worker imports ratchet without torch.
_HOMES = {
    "AdamWSpec": "ratchet.workloads.workload",
    "Case": "ratchet.problems.problem",
    "Kernel": "ratchet.kernels.kernel",
    "Outcome": "ratchet.optimize.turn.loop",
    "Problem": "ratchet.problems.problem",
    "RatchetError": "ratchet.base.errors",
    "Recipe": "ratchet.optimize.recipe.recipe",
    "Settings": "ratchet.optimize.turn.settings",
    "TensorSpec": "ratchet.problems.problem",
    "Tolerance": "ratchet.problems.tolerance",
    "Verdict": "ratchet.judge.verdict",
    "Workload": "ratchet.workloads.workload",
    "apply": "ratchet.optimize.recipe.apply",
    "compile": "ratchet.optimize.recipe.apply",
    "gradient_of": "ratchet.problems.gradients",
    "lightning_callback": "ratchet.optimize.recipe.loops",
    "trainer_callback": "ratchet.optimize.recipe.loops",
    # These are packages; those two can be called.
    "judge": "ratchet.judge",
    "optimize": "ratchet.optimize",
    "trace": "ratchet.trace",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ratchet' has no attribute {name!r}")
    import importlib

    module = importlib.import_module(home)
    return module if home == f"{__name__}.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
