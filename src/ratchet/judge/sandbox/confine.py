"""The limits that a candidate's worker sets on itself before candidate code runs. No torch.

Besides rlimits, a filter denies system calls that no kernel needs.
"""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import errno
import json
import os
import resource
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ratchet.base.errors import JudgeError
from ratchet.base.process import families

# Calls that reach other processes, or files that Landlock does not guard, are denied only without
# namespaces. Numbers: arch/x86/entry/syscalls/syscall_64.tbl of Linux. On other architectures
# there is no filter, and the isolation's name mentions none.

ARCHITECTURE: Final = 0xC000003E  # AUDIT_ARCH_X86_64 of linux/audit.h
FOREIGN_CALLS: Final = 0x4000_0000  # The first number of the x32 interface
NUMBERS: Final = {
    "ioctl": 16, "shmget": 29, "socket": 41, "connect": 42, "clone": 56, "kill": 62,
    "semget": 64, "msgget": 68, "fcntl": 72, "flock": 73, "truncate": 76, "chmod": 90, "fchmod": 91,
    "chown": 92, "fchown": 93, "lchown": 94, "ptrace": 101, "rt_sigqueueinfo": 129, "utime": 132,
    "setpriority": 141, "sched_setparam": 142, "sched_setscheduler": 144, "pivot_root": 155,
    "prctl": 157, "chroot": 161, "mount": 165, "umount2": 166, "setxattr": 188, "lsetxattr": 189,
    "fsetxattr": 190, "removexattr": 197, "lremovexattr": 198, "fremovexattr": 199, "tkill": 200,
    "sched_setaffinity": 203, "timer_create": 222, "tgkill": 234, "utimes": 235, "mq_open": 240,
    "add_key": 248, "request_key": 249, "keyctl": 250, "ioprio_set": 251, "inotify_init": 253,
    "fchownat": 260, "futimesat": 261, "fchmodat": 268, "unshare": 272, "utimensat": 280,
    "timerfd_create": 283, "inotify_init1": 294, "rt_tgsigqueueinfo": 297,
    "perf_event_open": 298, "fanotify_init": 300, "prlimit64": 302, "open_by_handle_at": 304,
    "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312,
    "sched_setattr": 314, "seccomp": 317, "bpf": 321, "userfaultfd": 323,
    "pidfd_send_signal": 424, "io_uring_setup": 425, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "clone3": 435, "pidfd_getfd": 438, "process_madvise": 440, "fchmodat2": 452,
    "setxattrat": 463, "removexattrat": 466, "file_setattr": 469,
}  # fmt: skip
DENIED: Final = (
    # Other processes, and parts of the kernel that arithmetic does not need.
    *("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd"),
    *("perf_event_open", "bpf", "userfaultfd", "io_uring_setup", "add_key", "request_key"),
    *("keyctl", "open_by_handle_at", "unshare", "setns", "mount", "umount2", "pivot_root"),
    *("chroot", "open_tree", "move_mount", "fsopen"),
    # Objects that outlive a process, or reach beyond it.
    *("socket", "shmget", "semget", "msgget", "mq_open"),
    # What others do with a file that every sandbox shows: its inode is one.
    *("inotify_init", "inotify_init1", "fanotify_init"),
    # A timer can send SIGCONT and wake a process that the judge has stopped. A timerfd interrupts
    # the rival while its owner is stopped.
    *("timer_create", "timerfd_create"),
)
DENIED_AMONG_OTHERS: Final = (
    # Sockets may be allowed for the GPU's driver, but none connects to another process.
    "connect",
    *("pidfd_send_signal", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "tkill"),
    *("setpriority", "ioprio_set"),
    # Files of its user, which Landlock does not cover: modes, owners, times, attributes, and length
    # before ABI 3.
    *("chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat"),
    *("utime", "utimes", "futimesat", "utimensat", "setxattr", "lsetxattr", "fsetxattr"),
    *("setxattrat", "removexattr", "lremovexattr", "fremovexattr", "removexattrat"),
    *("file_setattr", "truncate"),
)
OF_ITSELF_AMONG_OTHERS: Final = (
    *("prlimit64", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"),
)
"""Allowed only with a first argument of 0, the caller. Other processes of the same user (the judge,
the rival) could get a limit that ends them, or cores and a priority that make them slow."""
NEW_NAMESPACES: Final = 0x7E02_0000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET of linux/sched.h."""
F_SETOWN, F_SETSIG, F_SETOWN_EX = 8, 10, 15
"""Commands of fcntl that set who gets a descriptor's signals: SIGIO would end such a process."""
OF_SHARED_FILES: Final = (5, 36, 1024, 1026)
"""F_GETLK, F_OFD_GETLK, F_SETLEASE and F_NOTIFY tell what another sandbox does with a file."""
LOCKS: Final = (6, 7, 37, 38)
"""F_SETLK, F_SETLKW, F_OFD_SETLK and F_OFD_SETLKW. They and flock succeed and do nothing: by a lock
on a file that every sandbox shows, one candidate could tell another its answers. Builds use locks,
among processes that can do without."""
FILE_IOCTLS: Final = (0x8901, 0x8902, 0x4008_6602, 0x4004_6602, 0x401C_5820, 0x4080_6685)
"""FIOSETOWN and SIOCSPGRP do the same. FS_IOC_SETFLAGS, its 32-bit form, FS_IOC_FSSETXATTR and
FS_IOC_ENABLE_VERITY of linux/fs.h change a file that is open for reading."""
AF_UNIX: Final = 1
OF_DATAGRAMS: Final = 2
"""The bit of SOCK_DGRAM and SOCK_RAW that SOCK_STREAM and SOCK_SEQPACKET lack."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

LOAD, IF_EQUAL, IF_AT_LEAST, IF_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, DENY, NOT_THERE = 0x7FFF_0000, 0x0005_0000 | errno.EPERM, 0x0005_0000 | errno.ENOSYS
DO_NOTHING: Final = 0x0005_0000  # The call returns 0
KILL: Final = 0x8000_0000
CALL_OFFSET, ARCHITECTURE_OFFSET, ARGUMENTS_OFFSET = 0, 4, 16
SET_MODE_FILTER, ALL_THREADS = 1, 1

Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, operand: struct sock_filter of linux/filter.h."""


def known() -> bool:
    """Return True if this machine can filter calls: x86-64, and a kernel with seccomp."""
    return os.uname().machine == "x86_64" and Path("/proc/sys/kernel/seccomp").is_dir()


def deny_needless(*, among_others: bool, local_sockets: bool = False) -> None:
    """Deny needless calls to this process, all its threads and all that it starts.

    With `local_sockets`, local sockets may be made: CUDA's driver binds an abstract one
    (`cuda-uvmfd-...`) as it starts. A network namespace, or Landlock since ABI 6, keeps it private;
    without namespaces no call may connect to one. `no_new_privs` must be set before. Raises
    JudgeError if the kernel refuses the filter.
    """
    found = program(os.getpid(), among_others, local_sockets)
    body = b"".join(struct.pack("=HBBI", *one) for one in found)
    held = ctypes.create_string_buffer(body, len(body))
    header = struct.pack("@HP", len(body) // 8, ctypes.addressof(held))
    libc = ctypes.CDLL(None, use_errno=True)
    number = ctypes.c_long(NUMBERS["seccomp"])
    if libc.syscall(number, SET_MODE_FILTER, ALL_THREADS, ctypes.c_char_p(header)) != 0:
        raise JudgeError(f"no filter of system calls: {os.strerror(ctypes.get_errno())}")


def program(own_pid: int, among_others: bool, local_sockets: bool = False) -> list[Instruction]:
    """Return the filter; `among_others` is for a process without its own namespaces."""
    found = [
        (LOAD, 0, 0, ARCHITECTURE_OFFSET),
        (IF_EQUAL, 1, 0, ARCHITECTURE),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, CALL_OFFSET),
        (IF_AT_LEAST, 0, 1, FOREIGN_CALLS),
        (RETURN, 0, 0, DENY),
    ]
    for name in (*DENIED, *(DENIED_AMONG_OTHERS if among_others else ())):
        if name == "socket" and local_sockets:
            found += _local_sockets()
            continue
        found += [(IF_EQUAL, 0, 1, NUMBERS[name]), (RETURN, 0, 0, DENY)]
    # Its flags lie in memory, which a filter cannot read. Libraries then use clone.
    found += [(IF_EQUAL, 0, 1, NUMBERS["clone3"]), (RETURN, 0, 0, NOT_THERE)]
    found += _deny_if("clone", 0, [(IF_ANY_BIT, NEW_NAMESPACES)])
    owners = (F_SETSIG, F_SETOWN, F_SETOWN_EX) if among_others else (F_SETSIG,)
    denied = [(IF_EQUAL, what) for what in (*owners, *OF_SHARED_FILES)]
    found += _deny_if("fcntl", 1, denied, skipped=LOCKS)
    found += [(IF_EQUAL, 0, 1, NUMBERS["flock"]), (RETURN, 0, 0, DO_NOTHING)]
    if among_others:
        found += _deny_if("ioctl", 1, [(IF_EQUAL, what) for what in FILE_IOCTLS])
        places = [(IF_EQUAL, PR_SET_PDEATHSIG), (IF_EQUAL, PR_SET_CHILD_SUBREAPER)]
        found += _deny_if("prctl", 0, places)
        found += _allow_only("kill", 0, own_pid) + _allow_only("tgkill", 0, own_pid)
        for name in OF_ITSELF_AMONG_OTHERS:
            found += _allow_only(name, 0, 0)
    return [*found, (RETURN, 0, 0, ALLOW)]


def _local_sockets() -> list[Instruction]:
    """Allow local sockets, except for datagrams, which need no connection."""
    body: list[Instruction] = [
        (LOAD, 0, 0, ARGUMENTS_OFFSET),
        (IF_EQUAL, 1, 0, AF_UNIX),
        (RETURN, 0, 0, DENY),
        (LOAD, 0, 0, ARGUMENTS_OFFSET + 8),
        (IF_ANY_BIT, 0, 1, OF_DATAGRAMS),
        (RETURN, 0, 0, DENY),
        (RETURN, 0, 0, ALLOW),
    ]
    return [(IF_EQUAL, 0, len(body), NUMBERS["socket"]), *body]


def _deny_if(
    name: str, argument: int, tests: Sequence[tuple[int, int]], *, skipped: Sequence[int] = ()
) -> list[Instruction]:
    """Deny a call if the low word of an argument passes one of the tests, else allow it.

    With one of the `skipped` values it does nothing and succeeds.
    """
    body: list[Instruction] = [(LOAD, 0, 0, ARGUMENTS_OFFSET + 8 * argument)]
    for test, operand in tests:
        body += [(test, 0, 1, operand), (RETURN, 0, 0, DENY)]
    for value in skipped:
        body += [(IF_EQUAL, 0, 1, value), (RETURN, 0, 0, DO_NOTHING)]
    body.append((RETURN, 0, 0, ALLOW))
    return [(IF_EQUAL, 0, len(body), NUMBERS[name]), *body]


def _allow_only(name: str, argument: int, value: int) -> list[Instruction]:
    body: list[Instruction] = [
        (LOAD, 0, 0, ARGUMENTS_OFFSET + 8 * argument),
        (IF_EQUAL, 0, 1, value),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, DENY),
    ]
    return [(IF_EQUAL, 0, len(body), NUMBERS[name]), *body]


EXTENSIONS: Final = "TORCH_EXTENSIONS_DIR"
"""Names the folder in which torch.utils.cpp_extension builds."""
FIRST_TO_GO = "1000"  # oom_score_adj of the process that the kernel ends first if memory runs out


def confine(limits_json: str) -> None:
    """Set the limits that the judge asked for. A failure ends the process."""
    limits = json.loads(limits_json)
    codecs.lookup("ascii")  # loads the codec while the interpreter's folder is readable
    with contextlib.suppress(OSError):  # if it cannot be set, the limits below still hold
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_GO, encoding="ascii")
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, limits["file_bytes"])
    if limits["address_space_bytes"] is not None:
        _limit(resource.RLIMIT_AS, limits["address_space_bytes"])
    _limit(resource.RLIMIT_CPU, limits["cpu_time_s"])
    _limit(resource.RLIMIT_NPROC, limits["processes"])
    if limits["uid"] is not None:
        os.setgroups(limits["groups"])
        os.setresgid(limits["uid"], limits["uid"], limits["uid"])
        os.setresuid(limits["uid"], limits["uid"], limits["uid"])
    families.prctl(families.PR_SET_NO_NEW_PRIVS, 1)
    families.adopt_orphans()
    if limits["filtered"]:
        deny_needless(among_others=limits["among_others"], local_sockets=limits["local_sockets"])


def _limit(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (bound, bound))
