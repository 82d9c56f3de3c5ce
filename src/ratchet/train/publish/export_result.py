"""The forms of an export, and its result. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from ratchet.base.errors import PublishError

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
    speedup: str
    """The ratio with its interval, against plain torch; a dash if the ledger has none."""
    after: str
    """The judge's status of the source that was read back: `correct` or `proven`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportedProgram:
    """A program that torch.export wrote, and how far it is from the workload's own step."""

    name: str
    file: str
    operations: int
    apart: float
    """Largest difference of the loaded program's results, as a share of their norm."""
    onnx: str = ""
    """The ONNX file and how it was checked, or why there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fallback:
    """An operator of a program that a compiler for a target may not take."""

    program: str
    operator: str
    calls: int
    core_aten: bool
    """True if it belongs to Core ATen, which compilers of torch.export's programs take."""
    onnx: bool | None
    """True if torch's exporter to ONNX translates it; None if it is not installed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportResult:
    subject: str
    """The recipe's path, or the workload."""
    to: str
    out: str
    files: tuple[str, ...]
    checks: tuple[str, ...]
    """The checks after writing, in words."""
    kernels: tuple[ExportedKernel, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    """Kernels of the recipe that are not in the package, with the reason."""
    programs: tuple[ExportedProgram, ...] = ()
    fallbacks: tuple[Fallback, ...] = ()
    lines: tuple[str, ...] = ()
    """Lines to paste or to run."""


def written_files(folder: Path) -> tuple[str, ...]:
    """Return the files below a folder, relative to it, sorted."""
    return tuple(
        sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    )
