"""One training step of every model type of a library: as written, compiled, and with kernels."""

from __future__ import annotations

import difflib
import hashlib
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import msgspec
from rich.console import Console
from rich.progress import BarColumn

from ratchet.base import VERSION, files
from ratchet.base.errors import GuardError
from ratchet.base.process import families, watchdog
from ratchet.base.serialise import document_of
from ratchet.base.show import model as m
from ratchet.base.show.terminal import MovingLine
from ratchet.guard.repro import RATCHET, SCRIPT, Reported, quoted, write_finding
from ratchet.guard.repro.scripts import SWEEP_SCRIPT
from ratchet.train.workloads.hf_config import trained_types

Status = Literal["works", "falls back", "differs", "fails", "does not train as written"]
"""`works`: every arm trains to the losses of the step as written, in whole graphs with all levers.

`falls back`: it trains to these losses, and a part of the step runs as torch has it: a graph break,
a call site that a kernel declined, or a lever that was left out. `differs`: it trains to other
losses. `fails`: no arm of Ratchet's trains. `does not train as written`: the eager step fails, so
there is nothing to compare with.
"""
TRAINS: tuple[Status, ...] = ("works", "falls back")
STATUSES: tuple[Status, ...] = (*TRAINS, "differs", "fails", "does not train as written")


class ArmRun(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run the step, in one process, from the same weights."""

    losses: tuple[float, ...] = ()
    gradient_error: float | None = None
    """Norm of the first gradient's difference from its reference, over the reference's norm."""
    error: str = ""  # The exception's name and first line, if the arm raised
    time_s: float = 0.0  # Compiling included


class TypeRow(msgspec.Struct, frozen=True, kw_only=True):
    """The answer for one model type, with its evidence."""

    type: str
    status: Status
    why: str = ""  # The op and the reason, or the error; empty if it works
    head: str = ""  # The objective, by the name of transformers' auto class
    model: str = ""  # The class of the model
    inputs: tuple[str, ...] = ()
    breaks: int = 0  # Graph breaks of the compiled step
    break_reasons: tuple[str, ...] = ()
    installed: dict[str, int] = {}  # Call sites that a kernel took, by pattern
    declined: dict[str, int] = {}  # Call sites that no kernel took, by `pattern: reason`
    runs: dict[str, ArmRun] = {}  # By arm: see `ratchet.guard.sweep.trial.ARMS`
    arm: str = ""
    """The first arm that does not train, or trains differently; empty if there is none."""
    doing: str = ""  # The arm in progress when the process ended; empty in a finished row
    quick: bool = False  # Inductor called ATen for every op, so none of its generated code ran
    versions: str = ""
    time_s: float = 0.0

    @property
    def trains(self) -> bool:
        """Return True if it trains with Ratchet, with the losses of the step as written."""
        return self.status in TRAINS


class SweepRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the program that tries types."""

    types: tuple[str, ...]
    device: str
    budget_s: float | None  # No type is started after this
    limit_s: float  # For one type
    memory_bytes: int
    quick: bool
    versions: str


# Try every model type of transformers, continue where the last run ended, and report the rows.

ROWS, REPRODUCTIONS = "rows.jsonl", "repro"
LEAST_SHARE = 0.95  # Least share of the types that train as written that must train with Ratchet
MEMORY_BYTES = 8 << 30  # Memory of one type's process
PROGRAM = "ratchet.guard.sweep.trial"
SETTINGS = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "HF_HUB_OFFLINE": "1"}
"""Variables of the program: no pool of compilers, so that a fork finds no thread; no network."""
STDERR_TAIL = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepSettings:
    """The types to try, and the place of their rows."""

    out: Path
    types: tuple[str, ...] = ()
    """Tried again even if `out` holds their rows; all types that it does not hold if empty."""
    sample: int | None = None
    budget_s: float = math.inf  # No type is started after this
    limit_s: float = 600.0  # For one type, with all its arms
    quick: bool = False
    """Let Inductor call ATen for every op: graphs, kernels and gradients are as ever."""
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepResult:
    """The rows of a sweep, new ones and those that were kept."""

    rows: tuple[TypeRow, ...]
    left_out: tuple[str, ...]  # Types for which the budget was too short
    versions: str
    out: Path
    quick: bool
    device: str

    @property
    def share(self) -> float | None:
        written = [row for row in self.rows if row.status != "does not train as written"]
        return sum(row.trains for row in written) / len(written) if written else None

    @property
    def passed(self) -> bool:
        """Return True if enough of the types that train as written train with Ratchet."""
        return self.share is None or self.share >= LEAST_SHARE

    @property
    def counts(self) -> dict[Status, int]:
        found = Counter(row.status for row in self.rows)
        return {status: found[status] for status in STATUSES}

    def as_json(self) -> dict[str, object]:
        return {
            "versions": self.versions,
            "device": self.device,
            "quick": self.quick,
            "out": str(self.out),
            "counts": self.counts,
            "share": self.share,
            "least_share": LEAST_SHARE,
            "left_out": list(self.left_out),
            "rows": [document_of(row) for row in self.rows],
        }


def sweep(settings: SweepSettings, tell: Callable[[TypeRow, int], None]) -> SweepResult:
    """Try the types that have no row yet; `tell` gets each new row and how many are left.

    GuardError for an unknown type, FileError if `out` cannot be written.
    """
    known = list(trained_types())
    asked = _asked(settings, known)
    files.make_folder(settings.out)
    found = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "transformers"))
    versions = f"{found}, torch-ratchet {VERSION}"
    kept = _kept(settings, versions)
    again = set(settings.types)
    left = [name for name in asked if name in again or name not in kept]
    with (settings.out / ROWS).open("ab") as file:
        for row in _tried(left, settings, versions):
            left.remove(row.type)
            file.write(msgspec.json.encode(row) + b"\n")
            file.flush()
            kept[row.type] = row
            _reproduce(row, settings)
            tell(row, len(left))
    return SweepResult(
        rows=tuple(kept[name] for name in sorted(asked) if name in kept),
        left_out=tuple(sorted(name for name in left if name not in kept)),
        versions=versions,
        out=settings.out,
        quick=settings.quick,
        device=settings.device,
    )


def _asked(settings: SweepSettings, known: Sequence[str]) -> list[str]:
    """Return the types in an order by hash, so that a part of them stands for all."""
    for name in settings.types:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise GuardError(
                f"transformers {metadata.version('transformers')} has no model type {name!r} with "
                f"a loss; {hint}leave out --types to try all {len(known)}"
            )
    mixed = sorted(settings.types or known, key=lambda name: hashlib.sha256(name.encode()).digest())
    return mixed[: settings.sample]


def _kept(settings: SweepSettings, versions: str) -> dict[str, TypeRow]:
    """Return the rows of earlier runs with the same versions; the last one of a type counts."""
    place = settings.out / ROWS
    if not place.exists():
        return {}
    if why := files.why_not_file(place):
        raise GuardError(f"{place} {why}: give another --out")
    kept: dict[str, TypeRow] = {}
    for line in place.read_bytes().splitlines():
        try:
            row = msgspec.json.decode(line, type=TypeRow)
        except msgspec.DecodeError:  # a line that a killed run left unfinished
            continue
        if (row.versions, row.quick) == (versions, settings.quick):
            kept[row.type] = row
    return kept


def _tried(types: Sequence[str], settings: SweepSettings, versions: str) -> Iterator[TypeRow]:
    """Yield a row for each type in turn; a program that ends too early is started again."""
    left, ends_s = list(types), time.monotonic() + settings.budget_s
    while left and (remaining_s := ends_s - time.monotonic()) > 0:
        request = SweepRequest(
            types=tuple(left),
            device=settings.device,
            budget_s=remaining_s if math.isfinite(remaining_s) else None,
            limit_s=settings.limit_s,
            memory_bytes=MEMORY_BYTES,
            quick=settings.quick,
            versions=versions,
        )
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(
                [sys.executable, "-m", PROGRAM, msgspec.json.encode(request).decode()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
                env=watchdog.environment({**os.environ, **SETTINGS}),
            )
            try:
                assert process.stdout is not None
                with process.stdout:
                    for line in process.stdout:
                        row = msgspec.json.decode(line, type=TypeRow)
                        left.remove(row.type)
                        yield row
            finally:
                families.end(process.pid)
                code = process.wait()
            if code == 0 or not left:
                return
            said.seek(0)
            words = " ".join(said.read().decode(errors="replace")[-STDERR_TAIL:].split())
            yield TypeRow(
                type=left.pop(0),
                status="fails",
                why=f"the sweep's program ended with {code} at this type: {words}",
                quick=settings.quick,
                versions=versions,
            )


def _reproduce(row: TypeRow, settings: SweepSettings) -> None:
    """Write a script for a type that does not train as it should, or of which a lever fails."""
    if not row.arm:
        return
    run = row.runs.get(row.arm)
    facts = [f"- type: `{row.type}` ({row.model}, {row.head})", f"- {row.status}: {row.why}"]
    if run is not None and run.losses:
        facts.append(f"- losses of `{row.arm}`: {list(run.losses)}")
        facts.append(f"- losses as written: {list(row.runs['written'].losses)}")
    title = f"hf:{row.type} {row.status} ({row.arm})"
    needs = (RATCHET, row.versions)
    text = SWEEP_SCRIPT.format(
        title=quoted([title]),
        needs=quoted(needs),
        type=row.type,
        arm=row.arm,
        quick=row.quick and row.status != "differs",
    )
    found = Reported(kind="sweep", title=title, facts=facts, texts={SCRIPT: text}, needs=needs)
    write_finding(found, settings.out / REPRODUCTIONS / row.type)


LONGEST_WHY = 110
PREFIX, SUFFIX = "AutoModelFor", "works"
COLUMNS = (
    m.name("type"),
    m.Column("objective", lambda row: row.head.removeprefix(PREFIX), on="page"),
    m.Column("result", "status"),
    m.Column(
        "graph breaks",
        lambda row: str(row.breaks) if row.runs.get("kernels") else "",
        on="page",
    ),
    m.Column(
        "kernels",
        "installed",
        lambda counts: ", ".join(f"{kernel} {count}" for kernel, count in sorted(counts.items())),
        on="page",
    ),
    m.why("why", "why", lambda why: shortened(why)),
)
"""The columns of a type; the terminal lists the exceptions, with those that say why."""


def sweep_report(result: SweepResult, written: Sequence[str]) -> m.ResultReport:
    """Describe the result of `ratchet sweep`, and the files that it wrote."""
    counts = [(status, str(count)) for status, count in result.counts.items()]
    exceptions = [row for row in result.rows if row.status != SUFFIX]
    left = (
        f"{len(result.left_out)} types are left: the budget was over. Run the same command again "
        "to continue."
    )
    return m.ResultReport(
        headline=sweep_headline(result),
        header=(m.Words(_where(result)),),
        sections=m.blocks(
            m.section("Results", m.grid(("result", "types"), counts)),
            m.section("Exceptions", m.ResultTable(COLUMNS, exceptions)),
            left if result.left_out else None,
            m.written(written),
        ),
    )


def _where(result: SweepResult) -> str:
    quick = " · quick: Inductor's own code did not run" if result.quick else ""
    return f"{result.versions} · {result.device}{quick}"


def sweep_headline(result: SweepResult) -> str:
    counts = result.counts
    trained = counts["works"] + counts["falls back"]
    written = sum(counts.values()) - counts["does not train as written"]
    if result.share is None:
        return "No type was tried that trains as written."
    return (
        f"{trained} of the {written} types that train as written train with Ratchet "
        f"({result.share:.1%}), with equal losses."
    )


def sweep_markdown(result: SweepResult) -> str:
    """Return every row as a Markdown table, with the counts above it."""
    lines = [
        f"{sweep_headline(result)} {_where(result)}.",
        "",
        "| result | types |",
        "|---|---|",
        *(f"| {status} | {count} |" for status, count in result.counts.items()),
        "",
        f"| {' | '.join(column.title for column in COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
        *(f"| {' | '.join(_cells(row))} |" for row in result.rows),
    ]
    return "\n".join(lines) + "\n"


def shortened(why: str) -> str:
    """Return the beginning of a long reason."""
    return why if len(why) <= LONGEST_WHY else f"{why[: LONGEST_WHY - 3]}..."


def _cells(row: TypeRow) -> list[str]:
    first, *rest = (m.text_of(column.cell(row)) for column in COLUMNS)
    return [f"`{first}`", *(cell.replace("|", "\\|").replace("<", "&lt;") for cell in rest)]


class SweepLine(MovingLine):
    """A progress line below each type's result; a pipe gets only the results."""

    def __init__(self, *, console: Console | None = None) -> None:
        super().__init__("starting", 0, BarColumn(bar_width=24), console=console)
        self._done = 0

    def show(self, row: TypeRow, left: int) -> None:
        """Show one type's row, and how many types are left."""
        self._done += 1
        said = f"{row.type}: {row.status}{f' ({shortened(row.why)})' if row.why else ''}"
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], total=self._done + left)
        self.move(f"{left} types left", self._done)
        self.keep(said, piped=f"{said}, {left} left")
