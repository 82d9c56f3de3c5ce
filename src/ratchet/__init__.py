"""Ratchet: PyTorch training that only gets faster.

`Workload` is what your own `file.py:function` returns; `apply` and `compile` put a proven recipe
into a training script; `optimize` finds one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ratchet.errors import RatchetError
    from ratchet.optimize.apply import apply, compile
    from ratchet.optimize.loop import optimize
    from ratchet.optimize.settings import Settings
    from ratchet.workloads.workload import AdamWSpec, Workload

__version__ = "0.1.0"

__all__ = [
    "AdamWSpec",
    "RatchetError",
    "Settings",
    "Workload",
    "apply",
    "compile",
    "optimize",
]

# Imported when first asked for: the sandboxed worker imports ratchet without torch.
_HOMES = {
    "AdamWSpec": "ratchet.workloads.workload",
    "RatchetError": "ratchet.errors",
    "Settings": "ratchet.optimize.settings",
    "Workload": "ratchet.workloads.workload",
    "apply": "ratchet.optimize.apply",
    "compile": "ratchet.optimize.apply",
    "optimize": "ratchet.optimize.loop",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ratchet' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
