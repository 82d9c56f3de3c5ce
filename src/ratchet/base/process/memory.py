"""Free memory: the machine's, or less if a control group or `ulimit -v` limits this process.

This is the one reader of it. Workers in a sandbox import this file, so it needs nothing but /proc.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

MEMINFO: Final = Path("/proc/meminfo")
GROUPS: Final = Path("/proc/self/cgroup")
MOUNTED: Final = Path("/sys/fs/cgroup")
STATM: Final = Path("/proc/self/statm")
_LIMITS: Final = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""Files of a control group by its controller, in version 2 and 1: limit, usage, and the part of it
that Linux can reclaim (cgroup-v2.rst and cgroup-v1/memory.rst)."""


class MachineMemory(NamedTuple):
    """Memory of the machine or of the tightest control group, in bytes."""

    free: int
    total: int


def memory(
    meminfo: Path = MEMINFO, groups: Path = GROUPS, mounted: Path = MOUNTED
) -> MachineMemory:
    """Return the memory that this process and its children may still use, and the whole."""
    lines = dict(line.split(":", 1) for line in meminfo.read_text("ascii").splitlines())
    available = lines.get("MemAvailable", lines["MemFree"])
    free, total = (int(value.split()[0]) << 10 for value in (available, lines["MemTotal"]))
    limited = list(_of_groups(groups, mounted, total))
    return MachineMemory(
        free=min([free, *(one.free for one in limited)]),
        total=min([total, *(one.total for one in limited)]),
    )


def free_bytes() -> int:
    """Return the bytes that this process may still take."""
    free = memory().free
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return free
    taken = int(STATM.read_text("ascii").split()[0]) * resource.getpagesize()
    return max(0, min(free, limit - taken))


def _of_groups(groups: Path, mounted: Path, machine: int) -> Iterator[MachineMemory]:
    """Yield the memory of this process's groups, and of those above them, that have a limit."""
    try:
        lines = groups.read_text("utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, inside = line.split(":", 2)
        for folder, names in _LIMITS.items():
            if folder in controllers.split(","):
                place = mounted / folder / inside.lstrip("/")
                # In a container the group's own folder may be mounted at the top.
                above = [one for one in (place, *place.parents) if one.is_relative_to(mounted)]
                found = [_of_group(one, names, machine) for one in above]
                yield from (one for one in found if one is not None)


def _of_group(folder: Path, names: tuple[str, str, str], machine: int) -> MachineMemory | None:
    """Return a group's memory; None if it has no limit below the machine's, or does not exist."""
    limit, used, cached = names
    try:
        most = (folder / limit).read_text("ascii").strip()
        if not most.isdigit() or int(most) >= machine:  # "max", or version 1's largest number
            return None
        now = int((folder / used).read_text("ascii"))
        counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return MachineMemory(free=max(0, int(most) - now + int(counts.get(cached, 0))), total=int(most))
