"""Instruction counts by valgrind's callgrind. They are exact and repeatable, and are no time."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from ratchet.base import scratch
from ratchet.guard.compare.commands import CommandSide, run_command

STEPS = 2
LIMIT_S = 3600.0
TOTALS = re.compile(r"^(?:summary|totals):\s*(\d+)", re.MULTILINE)


def count_both(a: Any, b: Any) -> dict[str, Any]:
    """Count the instructions of two sides, of two commands or of a few steps of two workloads."""
    counts = [_count(_command(side)) for side in (a, b)]
    return {
        "baseline": counts[0],
        "new": counts[1],
        "ratio": counts[0] / counts[1] if counts[1] else None,
        "of": "the command and its children" if isinstance(a, CommandSide) else f"{STEPS} steps",
    }


def _command(side: Any) -> CommandSide:
    if isinstance(side, CommandSide):
        return side
    from ratchet.workloads.run_steps import steps_command

    words = steps_command(side.workload, STEPS, side.options)
    words[0] = side.python or sys.executable
    return CommandSide(
        title=side.title, command=shlex.join(words), folder=Path.cwd(), environment=side.environment
    )


def _count(side: CommandSide) -> int:
    """Return the instructions of a command with all of its children."""
    with scratch.folder("callgrind") as folder:
        tool = [
            "valgrind", "--tool=callgrind", "--trace-children=yes", "--quiet",
            f"--callgrind-out-file={folder}/%p.out",
        ]  # fmt: skip
        counted = f"{shlex.join(tool)} /bin/sh -c {shlex.quote(side.command)}"
        run_command(replace(side, command=counted), printed=False, limit_s=LIMIT_S)
        files = list(folder.glob("*.out*"))
        return sum(_total(path.read_text(errors="replace")) for path in files)


def _total(text: str) -> int:
    found = TOTALS.findall(text)
    return int(found[-1]) if found else 0
