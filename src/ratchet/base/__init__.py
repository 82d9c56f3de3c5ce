"""The ground of every room: errors, files, git, processes, devices, timing, the ledger, reports.

Here: this package's version, folder, files and functions by name; modules that can be called; and
`Json`. Nothing below `ratchet` imports `ratchet` itself, whose public names would tie every file to
every other.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeAlias

NAME: Final = __name__.partition(".")[0]
VERSION: Final = "0.1.0"
FOLDER: Final = Path(__file__).parents[1]


def file_of(module: str) -> Path | None:
    """Return the file of one of this package's modules without running it; None if it has none."""
    if module != NAME and not module.startswith(f"{NAME}."):
        return None
    path = FOLDER.joinpath(*module.split(".")[1:])
    found = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return found if found.is_file() else None


def address(function: Callable[..., object]) -> str:
    """Return `module:function`, by which another process finds a function."""
    return f"{function.__module__}:{function.__qualname__}"


# Importing a submodule binds its name in its package and hides a function of the same name. If a
# module and a public function share a name (`ratchet.judge`, `ratchet.trace.read`), the module is
# therefore callable itself. It works in any order of imports.


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
    return _named(module._called)


def _named(function: str) -> Any:
    home, _, name = function.partition(":")
    return getattr(importlib.import_module(home), name)


def drawn_by(function: str) -> Callable[[Any], str]:
    """Return the `_repr_html_` of a result: what `function` (`module:function`) describes it as.

    A notebook calls it. A result stands below the room that describes it, which is therefore
    imported at the call.
    """

    def _repr_html_(self: Any) -> str:
        drawn: str = _named("ratchet.base.show.page:render_in_notebook")(_named(function)(self))
        return drawn

    return _repr_html_


Json: TypeAlias = Any
"""A value of a JSON document: null, a boolean, a number, a string, a list, or a dict by name.

mypy does not follow a document's shape. A reader that uses more than a few of its fields converts
it to a dataclass or Struct first, and what is not JSON is never annotated with it.
"""
