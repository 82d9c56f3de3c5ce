"""Findings from logs alone: in which call each rank of a hung job waited, and which one ended."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final

from ratchet.scale.ranks.beside import Beside, TimedOut
from ratchet.scale.ranks.disagree import Disagreement, Kind, named

ALIKE: Final = frozenset({
    "allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather_base",
    "reduce_scatter_base", "barrier",
})  # fmt: skip
"""Operations, as the watchdog names them, whose sizes are the same on all ranks."""
PAIRS: Final = frozenset({"send", "recv", "coalesced"})
"""Operations of which ranks of one group rightly call different ones."""
NO_DUMPS: Final = (
    "logs name no source lines and no members of groups: start the job with "
    "TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1, and give its dumps too"
)


def logged(beside: Beside) -> list[Disagreement]:
    """Return what a job's logs say without dumps: the rank that ended first, then the time-outs."""
    found = [
        Disagreement(
            kind="ended",
            group="",
            sequence=0,
            said=f"rank {one.rank} ended first ({one.said}, {one.path.name})",
            remedy="see that rank's own output for the reason",
            ranks=(one.rank,),
            stacks={},
        )
        for one in beside.ended
        if not one.was_restarted
    ][:1]
    # A line that names no group is of the group in which another rank waits in the same call.
    of = {_call(one): one.group for one in beside.timed_out if one.group}
    groups: dict[str, dict[int, TimedOut]] = defaultdict(dict)
    for one in sorted(beside.timed_out, key=lambda one: one.sequence):
        groups[one.group or of.get(_call(one), "")].setdefault(one.rank, one)
    parted = [
        _compared(group, sorted(calls.values(), key=lambda one: one.rank))
        for group, calls in groups.items()
    ]
    parted.sort(key=lambda one: (one.kind == "unfinished", one.kind == "missing", -len(one.ranks)))
    return [*found, *parted]


def _compared(group: str, calls: list[TimedOut]) -> Disagreement:
    """Return how the calls in which a group's ranks timed out differ, or who is not among them."""
    called: dict[int, object] = {one.rank: (one.sequence, one.operation) for one in calls}
    if len(set(called.values())) > 1 and not any(one.operation in PAIRS for one in calls):
        return _parted("operation", group, calls, called)
    sizes: dict[int, object] = {one.rank: one.sizes for one in calls}
    if len(set(sizes.values())) > 1 and all(one.operation in ALIKE for one in calls):
        return _parted("shape", group, calls, sizes)
    ranks = [one.rank for one in calls]
    silent = [rank for rank in range(max(ranks)) if rank not in ranks]
    # The default group has all ranks; which ones others have is not known.
    if silent and len(ranks) > 1 and ("default_pg" in group or group == "0"):
        return _finding(
            "missing", group, calls[:1], silent,
            f"{named(silent)} may not have come to {_call(calls[0])}, where {named(ranks)} timed "
            f"out: the log holds no time-out of {'it' if len(silent) == 1 else 'them'}",
            f"see what {named(silent)} did then: an exception, a slow input, another branch",
        )  # fmt: skip
    who = f"{named(ranks)} timed out in {_call(calls[0])}"
    return _finding(
        "unfinished", group, calls[:1], ranks,
        f"{who}{' alike' if len(ranks) > 1 else ''}, and the log does not say who did not come",
        "look for the rank of that group that is not among these; if all are, look at the "
        "network, or at a device that stopped",
    )  # fmt: skip


def _parted(kind: Kind, group: str, calls: list[TimedOut], of: dict[int, object]) -> Disagreement:
    ways = Counter(of.values()).most_common()
    is_sure = ways[0][1] > 1 and ways[1][1] == 1 and len(ways) == 2
    odd = [rank for rank, way in of.items() if not is_sure or way != ways[0][0]]
    told = []
    for way, _ in ways[::-1][:4]:
        those = [one for one in calls if of[one.rank] == way]
        told.append(f"{named([one.rank for one in those])} timed out in {_call(those[0])}")
    return _finding(
        kind, group, calls, odd, ", ".join(told),
        "make the same calls in one order with one size on all ranks; if these are calls of "
        "several groups, look at each group alone",
    )  # fmt: skip


def _finding(
    kind: Kind, group: str, calls: list[TimedOut], ranks: list[int], said: str, remedy: str
) -> Disagreement:
    return Disagreement(
        kind=kind,
        group=group,
        sequence=min(one.sequence for one in calls),
        said=said,
        remedy=remedy,
        ranks=tuple(ranks),
        stacks={},
    )


def _call(one: TimedOut) -> str:
    number = f"number {one.sequence}" if one.sequence else ""
    told = ", ".join(part for part in (number, one.sizes) if part)
    return f"{one.operation} ({told})" if told else one.operation
