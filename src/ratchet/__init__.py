"""Ratchet: PyTorch training that only gets faster.

`Workload` is what your own `file.py:function` returns; `optimize` finds a `Recipe` for it and
returns an `Outcome`; `apply` and `compile` put a proven recipe into a training script, and
`trainer_callback` and `lightning_callback` into a Trainer of transformers or of Lightning. `judge`
says whether a `Kernel` is a right and faster answer to a `Problem`. `trace.read` and `trace.report`
say where the time of a profiler trace goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratchet.base import VERSION

if TYPE_CHECKING:
    from ratchet import trace
    from ratchet.base.errors import RatchetError
    from ratchet.judge.court.calls import judge
    from ratchet.judge.kernels.kernel import Kernel
    from ratchet.judge.problems.problem import Case, Problem, TensorSpec
    from ratchet.judge.problems.suites.forms import gradient_of
    from ratchet.judge.problems.tolerance import Tolerance
    from ratchet.judge.verdict import Verdict
    from ratchet.scale.optimize import optimize
    from ratchet.train.recipe import Recipe
    from ratchet.train.recipe.apply import apply, compile, lightning_callback, trainer_callback
    from ratchet.train.turn.loop import Outcome
    from ratchet.train.turn.settings import Settings
    from ratchet.train.workloads.workload import AdamWSpec, Workload

__version__ = VERSION

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
    "AdamWSpec": "ratchet.train.workloads.workload",
    "Case": "ratchet.judge.problems.problem",
    "Kernel": "ratchet.judge.kernels.kernel",
    "Outcome": "ratchet.train.turn.loop",
    "Problem": "ratchet.judge.problems.problem",
    "RatchetError": "ratchet.base.errors",
    "Recipe": "ratchet.train.recipe",
    "Settings": "ratchet.train.turn.settings",
    "TensorSpec": "ratchet.judge.problems.problem",
    "Tolerance": "ratchet.judge.problems.tolerance",
    "Verdict": "ratchet.judge.verdict",
    "Workload": "ratchet.train.workloads.workload",
    "apply": "ratchet.train.recipe.apply",
    "compile": "ratchet.train.recipe.apply",
    "gradient_of": "ratchet.judge.problems.suites.forms",
    "lightning_callback": "ratchet.train.recipe.apply",
    "trainer_callback": "ratchet.train.recipe.apply",
    "optimize": "ratchet.scale.optimize",
    # These are packages; the first can be called.
    "judge": "ratchet.judge",
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
