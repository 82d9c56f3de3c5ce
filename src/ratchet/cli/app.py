"""The typer app, and the options and words that several commands share."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from ratchet.base import VERSION
from ratchet.base.errors import RatchetError

if TYPE_CHECKING:
    from ratchet.base.show.model import ResultReport
    from ratchet.train.workloads.names import LoadOptions


app = typer.Typer(
    name="ratchet",
    help="Make PyTorch training faster: every change is measured, judged and proven.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def option(
    default: Any, words: str, metavar: str | None = None, *, flag: str = "", **more: Any
) -> Any:
    """Return a parameter's default as an option with its help, named `flag` or as the parameter is.

    In an `Annotated` the default is `...`: the parameter has it.
    """
    return typer.Option(default, *filter(None, [flag]), metavar=metavar, help=words, **more)


def argument(words: str, metavar: str | None = None, *, default: Any = ..., **more: Any) -> Any:
    """Return a parameter's default as an argument with its help; without one it must be given."""
    return typer.Argument(default, metavar=metavar, help=words, **more)


AsJson = Annotated[bool, option(..., "Print one JSON document on stdout.", flag="--json")]
LedgerUrl = Annotated[
    str | None,
    option(
        ...,
        "Database of the ledger: a path or an SQLAlchemy URL. Default: RATCHET_LEDGER, "
        "then a file in your data folder.",
        "URL",
    ),
]
DeviceName = Annotated[
    str, option(..., "Device to use: cpu, cuda (for ROCm too) or auto.", "NAME", flag="--device")
]


def print_json(document: object) -> None:
    """Print one JSON document on stdout, and nothing else."""
    from ratchet.base.serialise import json_text
    from ratchet.cli.process import document_stream

    print(json_text(document), file=document_stream(), flush=True)


def print_result(report: ResultReport, warnings: Sequence[str] = ()) -> None:
    """Print a command's result for people, and its warnings on stderr."""
    from ratchet.base.show.terminal import print_report

    print_report(report)
    for warning in warnings:
        print(f"ratchet: {warning}", file=sys.stderr)


def show(
    as_json: bool,
    document: Callable[[], object],
    report: Callable[[], ResultReport],
    warnings: Sequence[str] = (),
) -> None:
    """Print a command's result: its JSON document, or for people its report and warnings."""
    if as_json:
        print_json(document())
    else:
        print_result(report(), warnings)


def print_error(message: str, exit_code: int) -> None:
    """Print the JSON document of a command that ended without its own."""
    print_json({"error": {"message": message, "exit_code": exit_code}})


def _version(value: bool) -> None:
    if value:
        print(f"ratchet {VERSION}")
        raise typer.Exit()


@app.callback()
def _root(
    version: bool = option(
        False, "Print the version.", flag="--version", callback=_version, is_eager=True
    ),
    debug: bool = option(False, "Show an error's traceback instead of one line.", flag="--debug"),
) -> None:
    """Make PyTorch training faster: every change is measured, judged and proven."""


def finite(*, least: float | None, most: float) -> Callable[[str], float]:
    """Return the parser of a float option, which refuses nan and infinity, and keeps its range."""

    def parse(text: str | float) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise typer.BadParameter(f"{text!r} is no finite number: give one such as 0.5")
        if least is not None and value < least:
            raise typer.BadParameter(f"{value:g} is below {least:g}: give {least:g} or more")
        if value > most:
            raise typer.BadParameter(f"{value:g} is above {most:g}: give {most:g} or less")
        return value

    return parse


def seed_option(words: str) -> Any:
    """Return the option of a seed, 0 if not given; one that NumPy or torch refuses is a mistake."""

    def checked(seed: int) -> int:
        from ratchet.train.turn.settings import check_seed

        check_seed(seed)
        return seed

    return option(0, words, callback=checked)


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """Settings of a workload's step: an option for each field (`checked`)."""

    batch_size: Annotated[int | None, option(..., "Sequences (or images) per batch.", min=1)] = None
    sequence: Annotated[int | None, option(..., "Tokens per sequence.", min=2)] = None
    precision: Annotated[
        str | None,
        option(..., "Precision of the step as written: fp32, bf16_autocast, bf16_master."),
    ] = None
    text: Annotated[
        str | None, option(..., "Text to train on. Default: Python's own sources.", "FILE")
    ] = None
    device: DeviceName = "auto"

    def of(self, *workloads: str) -> LoadOptions:
        """Return the options that these workloads are loaded with; RatchetError for a mistake."""
        from ratchet.train.turn.settings import workload_options

        return workload_options(list(workloads), **vars(self))


STEP = " ".join(StepOptions.__dataclass_fields__)
Fleet = Annotated[
    str,
    option(
        ...,
        "Where to judge: on this machine, on the Ray cluster at hand, or on another.",
        "local|ray|ray://HOST:PORT",
    ),
]
ParallelWords = Annotated[
    str | None,
    option(
        ...,
        "Ranks on this machine: dp=2, fsdp=2,tp=2 or pp=2,schedule=zero-bubble. Words: "
        "dp, fsdp, tp, pp, vpp, cp, ep, micro, schedule.",
        "LAYOUT",
    ),
]


def refuse(context: typer.Context, names: str, where: str) -> None:
    """Raise a RatchetError if one of these options was given, for it does nothing `where` it is."""
    for one in context.command.params:
        source: Any = context.get_parameter_source(one.name or "")
        if one.name in names.split() and source is not None and source.name == "COMMANDLINE":
            flag = next((word for word in one.opts if word.startswith("--")), one.name.upper())
            raise RatchetError(f"{flag} does nothing {where}: leave it out")


COMMAND = "ratchet.command"


def after_dashes(usage: str) -> type[TyperCommand]:
    """Return the class of a command that leaves the words after `--` unparsed.

    They are the user's command: `context.meta[COMMAND]` has them, or None without a `--`.
    """

    class AfterDashes(TyperCommand):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            cut = args.index("--") if "--" in args else None
            ctx.meta[COMMAND] = None if cut is None else args[cut + 1 :]
            return super().parse_args(ctx, args[:cut])

        def format_usage(self, ctx: Any, formatter: Any) -> None:
            formatter.write_usage(ctx.command_path, usage)

    return AfterDashes


def group(name: str, words: str) -> typer.Typer:
    """Add a command that has subcommands, and prints its help without one."""
    commands = typer.Typer(help=words)
    app.add_typer(commands, name=name)

    @commands.callback(invoke_without_command=True)
    def alone(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            print(context.get_help())

    return commands


def command_line() -> str:
    """Return the command as a user may paste it."""
    return shlex.join(["ratchet", *sys.argv[1:]])


def listed(names: str) -> tuple[str, ...]:
    """Return the names of an option that separates them by commas."""
    return tuple(filter(None, (one.strip() for one in names.split(","))))


# Arguments and options that `judge` and `inspect` share.

PROBLEM_HELP = "A problem's file (KernelBench's form or ours), or the name of a shipped problem."
EntryName = Annotated[
    str | None,
    option(..., "Function to call. Default: the one named after PROBLEM.", "NAME"),
]
ScaleFactor = Annotated[
    str,
    option(
        ...,
        "Shrink a KernelBench problem to fit this machine, or its emulator, or by a factor.",
        "auto|N",
    ),
]
