"""Whole families of processes on Linux: list, stop, resume, end; and a bounded tail of output.

A family is a process, its descendants, and everything in its session or process group. What has
been orphaned stays in the family because the workers make themselves subreapers (or live in a
process namespace of their own). A process is dead when its last thread is, not when its first is.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
TAIL_BYTES = 16 << 10
SWEEPS = 100
"""A family that still grows after this many sweeps is a fork bomb; killing goes on regardless."""
STANDING = "TtZX"  # States of a thread that runs no code: stopped, traced, dead
SETTLE_S = 0.0002
STANDING_S = 3.0  # Time for a family to stand still; on a busy machine a signal comes late
EXEC_S = 0.01  # Time for a vfork's child to reach its execve, on an idle core
WAKING_S = 0.001
"""A thread that ran this long while it was stopped was woken; less is the end of its stopping."""

LONGEST_WAIT_S = 2e6  # poll(2) counts milliseconds in an int

Work = Mapping[tuple[int, int], tuple[int, int]]
"""Nanoseconds on a core and switches of each thread, by the ids of its process and its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessState:
    """One line of /proc/PID/stat: what the kernel says of a process."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    threads: int  # Threads that are left: the first may have ended alone, which looks like a zombie

    @property
    def alive(self) -> bool:
        """True if any of its threads can still run."""
        return self.state not in "ZX" or self.threads > 1


def prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def die_with_parent(parent: int) -> None:
    """End this process when the thread that started it ends; exits at once if it already has."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent died, so that none leaves the family."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def hide_memory() -> None:
    """Keep this process's memory and descriptors from others of the same user."""
    prctl(PR_SET_DUMPABLE, 0)


def read_state(pid: int) -> ProcessState | None:
    """The state of one process, or None when it is gone."""
    fields = stat_fields(f"/proc/{pid}/stat")
    if not fields:
        return None
    parent, group, session = (int(field) for field in fields[1:4])
    return ProcessState(
        pid=pid,
        state=chr(fields[0][0]),
        parent=parent,
        group=group,
        session=session,
        threads=int(fields[17]),
    )


def family(*roots: int, enclosed: bool = False) -> dict[int, ProcessState]:
    """Every living process of the families of `roots`, by pid. Zombies are left out.

    One that is `enclosed` has a process namespace of its own, or is trusted to keep its orphans:
    all of its family are descendants, and the rest of the machine's processes need not be read.
    """
    if enclosed and _lists_children():
        return _descendants(*roots)
    states = [read_state(int(name)) for name in os.listdir("/proc") if name.isdigit()]
    alive = [state for state in states if state is not None]
    children: dict[int, list[ProcessState]] = {}
    for state in alive:
        children.setdefault(state.parent, []).append(state)
    waiting = [s for s in alive if not {s.pid, s.group, s.session}.isdisjoint(roots)]
    found: dict[int, ProcessState] = {}
    while waiting:
        state = waiting.pop()
        if state.pid not in found and state.pid != os.getpid():
            found[state.pid] = state
            waiting.extend(children.get(state.pid, ()))
    return {pid: state for pid, state in found.items() if state.alive}


@functools.cache
def _lists_children() -> bool:
    """Return True if this kernel tells a thread's children (CONFIG_PROC_CHILDREN)."""
    return os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children")


def _descendants(*roots: int) -> dict[int, ProcessState]:
    """Processes and their descendants, as exact as proc(5) promises it: while none of them runs."""
    found: dict[int, ProcessState] = {}
    waiting = [*roots]
    while waiting:
        pid = waiting.pop()
        state = read_state(pid)
        if state is None or pid in found:
            continue
        found[pid] = state
        for thread in thread_ids(pid):
            waiting.extend(map(int, _read(f"/proc/{pid}/task/{thread}/children").split()))
    return {pid: state for pid, state in found.items() if state.alive}


def of_user(uid: int) -> list[int]:
    """Every living process of a user; asked of the kernel, as a process can hide its folder."""
    wanted = b"\nUid:\t%d\t" % uid
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    states = [read_state(pid) for pid in pids if wanted in _read(f"/proc/{pid}/status")]
    return [state.pid for state in states if state is not None and state.alive]


def threads_below(root: int) -> int:
    """Return the number of threads of a process and its descendants."""
    return sum(state.threads for state in family(root, enclosed=True).values())


def threads_of(uid: int) -> int:
    states = [read_state(pid) for pid in of_user(uid)]
    return sum(state.threads for state in states if state is not None)


def stop(
    root: int,
    *,
    settle_s: float = STANDING_S,
    enclosed: bool = False,
    spared: Collection[int] = (),
) -> list[int] | None:
    """SIGSTOP the whole family until all threads stand; its pids, or None if one still runs.

    Those that are `spared` go on: they must be trusted, and start nothing.
    A thread that has called vfork(2) (as posix_spawn does) stands only once its child has called
    execve, which a stopped child never does: that child is let run for EXEC_S at a time.
    """
    deadline = time.monotonic() + settle_s
    found: dict[int, ProcessState] = {}
    while True:
        running = [pid for pid in found if not _stands(pid)]
        waiting: set[int] = set()
        if not running:
            now = family(root, enclosed=enclosed)
            for pid in spared:
                now.pop(pid, None)
            if found and set(now) <= set(found):
                return list(now)  # none was born between the listing and the last one's standing
            running, found = [pid for pid in now if pid not in found], now
            if not found:
                return []
        else:
            # In state D no signal but SIGKILL reaches a thread: it waits for a vfork's child, say.
            waiting = {pid for pid in running if "D" in thread_states(pid)}
        if time.monotonic() > deadline:
            return None
        awaited = [pid for pid, state in found.items() if state.parent in waiting]
        _signal_each([pid for pid in running if pid not in awaited], signal.SIGSTOP)
        if awaited and time.monotonic() > deadline - settle_s + EXEC_S:  # no mere wait for a disk
            _signal_each(awaited, signal.SIGCONT)
            time.sleep(EXEC_S)
            _signal_each(awaited, signal.SIGSTOP)
        time.sleep(SETTLE_S)


def hold(child: int) -> bool:
    """SIGSTOP to a child that is trusted to be alone; whether it stands, and has not ended."""
    os.kill(child, signal.SIGSTOP)
    found = os.waitid(os.P_PID, child, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    return found is not None and found.si_code == os.CLD_STOPPED


def halt(members: Sequence[int]) -> bool:
    """SIGSTOP these processes alone until all their threads stand; whether they do in time."""
    deadline = time.monotonic() + STANDING_S
    running = list(members)
    while running:
        late = time.monotonic() > deadline
        _signal_each(running, signal.SIGSTOP)
        running = [pid for pid in running if not _stands(pid)]
        if late and running:  # looked at once more, as this process too may have had to wait
            return False
    return True


def resume(stopped: Sequence[int]) -> None:
    """SIGCONT to each process of a family that was stopped."""
    _signal_each(stopped, signal.SIGCONT)


def kill(stopped: Sequence[int]) -> None:
    """SIGKILL to each process of a family that was stopped."""
    _signal_each(stopped, signal.SIGKILL)


def work_done(stopped: Sequence[int]) -> Work:
    """Return the work of each thread so far. A family that stands has no new members."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for pid in stopped:
        for thread in thread_ids(pid):
            fields = _read(f"/proc/{pid}/task/{thread}/schedstat").split()
            if len(fields) == 3:  # a kernel without it says nothing here
                found[pid, thread] = (int(fields[0]), int(fields[2]))
    return found


def waited_s(pid: int) -> float:
    """Return how long a process's first thread could run and had no core; 0 if it is not told."""
    fields = _read(f"/proc/{pid}/schedstat").split()
    return int(fields[1]) / 1e9 if len(fields) == 3 else 0.0


def has_worked(since: Work) -> bool:
    """True if a family that was stopped has run since: a timer can send SIGCONT to its owner."""
    for thread, (time_ns, switches) in work_done([*{pid for pid, _ in since}]).items():
        before_ns, before = since.get(thread, (0, 0))
        if time_ns - before_ns > WAKING_S * 1e9 and switches - before >= 2:
            return True
    return False


def _stands(pid: int) -> bool:
    """True if no thread of a process runs: the first may stand while another is on a core."""
    return all(state in STANDING for state in thread_states(pid))


def thread_ids(pid: int) -> Iterator[int]:
    """The threads of a process; none where it is gone."""
    with contextlib.suppress(OSError):
        yield from (int(name) for name in os.listdir(f"/proc/{pid}/task"))


def has_ended(pid: int, thread: int) -> bool:
    """Return True if a thread is gone, or only waits to be reaped."""
    fields = stat_fields(f"/proc/{pid}/task/{thread}/stat")
    return not fields or chr(fields[0][0]) in "ZX"


def thread_states(pid: int) -> list[str]:
    """Return the states of a process's threads, as letters of proc(5)."""
    stats = [stat_fields(f"/proc/{pid}/task/{thread}/stat") for thread in thread_ids(pid)]
    return [chr(fields[0][0]) for fields in stats if fields]


def stat_fields(path: str) -> list[bytes]:
    """Return the fields of a stat file from the state on; none if the process is gone."""
    text = _read(path)
    return text[text.rfind(b")") + 2 :].split()  # the command may hold spaces and brackets


def _read(path: str) -> bytes:
    """A file of /proc, empty where the process is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    found = b""
    try:
        while part := os.read(descriptor, 1 << 16):
            found += part
    except OSError:
        return b""
    finally:
        os.close(descriptor)
    return found


def end(root: int, *, enclosed: bool = False) -> None:
    """SIGKILL the whole family, stopped first so that it cannot grow meanwhile.

    `root` must not have been reaped: its number then stays its own. It goes last, so that nobody's
    parent is lost.
    """
    end_below(root, enclosed=enclosed)
    for _ in range(SWEEPS):
        if not family(root, enclosed=enclosed):
            return
        _signal_each([root], signal.SIGKILL)
        end_below(root, enclosed=enclosed)
        time.sleep(0.002)


def end_session(leader: int) -> None:
    """SIGKILL all that a child started, which leads a session and must not have been reaped.

    Its group is stopped first, so that a shell does not begin its next command. Once the child has
    ended, its children are nobody's descendants: one call reaches its group, without reading /proc.
    """
    state = read_state(leader)
    if state is not None and state.alive:
        _signal_group(leader, signal.SIGSTOP)
        end(leader)
    _signal_group(leader, signal.SIGKILL)


def _signal_group(leader: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def end_below(root: int, *, enclosed: bool = True) -> None:
    """SIGKILL all of a family but its head, which may be this process."""
    for _ in range(SWEEPS):
        members = _below(root, enclosed)
        _signal_each(members, signal.SIGSTOP)
        if set(_below(root, enclosed)) <= set(members):
            break
    _kill_all(lambda: _below(root, enclosed))


def _below(root: int, enclosed: bool) -> list[int]:
    return [pid for pid in family(root, enclosed=enclosed) if pid != root]


def end_user(uid: int) -> None:
    """SIGKILL every process of a user: for a uid that nothing else has."""
    _kill_all(lambda: of_user(uid))


def _kill_all(living: Callable[[], Sequence[int]]) -> None:
    """SIGKILL all that still live, sweep after sweep until none does."""
    for _ in range(SWEEPS):
        members = living()
        if not members:
            return
        _signal_each(members, signal.SIGKILL)
        time.sleep(0.002)


def _signal_each(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def has_ended_within(child: int, limit_s: float) -> bool:
    """Wait for a child, at most so long, and leave it unreaped; return whether it ended."""
    process = os.pidfd_open(child)
    try:
        return is_readable(process, limit_s)
    finally:
        os.close(process)


def is_readable(descriptor: int, limit_s: float = 0.0) -> bool:
    """Return whether a descriptor has something to read, or becomes so in time."""
    poller = select.poll()  # select(2) takes no descriptor above 1023
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(1e3 * max(0.0, min(limit_s, LONGEST_WAIT_S))))


def exit_code(pid: int) -> int | None:
    """The exit code of our child (negative: the signal), left unreaped; None while it lives."""
    try:
        result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    if result is None:
        return None
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


def describe_exit(code: int | None) -> str:
    """'exit code 3' or 'SIGSEGV', as words for a message."""
    if code is None:
        return "no exit code"
    number = -code if code < 0 else code - 128  # bubblewrap passes a signal on as 128 + number
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"exit code {code}" if code >= 0 else f"signal {number}"


def anonymous_bytes(pid: int) -> int:
    """Return the memory that a process alone holds; 0 if it has ended or the kernel tells none."""
    return _status_bytes(pid, "RssAnon:")


def resident_bytes(pid: int) -> int:
    """Return the memory of a process, without files: what it alone holds, and what it shares."""
    return _status_bytes(pid, "RssAnon:", "RssShmem:")


def _status_bytes(pid: int, *names: str) -> int:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            found = [line.split()[1] for line in file if line.startswith(names)]
    except OSError:
        return 0
    return sum(map(int, found)) * 1024


class OutputTail:
    """Drains what a child prints, for ever, and keeps only its end.

    A pipe that nobody reads would stop the child; a file would fill the disk.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._kept = b""
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._drain, name="ratchet-output", daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        while True:
            try:
                data = os.read(self._descriptor, 1 << 16)
            except OSError:
                data = b""
            if not data:
                break
            with self._lock:
                self._kept = (self._kept + data)[-TAIL_BYTES:]
        os.close(self._descriptor)

    def text(self, *, settle_s: float = 0.2) -> str:
        """The last 16 KiB; waits so long for what a child that has just died may have said."""
        self._thread.join(settle_s)
        with self._lock:
            return self._kept.decode(errors="replace")

    def last_line(self, *, settle_s: float = 0.2) -> str:
        """The last line that is not blank, at most 300 characters; waits as `text` does."""
        text = self.text(settle_s=settle_s)
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1][-300:] if lines else ""
