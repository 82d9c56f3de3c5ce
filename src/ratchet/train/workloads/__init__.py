"""Training jobs: models, data, the step, precision and memory.

Importing this package does not import torch; each public name is imported on first use.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratchet.train.workloads.check import check
    from ratchet.train.workloads.config import StepConfig
    from ratchet.train.workloads.load import load
    from ratchet.train.workloads.names import known
    from ratchet.train.workloads.step import TrainingStep
    from ratchet.train.workloads.workload import AdamWSpec, Workload

__all__ = ["AdamWSpec", "StepConfig", "TrainingStep", "Workload", "check", "known", "load"]

_HOMES = {
    "AdamWSpec": "workload",
    "StepConfig": "config",
    "TrainingStep": "step",
    "Workload": "workload",
    "check": "check",
    "known": "names",
    "load": "load",
}


class _WorkloadsPackage(ModuleType):
    """A package whose `load` and `check` are functions, although modules share these names."""

    def __setattr__(self, name: str, value: object) -> None:
        """Bind a name, but never rebind a function's name to the submodule that holds it."""
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _WorkloadsPackage


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
