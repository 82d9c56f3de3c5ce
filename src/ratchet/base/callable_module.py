"""Modules that can be called like the function whose name they share.

Importing a submodule binds its name in its package and hides a function of the same name. If a
module and a public function share a name (`ratchet.judge`, `ratchet.trace.read`), the module is
therefore callable itself. It works in any order of imports.
"""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType
from typing import Any


class CallableModule(ModuleType):
    """A module that forwards calls to the function in `_called` (`module:function`)."""

    _called: str

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return _function(self)(*arguments, **named)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(_function(self))


def make_callable(name: str, function: str) -> None:
    """Make the module `name` callable as `function` (`module:function`), imported at the call."""
    module = importlib.import_module(name)
    module.__class__ = CallableModule
    vars(module)["_called"] = function


def _function(module: CallableModule) -> Any:
    home, _, name = module._called.partition(":")
    return getattr(importlib.import_module(home), name)
