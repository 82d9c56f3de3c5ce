"""All commands: importing a file adds its commands to the app."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

import typer

from ratchet.cli import (  # noqa: F401
    amd,
    compare,
    history,
    judge,
    knowledge,
    learn,
    optimize,
    plan,
    trace,
    write,
)
from ratchet.cli.app import app
from ratchet.cli.outputs import checked

__all__ = ["app", "commands"]

GROUP = "ratchet.commands"
"""Entry points of other packages: modules that add commands to `app` when they are imported."""

for other in entry_points(group=GROUP):
    other.load()


@functools.cache
def commands() -> Any:
    """Return the app as click's command; a process that runs several builds it once."""
    for one in _registered(app):
        one.callback = checked(one.callback)
    option: Any = typer.core.TyperOption
    shown = getattr(option, "display_type_rich", None)
    if shown is not None:  # newer versions of typer show a `<bool>` for an option without a value
        option.display_type_rich = lambda self, ctx: None if self.is_flag else shown(self, ctx)
    root = typer.main.get_command(app)
    # `main` takes --debug out of the words of every command; their help shows it.
    (debug,) = (one for one in root.params if one.name == "debug")
    debug.expose_value = False
    for command in _leaves(root):
        command.params.append(debug)
    return root


def _registered(group: typer.Typer) -> Iterator[Any]:
    yield from group.registered_commands
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from _registered(inner.typer_instance)


def _leaves(command: Any) -> Iterator[Any]:
    if not hasattr(command, "commands"):
        yield command
    for inner in getattr(command, "commands", {}).values():
        yield from _leaves(inner)
