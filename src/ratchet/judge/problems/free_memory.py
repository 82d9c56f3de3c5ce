"""Check that a problem fits in free memory, from its sizes, before anything is drawn."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ratchet.base.errors import KernelError

if TYPE_CHECKING:
    from ratchet.judge.problems.problem import Case, Problem

MEMORY_SHARE: Final = 0.5
"""Usable share of the free memory: a candidate's processes need the rest."""
COPIES: Final = 4.0
"""Copies of a call's tensors held at once: inputs, their copies, outputs, float64."""
WIDE_BYTES: Final = 8
"""Bytes per element in the oracle's float64."""
GIB: Final = 2.0**30
_LIMITS: Final = (
    ("", "memory.max", "memory.current", "inactive_file"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Files of a control group, in version 2 and version 1: the limit, the usage, and the part of it
that Linux can reclaim (cgroup-v2.rst and cgroup-v1/memory.rst)."""


def check_fits(problem: Problem) -> None:
    """Raise a KernelError if the inputs of a problem's largest case do not fit this machine."""
    if not problem.cases:
        return
    case = max(problem.cases, key=_elements)
    remedy = "judge it at a smaller tier (--tier ci), or give it smaller cases"
    if problem.model is not None:
        remedy = "shrink it with --scale"
    check_room(COPIES * WIDE_BYTES * _elements(case), remedy, case=case.name)


def check_room(needed: float, remedy: str, *, case: str = "") -> None:
    """Raise a KernelError if this many bytes exceed the usable share of free memory."""
    usable = MEMORY_SHARE * free_bytes()
    if needed > usable:
        where = f"case {case!r} needs" if case else "it needs"
        raise KernelError(
            f"it is too large for this machine: {where} about {needed / GIB:.1f} GiB and "
            f"{usable / GIB:.1f} GiB may be used; {remedy}"
        )


def free_bytes(
    meminfo: Path = Path("/proc/meminfo"),
    groups: Path = Path("/proc/self/cgroup"),
    mounted: Path = Path("/sys/fs/cgroup"),
) -> int:
    """Return the machine's free memory, or less if this process's control groups limit it."""
    lines = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
    available = lines.get("MemAvailable", lines["MemFree"])
    return min([int(available.split()[0]) << 10, *_left_to_groups(groups, mounted)])


def _left_to_groups(groups: Path, mounted: Path) -> list[int]:
    """Return the free memory under each limit of this process's groups and their parents."""
    try:
        lines = groups.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, inside = line.split(":", 2)
        for folder, *names in _LIMITS:
            if folder in controllers.split(","):
                place = mounted / folder / inside.lstrip("/")
                # In a container the group's own folder may be mounted at the top.
                above = [one for one in (place, *place.parents) if one.is_relative_to(mounted)]
                left = (_left_to(one, *names) for one in above)
                found += [one for one in left if one is not None]
    return found


def _left_to(folder: Path, limit: str, used: str, reclaimable: str) -> int | None:
    """Return the bytes that a group may still use; None if it has no limit or does not exist."""
    try:
        most, now = (folder / limit).read_text("ascii"), int((folder / used).read_text("ascii"))
        if not most.strip().isdigit():  # the text "max"
            return None
        counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return max(0, int(most) - now + int(counts.get(reclaimable, 0)))


def _elements(case: Case) -> int:
    return sum(math.prod(spec.shape) for spec in case.inputs)
