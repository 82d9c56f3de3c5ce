"""The collective that ranks disagree on, from their flight-recorder dumps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ratchet.scale.ranks.dumps import CollectiveCall, Dump

Kind = Literal["operation", "order", "dtype", "shape", "size", "missing", "unfinished", "p2p"]
SAME_SIZES: Final = (
    "all_reduce", "allreduce", "broadcast", "reduce", "all_gather", "allgather", "reduce_scatter",
    "_all_gather_base", "_reduce_scatter_base", "barrier",
)  # fmt: skip
"""Operations whose tensors have the same sizes on every rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Disagreement:
    """One collective on which ranks disagree, or at which some wait for others."""

    kind: Kind
    group: str
    sequence: int
    said: str
    """The fault, in a sentence."""
    remedy: str
    stacks: dict[int, tuple[str, ...]]
    """For each rank of interest, the stack of its call, or of its last one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Untangled:
    """Findings from the dumps of a job."""

    ranks: tuple[int, ...]
    missing_dumps: tuple[int, ...]
    """Ranks of the largest group that left no dump."""
    calls: int
    found: tuple[Disagreement, ...]
    """At most one a group, the earliest first."""
    faults: tuple[str, ...]
    """Files that could not be read."""


def untangle(dumps: Sequence[Dump], faults: Sequence[str] = ()) -> Untangled:
    """Return the first disagreement of each group."""
    names = sorted({name for dump in dumps for name in dump.groups})
    found = [one for name in names for one in _of_group(dumps, name)]
    known = {rank for dump in dumps for group in dump.groups.values() for rank in group.ranks}
    here = tuple(dump.rank for dump in dumps)
    return Untangled(
        ranks=here,
        missing_dumps=tuple(sorted(known - set(here))),
        calls=sum(len(group.calls) for dump in dumps for group in dump.groups.values()),
        found=tuple(sorted(found, key=lambda one: (one.kind == "unfinished", one.sequence))),
        faults=tuple(faults),
    )


def _of_group(dumps: Sequence[Dump], name: str) -> list[Disagreement]:
    calls = {
        dump.rank: {call.sequence: call for call in dump.groups[name].calls if not call.is_p2p}
        for dump in dumps
        if name in dump.groups
    }
    members = next((dump.groups[name].ranks for dump in dumps if name in dump.groups), ())
    for dump in dumps:  # a member that never called anything in this group
        if dump.rank in members and dump.rank not in calls:
            calls[dump.rank] = {}
    found = _first_collective(name, {rank: own for rank, own in calls.items()})
    return [found] if found else _first_p2p(dumps, name)


def _first_collective(
    name: str, calls: dict[int, dict[int, CollectiveCall]]
) -> Disagreement | None:
    held = [own for own in calls.values() if own]
    if not held:
        return None
    # Each rank keeps the last calls alone, so the comparison starts where all have something.
    first = max(min(own) for own in held)
    last = max(max(own) for own in held)
    for sequence in range(first, last + 1):
        made = {rank: own[sequence] for rank, own in calls.items() if sequence in own}
        if not made:
            continue
        differing = _differing(name, sequence, made, calls)
        if differing:
            return differing
        absent = sorted(set(calls) - set(made))
        if absent:
            return _absent(name, sequence, made, absent, calls)
    return _unfinished(name, calls)


def _differing(
    name: str,
    sequence: int,
    made: dict[int, CollectiveCall],
    calls: dict[int, dict[int, CollectiveCall]],
) -> Disagreement | None:
    by_operation = _grouped({rank: call.operation for rank, call in made.items()})
    if len(by_operation) > 1:
        told = "; ".join(
            f"{_ranks(ranks)} called {operation} at {made[ranks[0]].where}"
            for operation, ranks in by_operation.items()
        )
        crossed = _crossed(sequence, made, calls)
        return _disagreement(
            "order" if crossed else "operation", name, sequence, made, told,
            "call the same collectives in the same order on every rank; look for a branch that "
            "depends on the rank or on data",
        )  # fmt: skip
    operation = next(iter(made.values())).operation
    by_dtype = _grouped({rank: ", ".join(call.dtypes) for rank, call in made.items()})
    if len(by_dtype) > 1:
        told = "; ".join(f"{_ranks(ranks)}: {dtype}" for dtype, ranks in by_dtype.items())
        return _disagreement(
            "dtype", name, sequence, made, f"{operation} got different dtypes, {told}",
            "cast to one dtype before the call",
        )  # fmt: skip
    if operation not in SAME_SIZES:
        return None
    by_size = _grouped(
        {rank: str([list(one) for one in call.inputs]) for rank, call in made.items()}
    )
    if len(by_size) > 1:
        told = "; ".join(f"{_ranks(ranks)}: {size}" for size, ranks in by_size.items())
        return _disagreement(
            "shape", name, sequence, made, f"{operation} got different sizes, {told}",
            "pad to one size, or exchange the sizes first",
        )  # fmt: skip
    return None


def _crossed(
    sequence: int, made: dict[int, CollectiveCall], calls: dict[int, dict[int, CollectiveCall]]
) -> bool:
    """Return whether two ranks made the same two calls in opposite order."""
    following = {rank: calls[rank].get(sequence + 1) for rank in made}
    pairs = {(made[rank].operation, after.operation) for rank, after in following.items() if after}
    return any((b, a) in pairs for a, b in pairs if a != b)


def _absent(
    name: str, sequence: int, made: dict[int, CollectiveCall], absent: list[int],
    calls: dict[int, dict[int, CollectiveCall]],
) -> Disagreement:  # fmt: skip
    waiting = sorted(made)
    lasts = {rank: max(calls[rank].values(), key=lambda one: one.sequence, default=None)
             for rank in absent}  # fmt: skip
    told = "; ".join(
        f"rank {rank} last called {last.operation} (number {last.sequence}) at {last.where}"
        if last
        else f"rank {rank} called nothing in this group"
        for rank, last in lasts.items()
    )
    first = made[waiting[0]]
    stacks = {waiting[0]: first.stack} | {
        rank: last.stack for rank, last in lasts.items() if last is not None
    }
    return Disagreement(
        kind="missing",
        group=name,
        sequence=sequence,
        said=f"{_ranks(waiting)} called {first.operation} at {first.where}, which "
        f"{_ranks(absent)} never called: {told}",
        remedy=f"see what {_ranks(absent)} did after that call: an exception, a slow input, "
        "another branch",
        stacks=stacks,
    )


def _unfinished(name: str, calls: dict[int, dict[int, CollectiveCall]]) -> Disagreement | None:
    """Return the first collective that all called alike and that did not end."""
    for sequence in sorted({one for own in calls.values() for one in own}):
        made = {rank: own[sequence] for rank, own in calls.items() if sequence in own}
        open_on = sorted(rank for rank, call in made.items() if not call.is_done)
        if open_on and len(made) == len(calls):
            first = made[open_on[0]]
            return Disagreement(
                kind="unfinished",
                group=name,
                sequence=sequence,
                said=f"every rank called {first.operation} alike, and it did not end on "
                f"{_ranks(open_on)} ({first.where})",
                remedy="the call itself is right: look at the network, at a device that stopped, "
                "or at a kernel before it that does not end",
                stacks={rank: made[rank].stack for rank in open_on[:1]},
            )
    return None


def _first_p2p(dumps: Sequence[Dump], name: str) -> list[Disagreement]:
    """Return the first pair of ranks whose sends and receives do not match."""
    sent: dict[tuple[int, int], list[tuple[int, CollectiveCall]]] = {}
    received: dict[tuple[int, int], list[tuple[int, CollectiveCall]]] = {}
    for dump in dumps:
        group = dump.groups.get(name)
        for call in group.calls if group else ():
            ends = _ends(call) if call.is_p2p else None
            if ends:
                (sent if call.operation.startswith("send") else received).setdefault(
                    ends, []
                ).append((dump.rank, call))
    here = {dump.rank for dump in dumps}
    for pair in sorted(sent.keys() | received.keys()):
        outs, ins = sent.get(pair, []), received.get(pair, [])
        if len(outs) == len(ins) or not set(pair) <= here:
            continue
        more, fewer = (outs, ins) if len(outs) > len(ins) else (ins, outs)
        rank, call = more[len(fewer)]
        other = "received" if more is outs else "sent"
        return [
            Disagreement(
                kind="p2p",
                group=name,
                sequence=call.sequence,
                said=f"rank {rank} called {call.operation} at {call.where} "
                f"{len(more)} times, and the other end {other} {len(fewer)} times",
                remedy="match every send with a receive",
                stacks={rank: call.stack},
            )
        ]
    return []


def _ends(call: CollectiveCall) -> tuple[int, int] | None:
    """Return (from, to) of `send 0->1` or `recv 1<-0`."""
    _, _, ends = call.operation.partition(" ")
    for mark in ("->", "<-"):
        a, found, b = ends.partition(mark)
        if found and a.isdigit() and b.isdigit():
            return (int(a), int(b)) if mark == "->" else (int(b), int(a))
    return None


def _disagreement(
    kind: Kind, name: str, sequence: int, made: dict[int, CollectiveCall], said: str, remedy: str
) -> Disagreement:
    odd = min(_grouped({rank: _signature(one) for rank, one in made.items()}).values(), key=len)[0]
    other = next((rank for rank in made if _signature(made[rank]) != _signature(made[odd])), odd)
    return Disagreement(
        kind=kind,
        group=name,
        sequence=sequence,
        said=said,
        remedy=remedy,
        stacks={rank: made[rank].stack for rank in sorted({odd, other})},
    )


def _signature(call: CollectiveCall) -> str:
    return f"{call.operation} {call.dtypes} {call.inputs}"


def _grouped(values: dict[int, str]) -> dict[str, list[int]]:
    """Return the ranks of each value, the most common value first."""
    found: dict[str, list[int]] = {}
    for rank, value in sorted(values.items()):
        found.setdefault(value, []).append(rank)
    return dict(sorted(found.items(), key=lambda pair: (-len(pair[1]), pair[1])))


def _ranks(ranks: Sequence[int]) -> str:
    """Write ranks in words: rank 3, ranks 0 to 6, ranks 0, 2 and 5."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
