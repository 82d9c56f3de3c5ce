"""Puts a GPU that is not here before every Python process that finds this file: see pretend.py."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType


class PretendAfterTorch(importlib.abc.MetaPathFinder):
    """Lets the usual finders import torch, then pretends."""

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

        def run_then_pretend(module: ModuleType) -> None:
            run(module)
            importlib.import_module("pretend").begin()

        spec.loader.exec_module = run_then_pretend  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, PretendAfterTorch())
