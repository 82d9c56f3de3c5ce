"""The uid of a candidate: a fresh one if the judge may set it, else the judge's own."""

from __future__ import annotations

import functools
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FIRST_UID: Final = 1_000_000_000
UID_COUNT: Final = 1_000_000_000
"""Uids without an account. Each process gets a fresh one, so RLIMIT_NPROC counts it alone."""
SETGID, SETUID, SYS_PTRACE = 6, 7, 19
"""Capabilities of linux/capability.h."""
LEAST_MAPPED: Final = 10_000
"""A user namespace has few uids: the upper half of them is used if there are this many."""


def is_root() -> bool:
    """Return True if this process is root, if only of its own user namespace."""
    return os.geteuid() == 0


def fresh_uid() -> int | None:
    """Draw a uid for one candidate; None if the judge cannot set one."""
    found = fresh_uids()
    return None if found is None else found.start + secrets.randbelow(len(found))


@functools.cache
def has_capability(number: int) -> bool:
    """Return True if this process has a capability (capabilities(7))."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return False


@functools.cache
def fresh_uids() -> range | None:
    """Return the range of uids and gids to draw from, without accounts; None if not root."""
    if not (is_root() and has_capability(SETUID) and has_capability(SETGID)):
        return None
    wanted = range(FIRST_UID, FIRST_UID + UID_COUNT)
    maps = [list(_mapped(name)) for name in ("uid_map", "gid_map")]
    if all(any(_within(wanted, one) for one in ranges) for ranges in maps):
        return wanted
    most = min(max(map(len, ranges), default=0) for ranges in maps)
    inside = [one for one in maps[0] if len(one) >= LEAST_MAPPED]
    if most < LEAST_MAPPED or not inside:
        return None
    largest = max(inside, key=len)
    upper = range(largest.start + len(largest) // 2, largest.stop)
    return upper if any(_within(upper, one) for one in maps[1]) else None


def _within(inner: range, outer: range) -> bool:
    return outer.start <= inner.start and inner.stop <= outer.stop


def _mapped(name: str) -> Iterator[range]:
    """Yield the ids of this user namespace (user_namespaces(7)); all ids if there is no map."""
    try:
        lines = Path("/proc/self", name).read_text(encoding="ascii").splitlines()
    except OSError:
        lines = ["0 0 4294967295"]
    for line in lines:
        first, _, count = map(int, line.split())
        yield range(first, first + count)
