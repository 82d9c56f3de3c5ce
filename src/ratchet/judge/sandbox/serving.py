"""The loops of a worker that answers the judge, and of a zygote that forks workers. No torch.

A zygote holds torch and runs no thread. A fork starts in milliseconds; a new process imports torch
for over a second.
"""

from __future__ import annotations

import _locale
import contextlib
import ctypes
import functools
import gc
import os
import platform
import resource
import signal
import sys
import traceback
import warnings
import zlib
from collections.abc import Callable, Mapping
from typing import Final, NoReturn

from ratchet.base.errors import RatchetError
from ratchet.base.process import families
from ratchet.base.process.channel import (
    Channel,
    ChannelClosed,
    Message,
    close_descriptors,
    inherited,
)
from ratchet.judge.sandbox import privileges
from ratchet.judge.sandbox.confine import confine
from ratchet.judge.sandbox.shared_memory import shift_heap

READY: Final = {"ready": True}
UNPLACED: Final = "unplaced"
"""In the answer to `load`, and an attribute of an entry: the names of a problem's state that a
model has no place for."""
CHANGED: Final = "changed"
"""In the answer to `prepare`: what earlier calls left changed in their process, in words."""
Reply = tuple[Message, list[int]]  # An answer, and the descriptors that go with it
Answer = Callable[[Message, list[int]], Reply]
Run = Callable[[Message, list[int]], None]
"""Does the work of a fork, given its order and the descriptors that came with it."""


_serving: Channel | None = None


def ask_judge(question: Message) -> Reply:
    """Ask the judge in the middle of an order; return its answer and descriptors."""
    assert _serving is not None, "no order is being carried out"
    _serving.send(question)
    return _serving.receive()


def serve(channel: Channel, answer: Answer) -> None:
    """Answer messages until the judge closes the channel."""
    global _serving
    _serving = channel
    while True:
        try:
            message, descriptors = channel.receive()
        except ChannelClosed:
            return
        try:
            reply, handed = answer(message, descriptors)
        except (Exception, SystemExit) as error:  # the process boundary: the judge decides
            traceback.print_exc()
            reply, handed = {"error": describe_error(error)}, []
        try:
            channel.send(reply, handed)
        except (TypeError, ValueError) as error:  # the answer is not JSON
            channel.send({"error": describe_error(error)})
        close_descriptors(handed)
        if message["do"] != "load":  # a loaded library may be looked up again by its descriptor
            close_descriptors(descriptors)


def serve_candidate(channel: Channel, answer: Answer) -> None:
    """Report to the judge before any candidate code runs, then answer messages.

    A failure before that report is the machine's fault, not the kernel's.
    """
    channel.send(READY)
    serve(channel, answer)


def describe_error(error: BaseException) -> Message:
    """Return an error as the judge reads it; `known` marks Ratchet's own one-line messages."""
    known = isinstance(error, RatchetError)
    return {"kind": type(error).__name__, "message": str(error)[:1000], "known": known}


def serve_forks(channel: Channel, run: Run) -> NoReturn:
    """Fork for each order, and report how forks ended, until the judge closes the channel.

    No fork's garbage collection looks at objects that exist by now.
    """
    gc.collect()
    gc.freeze()
    while True:
        try:
            message, descriptors = channel.receive()
        except ChannelClosed:
            os._exit(0)
        if message["do"] == "fork":
            _fork(channel, run, message, descriptors)
        else:
            channel.send({"code": _exit_code(message["pid"], wait=message["do"] == "reap")})
        close_descriptors(descriptors)


def _fork(channel: Channel, run: Run, order: Message, descriptors: list[int]) -> None:
    """Fork. The child answers, so the kernel tells the judge which process it is."""
    zygote = os.getpid()
    if os.fork():
        return
    try:
        families.die_with_parent(zygote)
        channel.send({"pid": os.getpid()})
        channel.close()
        run(order, descriptors)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _exit_code(pid: int, *, wait: bool) -> int | None:
    """Return a fork's exit code (negative: the signal), or None while it lives."""
    if wait:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return families.exit_code(pid)


# The state of a process that a kernel's calls must leave as it was: their caller goes on in it.
#
# In training that process is the user's. A thread that flushes tiny values to zero or rounds
# upward, one that may run on one core alone, or torch's generator set to one seed change what
# comes after. What it tells is a claim, since it lives in the candidate's
# process.

State = Mapping[str, str]  # Names of what is left alone, with its values in words
ENVIRONMENT_BYTES: Final = 256  # More than any machine's fenv_t takes
X86, ARM = ("x86_64", "AMD64"), ("aarch64", "arm64")
SIGNALS: Final = ("SigBlk:", "SigIgn:")  # Lines of /proc/self/status
OF_THREADS: Final = 3 << 31
"""Signals 32 and 33, which the C library handles once there are threads (signal(7))."""
KEPT: Final = {"its dumps": 3, "how late its timers are": 30, "its lack of huge pages": 42}
"""PR_GET_DUMPABLE, PR_GET_TIMERSLACK (ns) and PR_GET_THP_DISABLE of prctl(2)."""
ASKED: Final = 0xFFFFFFFF  # Of personality(2): change nothing
VARIABLES: Final = (
    *(
        b"OMP_",
        b"GOMP_",
        b"KMP_",
        b"MKL_",
        b"OPENBLAS_",
        b"PYTORCH_",
        b"NCCL_",
        b"MALLOC_",
        b"GLIBC_TUNABLES=",
        b"TZ=",
        b"LD_",
        b"PATH=",
        b"PYTHON",
        b"HOME=",
        b"TMPDIR=",
        b"LANG",
        b"LC_",
    ),
    *(b"CUDA_VISIBLE_DEVICES=", b"HIP_VISIBLE_DEVICES=", b"ROCR_VISIBLE_DEVICES="),
)
"""Beginnings of variables that programs read later; a compiler sets others of its own."""
OPENMP: Final = ("libgomp.so.1", "libomp.so")
MXCSR_AT: Final = 28
LIMITS: Final = sorted(name for name in vars(resource) if name.startswith("RLIMIT_"))
TIMERS: Final = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
FLAGS: Final = 0x3F  # The bits of MXCSR that arithmetic sets (Intel's manual, volume 1, 10.2.3)
MOST_NAMED: Final = 4


def process_state() -> State:
    """Return how this thread computes, where it may run, and what programs it starts would get."""
    mask = os.umask(0)
    os.umask(mask)
    limits = [resource.getrlimit(getattr(resource, name)) for name in LIMITS]
    return {
        "the floating-point mode": _mode(),
        "the cores it may run on": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
        "OpenMP's threads": _openmp_threads(),
        "the environment": _environment(),
        "the working folder": os.getcwd(),
        "the mask of new files": f"{mask:o}",
        "blocked and ignored signals": signals(*SIGNALS),
        "its priority": f"{os.getpriority(os.PRIO_PROCESS, 0)}, {os.sched_getscheduler(0)}",
        "its limits": str(limits),
        "its timers": ", ".join("on" if any(signal.getitimer(one)) else "off" for one in TIMERS),
        "its locale": _locale.setlocale(_locale.LC_ALL),
        "its personality": f"{_libc().personality(ASKED):#x}",
        **{name: str(_libc().prctl(one, 0, 0, 0, 0)) for name, one in KEPT.items()},
    }


def _environment() -> str:
    """Return a digest of the C library's environment, which Python's may not show."""
    listed = ctypes.POINTER(ctypes.c_char_p).in_dll(_libc(), "environ")
    found, at = [], 0
    while listed and (one := listed[at]):
        found += [one] if one.startswith(VARIABLES) else []
        at += 1
    return f"{zlib.crc32(bytes(1).join(sorted(found))):08x}"


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def signals(*lines: str) -> str:
    """Return the signals of these lines of /proc/self/status that were not there at first.

    Libraries such as LLVM set handlers of their own, also of what Python ignores.
    """
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        found = {line[:7]: int(line.split()[1], 16) for line in file if line.startswith(lines)}
    now = {name: mask & ~OF_THREADS for name, mask in found.items()}
    return ", ".join(f"{now[one] & ~_first_signals.setdefault(one, now[one]):x}" for one in lines)


_first_signals: dict[str, int] = {}


def _openmp_threads() -> str:
    """Return how many threads OpenMP would start, and whether it may start fewer, if it is here."""
    if not _openmp:
        for name in OPENMP:
            with contextlib.suppress(OSError):
                _openmp.append(ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_LAZY))
    for one in _openmp[:1]:
        fewer = ", or fewer" if one.omp_get_dynamic() else ""
        return f"{one.omp_get_max_threads()}{fewer}"
    return ""


_openmp: list[ctypes.CDLL] = []


def changes(before: State, now: State) -> list[str]:
    """Return what changed, in words, of what is known now."""
    found = [
        f"{one} ({before[one]} to {new})"
        for one, new in now.items()
        if before.get(one) not in ("", None, new)  # a library may have come since
    ]
    return found[:MOST_NAMED]


def _mode() -> str:
    """Return the control words of fegetenv(3), without flags; "" where they are not known."""
    held = ctypes.create_string_buffer(ENVIRONMENT_BYTES)
    read = getattr(_libc(), "fegetenv", None)  # libm's, which an interpreter may lack
    if platform.machine() not in (*X86, *ARM) or read is None or read(held):
        return ""

    def word(at: int) -> int:
        return int.from_bytes(held.raw[at : at + 4], "little")

    if platform.machine() in ARM:
        return f"{word(0):#x}"
    return f"{word(MXCSR_AT) & ~FLAGS:#x}, x87 {word(0) & 0xFFFF:#x}"


# Forks of a zygote in the sandbox, each in namespaces of its own.
#
# A fork enters new namespaces (`privileges`), where its PID 1 forks the worker, which confines
# itself as a new process does. No candidate can reach the zygote: it lives in a process namespace
# above theirs, its memory is hidden, and a fork first of all closes the zygote's channel.

FIRST_FREE = 3  # The descriptor after standard input, output and error
Work = Callable[[Message, int], None]
"""Does a worker's work, given its order and its channel's descriptor: -1 for a trial."""


def serve_enclosed(work: Work, prepare: Callable[[Message], None] | None = None) -> NoReturn:
    """Try one fork, report whether it worked, then fork for each order; argv holds the channel.

    `prepare` does first what all forks need, such as imports.
    """
    channel = inherited(int(sys.argv[1]))
    families.hide_memory()
    message, _ = channel.receive()
    if prepare is not None:
        prepare(message)
    channel.send({"unable": _hindrance(message, work)})
    serve_forks(channel, lambda order, descriptors: _run(order, descriptors, work))


def _hindrance(order: Message, work: Work) -> str:
    """Return why candidates cannot be forked here; "" if they can."""
    trial = quiet_fork()
    if not trial:
        try:
            _run(order, [], work)
        except OSError:
            os._exit(1)
    if os.waitstatus_to_exitcode(os.waitpid(trial, 0)[1]) != 0:
        return "a fork cannot enter namespaces inside the sandbox, or open the GPU there"
    if len(os.listdir("/proc/self/task")) > 1:
        return "a thread runs in the process that would be forked"
    with open("/proc/self/maps", encoding="utf-8") as maps:
        shared = [line for line in maps if line.split()[1][1::2] == "ws"]
    if shared:
        return "the process that would be forked shares memory"
    return ""


def quiet_fork() -> int:
    """Fork without Python's warning of threads.

    A BLAS library ends its idle threads before a fork, and starts none after it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _run(order: Message, descriptors: list[int], work: Work) -> None:
    """Leave the zygote's namespaces, start PID 1 of the new ones, and wait for it.

    Without descriptors this is a trial that starts no worker.
    """
    channel = -1
    if descriptors:
        channel, output = descriptors
        os.dup2(output, 1)
        os.dup2(output, 2)
    os.closerange(FIRST_FREE, channel)
    os.closerange(max(FIRST_FREE, channel + 1), os.sysconf("SC_OPEN_MAX"))
    families.prctl(families.PR_SET_DUMPABLE, 1)  # else its uid map cannot be written
    privileges.unshare()
    families.hide_memory()
    child = os.fork()
    if not child:
        _first(order, channel, work)
    os.closerange(FIRST_FREE, channel + 1)
    privileges.guard(child)


def _first(order: Message, channel: int, work: Work) -> None:
    """Run as PID 1 of the new namespaces: its end ends everything in them."""
    families.die_with_parent(0)  # the parent is outside of the namespace
    os.setsid()
    privileges.cover(order["tmp_bytes"], order["shared_memory_bytes"])
    child = os.fork()
    if not child:
        _confined(order, channel, work)
    os.closerange(FIRST_FREE, channel + 1)
    privileges.drop_bounding()
    privileges.drop_capabilities()
    privileges.guard(child)


def _confined(order: Message, channel: int, work: Work) -> NoReturn:
    """Run the candidate's worker, confined like a new process."""
    families.prctl(families.PR_SET_DUMPABLE, 1)
    privileges.drop_bounding()
    confine(order["limits"])
    privileges.drop_capabilities()
    families.prctl(families.PR_SET_DUMPABLE, 1)  # a change of the uid clears it
    shift_heap()
    work(order, channel)
    os._exit(0)
