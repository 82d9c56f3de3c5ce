"""The forms of an export, its folder, its result and its report. Imports no torch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from ratchet.base import scratch
from ratchet.base.errors import FileError, PublishError
from ratchet.base.files import make_folder, why_not_new_folder
from ratchet.base.show import model as m
from ratchet.base.show.words import ABSENT

Form = Literal["kernels", "wheel", "patch", "export"]
INSTALL: Final = "pip install 'torch-ratchet[publish]'"
FORMS: Final[tuple[Form, ...]] = get_args(Form)


def parse_form(text: str) -> Form:
    """Return the form of that name; a PublishError for anything else."""
    for one in FORMS:
        if one == text:
            return one
    raise PublishError(f"--to {text!r} is unknown: use {', '.join(FORMS)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportedKernel:
    entry: str
    library: str
    language: str
    hash: str
    speedup: str  # The ratio with its interval, against plain torch; a dash if the ledger has none
    after: str  # The judge's status of the source that was read back: `correct` or `proven`


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenProgram:
    """A program that torch.export wrote, and how far it is from the workload's own step."""

    name: str
    file: str
    operations: int
    apart: float  # Largest difference of the loaded program's results, as a share of their norm
    onnx: str = ""  # The ONNX file and how it was checked, or why there is none


@dataclass(frozen=True, kw_only=True, slots=True)
class Fallback:
    """An operator of a program that a compiler for a target may not take."""

    program: str
    operator: str
    calls: int
    core_aten: bool
    """True if it belongs to Core ATen, which compilers of torch.export's programs take."""
    onnx: bool | None  # True if torch's exporter to ONNX translates it; None if it is not installed


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportResult:
    subject: str  # The recipe's path, or the workload
    to: str
    out: str
    files: tuple[str, ...]
    checks: tuple[str, ...]  # The checks after writing, in words
    kernels: tuple[ExportedKernel, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    """Kernels of the recipe that are not in the package, with the reason."""
    programs: tuple[WrittenProgram, ...] = ()
    fallbacks: tuple[Fallback, ...] = ()
    lines: tuple[str, ...] = ()  # Lines to paste or to run


def written_files(folder: Path) -> tuple[str, ...]:
    return tuple(
        sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    )


# The report of `ratchet export` on a terminal.

WHAT = {
    "kernels": "a repository of Hugging Face's kernels",
    "wheel": "a project that pip builds",
    "patch": "a patch",
    "export": "programs of torch.export",
}
KERNELS = (
    m.name("kernel", "entry"),
    m.Column("of", "library"),
    m.Column("language"),
    m.number("speed-up", "speedup"),
    m.Column("judged again", "after"),
)
PROGRAMS = (
    m.name("program", "file"),
    m.number("operations"),
    m.number("apart", "apart", lambda value: f"{value:.1e}"),
    m.why("ONNX", "onnx"),
)
FALLBACKS = (
    m.name("operator"),
    m.Column("program"),
    m.number("calls"),
    m.Column("Core ATen", "core_aten", lambda value: _yes(value)),
    m.Column("ONNX", "onnx", lambda value: _yes(value)),
)


def export_report(result: ExportResult) -> m.ResultReport:
    """Return what was exported and how it was checked."""
    left = m.grid(("left out", "why"), result.left_out)
    return m.ResultReport(
        title=f"export of {result.subject}",
        heading="export",
        headline=f"{result.subject} is exported as {WHAT[result.to]}: {result.out}",
        header=tuple(m.Words(f"{one}.") for one in result.checks),
        sections=m.blocks(
            m.section("Kernels", m.ResultTable(KERNELS, result.kernels))
            if result.kernels
            else None,
            m.section("Left out", left) if result.left_out else None,
            m.section("Programs", m.ResultTable(PROGRAMS, result.programs))
            if result.programs
            else None,
            _fallbacks(result),
            m.section("The patch adds", m.Lines(result.lines)) if result.lines else None,
            m.section("Next", m.Lines(next_lines(result))),
        ),
    )


def next_lines(result: ExportResult) -> list[str]:
    out = Path(result.out)
    return {
        "kernels": [f"hf upload USER/{out.resolve().name} {out} --repo-type kernel"],
        "wheel": [f"pip wheel --no-deps {out}"],
        "patch": [f"git apply {out}"],
        "export": [f"python -c 'import torch; torch.export.load(\"{out}/step.pt2\")'"],
    }[result.to]


def _fallbacks(result: ExportResult) -> m.ReportSection | None:
    if result.to != "export":
        return None
    table = m.ResultTable(FALLBACKS, result.fallbacks) if result.fallbacks else m.Words("None.")
    return m.section("Operators that may fall back", table)


def _yes(value: bool) -> str:
    return {True: "yes", False: "no"}.get(value, ABSENT)


# A new folder that appears whole or not at all.


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a folder that becomes `out` once the block ends without an error.

    Raises PublishError (`out` holds something already); FileError (it cannot be made).
    """
    if why := why_not_new_folder(out):
        raise FileError(f"the folder {out} {why}")
    if out.exists() and any(out.iterdir()):
        raise PublishError(f"--out {out} holds files already: name a new or an empty folder")
    target = Path(os.path.realpath(out))
    make_folder(target.parent)
    with scratch.folder("export", place=target.parent) as stage:
        made = stage / "made"
        made.mkdir()
        yield made
        try:
            os.rename(made, target)
        except OSError as error:
            raise FileError.of(error, out, "written") from error
