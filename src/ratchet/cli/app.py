"""The typer app, and the options that several commands share."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ratchet.base import VERSION

if TYPE_CHECKING:
    from ratchet.base.show.model import ResultReport

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
        print(f"ratchet {VERSION}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Make PyTorch training faster: every change is measured, judged and proven."""
