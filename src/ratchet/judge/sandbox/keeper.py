"""The process between the judge and a candidate without namespaces, like PID 1 in a namespace.

It drops the judge's privileges, closes the file system to the candidate if Landlock can, and starts
it. What the candidate leaves behind becomes this process's child and ends with it: when the worker
ends, or when the judge does, in whatever way. The judge stops all of the family but this process.

Landlock (landlock(7)): a process closes the file system to itself, except what rules open. Since
ABI 4 it also closes TCP, since ABI 6 abstract sockets and signals to outside processes. It always
keeps a process from tracing others and from their memory, whatever its uid. Its three system calls
have the same numbers on every architecture. Imports no torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import signal
import stat
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NoReturn

from ratchet.base.process import families
from ratchet.judge.sandbox import privileges

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION: Final = 1
PATH_BENEATH: Final = 1
RULE: Final = struct.Struct("=Qi")
"""struct landlock_path_beneath_attr of linux/landlock.h: rights, and the descriptor of a path."""
EXECUTE, WRITE_FILE, READ_FILE, READ_FOLDER = 1, 2, 4, 8
FIRST_RIGHTS: Final = (1 << 13) - 1
"""All rights of ABI 1: those above, and making and removing entries of a folder."""
REFER, TRUNCATE, USE_DEVICE = 1 << 13, 1 << 14, 1 << 15
"""Rights since ABI 2, 3 and 5: moving between folders, shortening files, ioctl on devices."""
TCP: Final = 3  # Both rights of ABI 4: binding and connecting
SCOPES: Final = 3  # Both scopes of ABI 6: abstract sockets and signals
SCOPES_SINCE: Final = 6
OF_A_FILE: Final = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | USE_DEVICE
NEWEST: Final = 7  # The newest ABI that this module knows; a newer one is used as this one


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """The files, and folders with everything below them, that stay open to a process."""

    read: tuple[str, ...] = ()  # May be read, listed and executed
    listed: tuple[str, ...] = ()  # Folders that may only be listed
    written: tuple[str, ...] = ()  # Everything is allowed
    used: tuple[str, ...] = ()  # Devices that may be read and written
    hidden: str = ""  # A folder that stays closed even inside a readable one, which lists its name


@functools.cache
def abi() -> int:
    """Return the kernel's version of Landlock; 0 if it has none, or it is off."""
    return max(0, min(NEWEST, _syscall(CREATE_RULESET, None, 0, VERSION)))


def rights_of(version: int) -> int:
    """Return all rights over files that a version can close."""
    later = {2: REFER, 3: TRUNCATE, 5: USE_DEVICE}
    return FIRST_RIGHTS | sum(right for first, right in later.items() if version >= first)


def make_ruleset(opened: Opened) -> int:
    """Return the descriptor of a ruleset that opens only these; raises OSError.

    Missing files are left out. Call it while the process can still see all of them.
    """
    version, rights = abi(), rights_of(abi())
    words = [
        rights,
        *([TCP] if version >= 4 else []),
        *([SCOPES] if version >= SCOPES_SINCE else []),
    ]
    asked = struct.pack(f"={len(words)}Q", *words)
    ruleset = _checked(CREATE_RULESET, asked, len(asked), 0)
    # O_CLOEXEC is set by the kernel.
    read = READ_FILE | READ_FOLDER | EXECUTE
    for place in _around(opened.read, opened.hidden):
        _open(ruleset, place, read)
    kinds: Mapping[int, Sequence[str]] = {
        # Folders that hold the hidden one can still be listed.
        READ_FOLDER: (*opened.listed, *(one for one in opened.read if _holds(one, opened.hidden))),
        rights: opened.written,
        (READ_FILE | WRITE_FILE | TRUNCATE | USE_DEVICE) & rights: opened.used,
    }
    for right, places in kinds.items():
        for place in places:
            _open(ruleset, place, right)
    return ruleset


def restrict(ruleset: int) -> None:
    """Close what the ruleset does not open, for this thread and all that it starts, for good.

    `no_new_privs` must be set. Call it while there is no other thread. Raises OSError.
    """
    _checked(RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _around(folders: Sequence[str], hidden: str) -> Iterator[str]:
    """Yield the folders, but for one that holds the hidden folder its other entries."""
    for folder in folders:
        if not _holds(folder, hidden):
            yield folder
        elif os.path.realpath(folder) != hidden:
            with contextlib.suppress(OSError):
                yield from _around([entry.path for entry in os.scandir(folder)], hidden)


def _holds(folder: str, hidden: str) -> bool:
    return bool(hidden) and Path(hidden).is_relative_to(os.path.realpath(folder))


def _open(ruleset: int, place: str, rights: int) -> None:
    try:
        descriptor = os.open(place, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # it is missing, or out of this user's reach
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= OF_A_FILE
        rule = RULE.pack(rights & rights_of(abi()), descriptor)
        _checked(ADD_RULE, ruleset, PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)


def _checked(*words: int | bytes | None) -> int:
    answer = _syscall(*words)
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"Landlock: {os.strerror(number)}")
    return answer


def _syscall(*words: int | bytes | None) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    numbers = [ctypes.c_long(one) if isinstance(one, int) else one for one in words]
    return int(libc.syscall(*numbers))


WAKES = (signal.SIGCHLD, signal.SIGTERM)  # The end of a child, and of the judge


@dataclass(frozen=True, kw_only=True, slots=True)
class KeeperOrders:
    judge: int  # The judge's process id
    folder: str  # The candidate's own folder, its working directory
    mark: tuple[str, str]
    """The environment variable by which the judge's watchdog knows its processes. The keeper
    itself has none: the watchdog would end it before it has ended the others."""
    uid: int | None
    groups: tuple[int, ...]
    opened: Opened | None  # None without Landlock


def main() -> None:
    """Start a command and keep its family; argv holds the orders, then the command."""
    given, command = json.loads(sys.argv[1]), sys.argv[2:]
    opened = given["opened"] and Opened(**given["opened"])
    orders = KeeperOrders(**{**given, "opened": opened})
    signal.pthread_sigmask(signal.SIG_BLOCK, WAKES)
    families.prctl(families.PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != orders.judge:
        os._exit(1)
    families.adopt_orphans()
    families.hide_memory()
    keeper = os.getpid()
    child = os.fork()
    if not child:
        _become(orders, command, keeper)
    _let_go()
    # Rules that name this inode hold while it is open: the kernel may make a new one otherwise.
    os.open(f"/proc/{child}", os.O_PATH)
    code = _wait_for(child)
    families.end_below(keeper)
    os._exit(code)


def _become(orders: KeeperOrders, command: list[str], keeper: int) -> NoReturn:
    """Turn into the candidate's worker."""
    try:
        ruleset = None
        if orders.opened is not None:
            own = (*orders.opened.read, f"/proc/{os.getpid()}")
            ruleset = make_ruleset(replace(orders.opened, read=own))
        os.chdir(orders.folder)
        if orders.uid is not None:
            os.setgroups(orders.groups)
            os.setresgid(orders.uid, orders.uid, orders.uid)
            os.setresuid(orders.uid, orders.uid, orders.uid)
        else:
            with contextlib.suppress(OSError):  # an ordinary user cannot drop groups
                os.setgroups(orders.groups)
        privileges.drop_bounding()
        privileges.drop_capabilities()
        families.prctl(families.PR_SET_NO_NEW_PRIVS, 1)
        families.die_with_parent(keeper)  # after the uid, whose change clears this
        if ruleset is not None:
            restrict(ruleset)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WAKES)
        name, value = orders.mark
        os.execve(command[0], command, {**os.environ, name: value})
    except OSError as error:
        print(f"{command[0]} cannot be started in its sandbox: {error}", file=sys.stderr)
    finally:
        os._exit(1)


def _let_go() -> None:
    """Close the worker's descriptors: its channel and output must end with it."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))


def _wait_for(child: int) -> int:
    """Reap children until this one ends; return its exit code as a shell does."""
    while signal.sigwait(WAKES) != signal.SIGTERM:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == child:
                    code = os.waitstatus_to_exitcode(ended[1])
                    return code if code >= 0 else 128 - code
    return 1


if __name__ == "__main__":
    main()
