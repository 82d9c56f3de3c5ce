"""Privileges of a process: uids, capabilities, and namespaces for a fork of a zygote.

A candidate runs under a fresh uid if the judge may set one, else under the judge's own.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn

FIRST_UID: Final = 1_000_000_000
UID_COUNT: Final = 1_000_000_000
"""Uids without an account. Each process gets a fresh one, so RLIMIT_NPROC counts it alone."""
SETGID, SETUID, SYS_PTRACE = 6, 7, 19  # Capabilities of linux/capability.h
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


# Namespaces for a fork of the zygote, as bubblewrap makes for a new program.
#
# See unshare(2), user_namespaces(7), mount(2). A fork starts with the zygote's read-only view of
# the machine and covers writable places: /tmp, /dev/shm, /dev/pts and /proc.

NEW_NAMESPACES: Final = 0x2C02_0000 | 0x4000_0000
"""CLONE_NEWNS, NEWUTS, NEWIPC, NEWPID and NEWNET of linux/sched.h."""
NEW_USER: Final = 0x1000_0000
NO_SUID, NO_DEVICE, NO_EXEC, BIND, DOWN, PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
"""MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC and MS_PRIVATE of linux/mount.h."""
PR_CAPBSET_DROP: Final = 24
CAPABILITY_VERSION: Final = 0x2008_0522

_libc = ctypes.CDLL(None, use_errno=True)


def unshare() -> None:
    """Enter new namespaces; an ordinary user also enters a new user namespace.

    The process itself stays in its process namespace: its next child is PID 1 of the new one.
    """
    uid, gid = os.geteuid(), os.getegid()
    _call("unshare", ctypes.c_int(NEW_NAMESPACES | (NEW_USER if uid else 0)))
    if uid:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def cover(tmp_bytes: int, shared_memory_bytes: int) -> None:
    """Mount empty folders over writable ones, and /proc of this namespace."""
    _mount("none", "/", None, DOWN | PRIVATE, None)
    plain = NO_SUID | NO_DEVICE
    kept = {path: os.open(path, os.O_PATH) for path in _bound_below("/tmp/")}
    _mount("tmpfs", "/tmp", "tmpfs", plain, f"mode=1777,size={tmp_bytes}")
    for path, descriptor in kept.items():
        os.makedirs(path, 0o755)
        _mount(f"/proc/self/fd/{descriptor}", path, None, BIND | DOWN, None)
        os.close(descriptor)
    _mount("tmpfs", "/dev/shm", "tmpfs", plain, f"mode=1777,size={shared_memory_bytes}")
    _mount("devpts", "/dev/pts", "devpts", NO_SUID | NO_EXEC, "newinstance,ptmxmode=0666,mode=620")
    _mount("proc", "/proc", "proc", plain | NO_EXEC, None)
    os.chdir("/tmp")  # the working directory was the zygote's


def _bound_below(folder: str) -> list[str]:
    """Return the outermost mount points below a folder, such as a checkout in /tmp."""
    with open("/proc/self/mounts", encoding="utf-8") as file:
        places = [
            re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), line.split()[1])
            for line in file
        ]
    found: list[str] = []
    for place in sorted(set(places)):
        if place.startswith(folder) and not any(place.startswith(f"{one}/") for one in found):
            found.append(place)
    return found


def drop_bounding() -> None:
    """Drop every capability from the bounding set; this needs CAP_SETPCAP."""
    number = 0
    while _libc.prctl(PR_CAPBSET_DROP, ctypes.c_ulong(number), 0, 0, 0) == 0:
        number += 1


def drop_capabilities() -> None:
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    _call("capset", header, (ctypes.c_uint32 * 6)())


def guard(child: int) -> NoReturn:
    """Reap children, and end as this child does: with its exit code, or 128 plus its signal."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # then no signal from inside ends a PID 1
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None) -> None:
    words = [None if word is None else word.encode() for word in (source, target, kind)]
    _call("mount", *words, ctypes.c_ulong(flags), None if data is None else data.encode())


def _call(name: str, *arguments: object) -> None:
    """Call a function of the C library; raises OSError."""
    if getattr(_libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
