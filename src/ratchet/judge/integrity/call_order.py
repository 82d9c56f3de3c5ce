"""See that a compiled kernel makes its calls one after another, though all are revealed at once.

A kernel that finds the other calls' arguments in its process could compute several calls together.
No training step would see that gain, because its calls wait for each other. So in some batches at
secret places the judge stops the process at random moments and reads how far the outputs have come:
all calls before the last one that was begun must be finished. This does not detect results that
were computed elsewhere and are copied out in order.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from ratchet.base.process import families
from ratchet.judge.sandbox.shared_memory import BatchLayout, Slot

# Sample from outside which instruction each thread of a family of processes is at.
#
# At unforeseeable moments the judge stops every member, reads each thread's instruction pointer
# from the kernel (/proc/PID/task/TID/syscall, proc(5): -1, the stack pointer and the instruction
# pointer for a thread outside of a system call), and lets the family go on. This needs no help
# from the family and leaves no trace in it before the first look.

MOST_LOOKS: Final = 40  # At most this many in one batch
SLICES: Final = 16  # Between two looks a family runs for at most this part of a batch
SHORTEST_SLEEP_S: Final = 0.0002
NOT_ALLOWED: Final = (
    "this machine does not let the judge see where a candidate's threads are (give a container "
    "CAP_SYS_PTRACE), or the candidate hides them"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ThreadSample:
    """A thread that was running code of its program, outside of a system call."""

    pid: int
    thread: int
    address: int


class Unseen(Exception):
    """The judge cannot look; the text says why."""


class WatchedFamily:
    """The processes below one, while they are sampled."""

    def __init__(self, root: int, *, wrapped: bool) -> None:
        """Create it while the family is stopped. Its first process, a keeper, only waits.

        If `wrapped`, the first two only wait, bubblewrap's or a zygote's. `worker` is the process
        that the judge started; the candidate started the others.
        """
        self._root = root
        found = families.family(root, enclosed=True)
        first = {pid for pid, one in found.items() if one.parent == root}
        self._guards = {root, *first} if wrapped else {root}
        self._members = set(found) - self._guards
        below = [pid for pid in self._members if found[pid].parent in self._guards]
        # Only the last of these has the worker as its child; a worker adopts its own orphans.
        self.worker = min(below, default=root)

    def look(self, read: Callable[[list[ThreadSample]], None]) -> bool:
        """Stop the family, call `read` with the running threads, let it go on.

        Returns False if no thread ran. Raises Unseen if a process cannot be sampled.
        """
        found: list[ThreadSample] = []

        def see() -> None:
            found.extend(stand for pid in sorted(self._members) for stand in _running(pid))
            read(found)

        try:
            self.hold(see)
        except PermissionError as error:
            raise Unseen(NOT_ALLOWED) from error
        return bool(found)

    def hold(self, do: Callable[[], None]) -> None:
        """Stop the family, call `do`, let it go on. Raises Unseen if it does not stop."""
        try:
            while True:
                if not families.halt(sorted(self._members)):
                    raise Unseen("it does not stand still to be looked at")
                born = self._born()
                if not born:
                    break
                self._members |= born
            do()
        finally:
            families.resume(sorted(self._members))

    def _born(self) -> set[int]:
        """Return members that are not known yet; an orphan hangs below another member."""
        known = self._members | self._guards
        try:
            found = {child for pid in known for child in _children_of(pid)}
        except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
            found = set(families.family(self._root, enclosed=True))
        return found - known


def watch(
    family: WatchedFamily,
    read: Callable[..., None],
    *,
    over: Callable[[], bool],
    expected_s: float,
    draw: Callable[[], float],
) -> None:
    """Sample a batch that has just begun, until it is `over` or MOST_LOOKS times.

    `read(stands, first=...)` gets each look, and whether it was the batch's first: only the first
    comes wholly unannounced. `draw` gives numbers in [0, 1). A batch takes about `expected_s`.
    """
    first, pause_s = True, draw() * expected_s
    for _ in range(MOST_LOOKS):
        wait(pause_s)
        if over():
            return
        first = not family.look(partial(read, first=first)) and first
        pause_s = draw() * expected_s / SLICES


def wait(pause_s: float) -> None:
    """Sleep, or spin if a sleep would take longer."""
    if pause_s > SHORTEST_SLEEP_S:
        time.sleep(pause_s)
        return
    until = time.perf_counter() + pause_s
    while time.perf_counter() < until:
        pass


def _running(pid: int) -> Iterator[ThreadSample]:
    """Yield the threads of a stopped process that were in their program's code."""
    for thread in families.thread_ids(pid):
        try:
            with open(f"/proc/{pid}/task/{thread}/syscall", encoding="ascii") as file:
                fields = file.read().split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        except PermissionError:
            if families.has_ended(pid, thread):  # what is left of it belongs to root
                continue
            raise
        if len(fields) == 3 and fields[0] == "-1":
            yield ThreadSample(pid=pid, thread=thread, address=int(fields[2], 16))


def _children_of(pid: int) -> Iterable[int]:
    """Return the children of a process, read from each of its threads.

    Raises FileNotFoundError if the kernel does not report them.
    """
    found: list[int] = []
    for thread in families.thread_ids(pid):
        try:
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
        except FileNotFoundError:
            if os.path.exists(f"/proc/{pid}/task/{thread}/stat"):
                raise
        except ProcessLookupError:
            continue
    return found


LOOKS: Final = 8  # At most this many in one batch
SPOTS: Final = 4  # Places in each call: the beginning, the end and others in between
SPOT_BYTES: Final = 16


class CallOrder:
    """One batch, looked at while it runs."""

    def __init__(self, layout: BatchLayout, memories: Sequence[int]) -> None:
        """Draw secret spots and read their first bytes."""
        rng = random.SystemRandom()
        self._memories = memories
        calls = range(len(layout.calls))
        self._spots = [_spots(layout.answers(call), rng) for call in calls]
        self._first = self._read()
        self._seen: list[list[list[bytes]]] = []
        self.looked = 0  # Moments at which it was seen at work; known after `conclude`

    def looks(
        self, family: WatchedFamily, expected_s: float
    ) -> Callable[[Callable[[], bool]], None]:
        """Return a function to call once the batch has begun, which takes about `expected_s`.

        It raises Unseen if the family does not stop.
        """
        draw = random.SystemRandom().random

        def note() -> None:
            self._seen.append(self._read())

        def meanwhile(over: Callable[[], bool]) -> None:
            pause_s = draw() * expected_s
            for _ in range(LOOKS):
                wait(pause_s)
                if over():
                    return
                family.hold(note)
                pause_s = draw() * expected_s / LOOKS

        return meanwhile

    def conclude(self) -> str:
        """Return what was out of order, or "", once the batch has ended and is stopped."""
        last, fault = self._read(), ""
        for seen in self._seen:
            begun, unfinished = _progress(self._first, seen, last)
            if begun and unfinished:
                self.looked += 1
            if begun and any(call < begun[-1] for call in unfinished):
                open_calls = {call for call in unfinished if call < begun[-1]} | {begun[-1]}
                fault = f"at one moment {len(open_calls)} calls of {len(last)} were under way"
        return fault

    def _read(self) -> list[list[bytes]]:
        return [
            [os.pread(self._memories[region], size, at) for region, at, size in spots]
            for spots in self._spots
        ]


def _progress(
    first: Sequence[Sequence[bytes]],
    seen: Sequence[Sequence[bytes]],
    last: Sequence[Sequence[bytes]],
) -> tuple[list[int], list[int]]:
    """Return the calls that were begun, and those not finished, which may not have begun."""
    begun, unfinished = [], []
    for call, spots in enumerate(zip(first, seen, last, strict=True)):
        telling = [(a, b, c) for a, b, c in zip(*spots, strict=True) if a != c]
        if any(b != a for a, b, _ in telling):
            begun.append(call)
        if any(b != c for _, b, c in telling):
            unfinished.append(call)
    return begun, unfinished


def _spots(slots: Sequence[Slot], rng: random.Random) -> list[tuple[int, int, int]]:
    found = []
    for slot in slots:
        if 0 in slot.size:
            continue
        item, span_bytes = slot.item_bytes, slot.span_bytes
        length = min(SPOT_BYTES, span_bytes)
        room = (span_bytes - length) // item
        places = {0, room, *(rng.randint(0, room) for _ in range(SPOTS - 2))}
        found += [(slot.region, slot.offset + place * item, length) for place in sorted(places)]
    return found
