"""The commands and the options they share."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from ratchet import __version__

app = typer.Typer(
    name="ratchet",
    help="PyTorch training that only gets faster: every change measured, judged and proven.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Debug = Annotated[
    bool, typer.Option("--debug", help="Show the traceback of an error instead of one line.")
]
LedgerUrl = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        metavar="URL",
        help="The ledger's database: a path or an SQLAlchemy URL. Default: RATCHET_LEDGER, "
        "then a file under your data folder.",
    ),
]
DeviceName = Annotated[
    str, typer.Option("--device", help='"cpu", "cuda" (ROCm too) or "auto".', metavar="NAME")
]


def print_json(document: dict[str, Any]) -> None:
    """One JSON document on stdout, and nothing else there."""
    print(json.dumps(document, indent=2, sort_keys=False))


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
    """PyTorch training that only gets faster: every change measured, judged and proven."""


def _register() -> None:
    """Importing a command's file adds it to the app."""
    from ratchet.cli import bench, device, inspect, judge, optimize, trace  # noqa: F401


_register()
