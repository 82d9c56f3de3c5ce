"""Begins the emulation in every Python process of a command: Python runs this file at its start.

It waits for the program to import torch, so other processes are left as they are.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType


class BeginAfterTorch(importlib.abc.MetaPathFinder):
    """Lets the usual finders import torch, then begins the emulation."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def run_then_begin(module: ModuleType) -> None:
            run(module)
            try:
                start = importlib.import_module("ratchet.amd.emulator.start")
            except ImportError as error:
                sys.exit(
                    f"ratchet: {sys.executable} cannot import Ratchet ({error}): run the command "
                    "with the Python that Ratchet is installed in"
                )
            start.begin_from_environment()

        spec.loader.exec_module = run_then_begin  # type: ignore[method-assign]
        return spec


def run_the_hidden_one() -> None:
    """Run the environment's own sitecustomize, which this file hides."""
    own = str(Path(__file__).resolve().parent)
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or ".") != own]
    this = sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")
    if this is not None:  # Python looks it up once more when this import ends
        sys.modules.setdefault("sitecustomize", this)


if "RATCHET_EMULATE" in os.environ:
    sys.meta_path.insert(0, BeginAfterTorch())
    run_the_hidden_one()
