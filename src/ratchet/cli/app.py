"""The typer app, and the options that several commands share."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ratchet import __version__

if TYPE_CHECKING:
    from ratchet.base.show.model import ResultReport

GROUP = "ratchet.commands"
"""Entry points of other packages: modules that add commands to `app` when they are imported."""
app = typer.Typer(
    name="ratchet",
    help="Make PyTorch training faster: every change is measured, judged and proven.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Debug = Annotated[
    bool, typer.Option("--debug", help="Show an error's traceback instead of one line.")
]
LedgerUrl = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        metavar="URL",
        help="Database of the ledger: a path or an SQLAlchemy URL. Default: RATCHET_LEDGER, "
        "then a file in your data folder.",
    ),
]
DeviceName = Annotated[
    str,
    typer.Option(
        "--device", help="Device to use: cpu, cuda (for ROCm too) or auto.", metavar="NAME"
    ),
]


@functools.cache
def commands() -> Any:
    """Return the app as click's command; a process that runs several builds it once."""
    _show_no_type_of_flags()
    return typer.main.get_command(app)


def _show_no_type_of_flags() -> None:
    """Leave out the `<bool>` that newer versions of typer show for an option without a value."""
    option: Any = typer.core.TyperOption
    shown = getattr(option, "display_type_rich", None)
    if shown is not None:
        option.display_type_rich = lambda self, ctx: None if self.is_flag else shown(self, ctx)


def print_json(document: object) -> None:
    """Print one JSON document on stdout, and nothing else."""
    from ratchet.base.serialise import json_text
    from ratchet.cli.streams import document_stream

    print(json_text(document), file=document_stream())


def print_result(report: ResultReport, warnings: Sequence[str] = ()) -> None:
    """Print a command's result for people, and its warnings on stderr."""
    from ratchet.base.show.terminal import print_report

    print_report(report)
    for warning in warnings:
        print(f"ratchet: {warning}", file=sys.stderr)


def print_error(message: str, exit_code: int) -> None:
    """Print the JSON document of a command that ended without its own."""
    print_json({"error": {"message": message, "exit_code": exit_code}})


def _version(value: bool) -> None:
    if value:
        print(f"ratchet {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Make PyTorch training faster: every change is measured, judged and proven."""


def _register() -> None:
    """Add the commands to the app by importing their files; the lab's stand apart in the help."""
    from ratchet.cli import (  # noqa: F401
        bench,
        bisect,
        compare,
        device,
        history,
        judge,
        optimize,
        repro,
        sweep,
        trace,
        watch,
        write,
    )

    commands, groups = list(app.registered_commands), list(app.registered_groups)
    from ratchet.cli import (  # noqa: F401
        debug,
        emulate,
        export,
        inspect,
        knowledge,
        learn,
        memory,
        plan,
        port,
        preflight,
    )

    for other in entry_points(group=GROUP):
        other.load()
    for command in app.registered_commands:
        if command not in commands:
            command.rich_help_panel = "Lab"
    for group in app.registered_groups:
        if group not in groups:
            group.rich_help_panel = "Lab"


_register()
