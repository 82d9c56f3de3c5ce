"""What a user asks of one turn."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ratchet.errors import RatchetError

DEFAULT_BUDGET_S = 1800.0
SMALLEST_BUDGET_S = 30.0
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The arguments of `ratchet optimize`."""

    workload: str
    options: dict[str, Any] = field(default_factory=dict)
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

    def key(self) -> str:
        """What the answer depends on, hashed: the workload's text among it, the budget not."""
        content = {
            "workload": self.workload,
            "source": _source_hash(self.workload),
            "options": {name: str(value) for name, value in sorted(self.options.items())},
            "keep_precision": self.keep_precision,
            "try": self.try_lever,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]


def check_settings(settings: Settings) -> None:
    """Refuse what its text shows to be a mistake: no torch is imported for it.

    Raises a RatchetError for an unknown workload or lever, and for a folder that is a file.
    """
    from ratchet.optimize.levers import check_lever
    from ratchet.workloads.names import check_name

    check_name(settings.workload)
    if settings.try_lever is not None:
        check_lever(settings.try_lever)
    if settings.out.exists() and not settings.out.is_dir():
        raise RatchetError(f"{settings.out} is not a folder: give another with --out")


def parse_duration_s(text: str) -> float:
    """Seconds from `90`, `90s`, `30m` or `2h`; at least 30 s."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", text)
    if match is None:
        raise RatchetError(f"budget {text!r} is not a duration: write 90s, 30m or 2h")
    seconds = float(match[1]) * _UNITS[match[2]]
    if seconds < SMALLEST_BUDGET_S:
        raise RatchetError(
            f"budget {text!r} is under {SMALLEST_BUDGET_S:.0f} s, too short for one paired run: "
            "give at least 30s"
        )
    return seconds


def _source_hash(workload: str) -> str:
    """The content of the user's own file, so that an edited script is a new workload."""
    file, _, function = workload.rpartition(":")
    path = Path(file)
    if function and path.suffix == ".py" and path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return ""
