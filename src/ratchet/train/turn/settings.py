"""The user's settings for one turn."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ratchet.base.devices.probe import probe
from ratchet.base.errors import RatchetError, WorkloadError
from ratchet.base.files import why_not_new_folder
from ratchet.base.show.words import parse_duration_s
from ratchet.judge.terms import parse_target
from ratchet.train.turn.sources import source_hash
from ratchet.train.workloads.names import (
    LoadOptions,
    check_name,
    check_options,
    is_saved_spec,
    title_of,
)

DEFAULT_BUDGET_S = 1800.0
SMALLEST_BUDGET_S = 30.0
PRECISIONS = ("fp32", "bf16_autocast", "bf16_master")
LARGEST_SEED = 2**32 - 1
"""Largest seed that NumPy's generators accept; a workload may seed those too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The arguments of `ratchet optimize`."""

    workload: str
    options: LoadOptions = field(default_factory=LoadOptions)
    """Keyword arguments of `workloads.load`: seed, batch_size, sequence, precision, ..."""
    budget_s: float = DEFAULT_BUDGET_S
    keep_precision: bool = False
    try_lever: str | None = None
    resume: bool = False
    out: Path = Path("ratchet-out")
    ledger: str | None = None
    seed: int = 0
    launches: int = 3
    loss_steps: int = 200
    loss_seeds: int = 3
    gone_s: float = 0.0
    """Seconds of the budget spent before the turn began, such as a command's imports."""

    @property
    def title(self) -> str:
        """Return the workload's display name; a Workload object has its own."""
        return title_of(self.workload)

    @property
    def command(self) -> str:
        """Return the command or call, for the report."""
        called = f"ratchet optimize {self.workload}"
        return called if self.title == self.workload else "ratchet.optimize(workload)"

    def key(self) -> str:
        """Hash all that determines the result, including the workload's source, not the budget."""
        content = {
            "workload": self.title,
            "source": _source_hash(self.workload),
            "options": {name: str(value) for name, value in sorted(self.options.items())},
            "keep_precision": self.keep_precision,
            "try": self.try_lever,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]


def check_seed(seed: int) -> None:
    """Refuse a seed that a random number generator cannot take."""
    if not 0 <= seed <= LARGEST_SEED:
        raise RatchetError(f"seed {seed} is out of range: give one from 0 to {LARGEST_SEED}")


def check_settings(settings: Settings) -> None:
    """Check the settings that can be checked without importing torch.

    Raises a RatchetError for an unknown workload or lever, a seed out of range, or an unusable
    output folder.
    """
    from ratchet.train.levers import check_lever

    check_name(settings.workload)
    check_seed(settings.seed)
    if settings.try_lever is not None:
        check_lever(settings.try_lever)
    if why := why_not_new_folder(settings.out):
        raise RatchetError(f"--out {settings.out} {why}: name a folder")


def checked_target(target: str | None, *, dry: bool) -> str | None:
    """Return the GPU of a dry run; RatchetError for an unknown one, or if it is no dry run."""
    if target is None:
        return None
    known = parse_target(target)
    if not dry:
        raise RatchetError(
            f"--target {known} is a GPU that is not here, so nothing can be timed on it: "
            "add --dry-run"
        )
    return known


def make_settings(
    workload: str,
    *,
    budget: str | float,
    out: str | Path,
    batch_size: int | None = None,
    sequence: int | None = None,
    precision: str | None = None,
    text: str | Path | None = None,
    device: str = "auto",
    seed: int = 0,
    **rest: Any,
) -> Settings:
    """Make Settings from a caller's arguments; `rest` are fields of `Settings` by name."""
    made = Settings(
        workload=workload, budget_s=parse_budget_s(str(budget)), out=Path(out), seed=seed, **rest
    )
    check_settings(made)
    options = workload_options([workload], batch_size, sequence, precision, text, device)
    return replace(made, options={**options, "seed": seed})


def workload_options(
    workloads: Sequence[str],
    batch_size: int | None,
    sequence: int | None,
    precision: str | None,
    text: str | Path | None,
    device: str,
) -> LoadOptions:
    """Return the given keyword arguments of `workloads.load`, as JSON for another process.

    Raises a RatchetError, before torch is imported, for an unknown workload or an option that one
    of the workloads does not support.
    """
    if precision is not None and precision not in PRECISIONS:
        raise WorkloadError(f"unknown precision {precision!r}: use one of {', '.join(PRECISIONS)}")
    path = Path(text) if text is not None else None
    for workload in workloads:
        check_name(workload)
        check_options(workload, batch_size=batch_size, sequence=sequence, text=path)
    found = probe(device)
    options: LoadOptions = {"device": found.torch_name if found.index else found.kind}
    if batch_size is not None:
        options["batch_size"] = batch_size
    if sequence is not None:
        options["sequence"] = sequence
    if precision is not None:
        options["precision"] = precision
    if path is not None:
        options["text"] = str(path.absolute())
    return options


def parse_budget_s(text: str) -> float:
    """Return the seconds of a budget that one paired run fits into."""
    return parse_duration_s(text, "budget", least_s=SMALLEST_BUDGET_S, too_short="one paired run")


def _source_hash(workload: str) -> str:
    """Hash the user's file and its imports, so that an edited script is a new workload."""
    if is_saved_spec(workload) and Path(workload).is_file():
        return hashlib.sha256(Path(workload).read_bytes()).hexdigest()
    file, _, function = workload.rpartition(":")
    path = Path(file).expanduser()
    if function and path.suffix == ".py" and path.is_file():
        return source_hash(path)
    return ""
