"""Reserves of the machine while a candidate runs: memory, disk space, processes.

No rlimit bounds a family of processes as a whole, a memfd belongs to no process, and the number of
root's processes is not limited (RLIMIT_NPROC, getrlimit(2)).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ratchet.base.process import families
from ratchet.base.process.channel import Shortage

KEPT_SHARE: Final = 0.05
"""Share of the whole that must stay free; a candidate may always use half of what was free."""


class Headroom:
    """The floors of one candidate's run, set at its start."""

    def __init__(self, folders: Sequence[Path] = (), *, most_threads: int | None = None) -> None:
        """`most_threads` is the limit for the family that `watch` names."""
        self._most_threads = most_threads
        self._root: int | None = None
        self._threads = _threads()
        self._folders = list(folders)
        self._free_bytes, total_bytes = _memory_bytes()
        self._memory_floor = _floor(self._free_bytes, total_bytes)
        self._disk_floors = [_floor(*_disk_bytes(folder)) for folder in self._folders]

    def watch(self, root: int) -> None:
        """Count the threads of a process and its descendants from now on."""
        self._root = root

    def shortage(self) -> Shortage | None:
        """Return what has run short, or None.

        Memory was taken by others if the family itself holds less than half of what was taken.
        """
        if self._root is not None and self._most_threads is not None:
            # The machine's own count is one line to read; a family's is many files.
            more = _threads() - self._threads
            if more > self._most_threads < families.threads_below(self._root):
                return Shortage(
                    f"it had started more than {self._most_threads} processes and threads"
                )
        free, _ = _memory_bytes()
        if free < self._memory_floor:
            words = f"the machine had {free >> 20} MiB of memory left while it ran"
            own = self._own_bytes()
            if 2 * own >= self._free_bytes - free:
                return Shortage(words)
            words += f", and its own processes held only {own >> 20} MiB: judge again"
            return Shortage(words, of_others=True)
        for folder, floor in zip(self._folders, self._disk_floors, strict=True):
            free, _ = _disk_bytes(folder)
            if free < floor:
                return Shortage(f"the disk had {free >> 20} MiB left while it ran")
        return None

    def _own_bytes(self) -> int:
        """Return the memory of the family; all of it where nobody named a family."""
        if self._root is None:
            return self._free_bytes
        return sum(map(families.resident_bytes, families.family(self._root)))


def _floor(free: int, total: int) -> float:
    return min(KEPT_SHARE * total, free / 2)


def _threads() -> int:
    """Return how many threads the machine has, from /proc/loadavg."""
    with open("/proc/loadavg", encoding="ascii") as file:
        return int(file.read().split()[3].partition("/")[2])


def _memory_bytes() -> tuple[int, int]:
    """Available and total memory, from /proc/meminfo."""
    with open("/proc/meminfo", "rb") as file:
        lines = dict(line.split(b":", 1) for line in file)
    available = lines.get(b"MemAvailable", lines[b"MemFree"])
    return int(available.split()[0]) << 10, int(lines[b"MemTotal"].split()[0]) << 10


def _disk_bytes(folder: Path) -> tuple[int, int]:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
