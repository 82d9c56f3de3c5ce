"""The process groups of a job, put together from what each rank's dump says of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from ratchet.scale.ranks.dumps import DEFAULT_GROUP, Calling, CollectiveCall, Dump, DumpedGroup

SAME_SIZES: Final = (
    "all_reduce", "allreduce", "allreduce_coalesced", "broadcast", "reduce", "all_gather",
    "allgather", "reduce_scatter", "_all_gather_base", "_reduce_scatter_base", "barrier",
    "all_reduce_barrier", "all_gather_single", "reduce_scatter_single",
    "all_gather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced",
)  # fmt: skip
"""Operations whose inputs have as many elements on every rank."""
Site = tuple[str, tuple[str, ...]]
"""An operation with the stack that called it."""


Habit = tuple[Site, tuple[str, ...], tuple[tuple[int, ...], ...]]
"""A call with its dtypes, and its inputs' sizes where those are alike on every rank."""


def habit(what: Calling) -> Habit:
    """Return what a call has in common with those of other ranks and steps."""
    is_alike = what.operation in SAME_SIZES or " " in what.operation  # a send has one receive
    return site(what), what.dtypes, what.inputs if is_alike else ()


def site(what: Calling) -> Site:
    """Return where a call is in the script, without its other end and its tensors' sizes."""
    return what.operation.partition(" ")[0], what.stack


@dataclass(frozen=True, kw_only=True, eq=False)
class JobGroup:
    """A process group with the calls of all its ranks."""

    name: str
    title: str
    family: str  # Groups that do the same in other parts of the job share it
    members: tuple[int, ...]
    views: tuple[int, ...]  # Ranks whose dumps have it with these members
    is_known: bool  # Some dump lists its members; else they are the ranks that called something
    collectives: dict[int, dict[int, CollectiveCall]]
    """For each rank with a dump, its collectives by number."""
    p2p: dict[int, list[CollectiveCall]]
    enqueued: dict[int, int]  # Each rank's last collective, also one that its buffer lost
    blank: frozenset[int]  # Ranks whose buffer lost calls and that do not say what they called here

    @cached_property
    def held(self) -> list[dict[int, CollectiveCall]]:
        """Return the collectives of the ranks that hold any."""
        return [own for own in self.collectives.values() if own]

    @cached_property
    def numbers(self) -> list[int]:
        """Return the numbers of collectives that can be compared: each rank keeps the last ones."""
        first = max((min(own) for own in self.held), default=0)
        return sorted(n for n in set().union(*self.held) if n >= first)

    def made(self, sequence: int) -> dict[int, CollectiveCall]:
        found = ((rank, own.get(sequence)) for rank, own in self.collectives.items())
        return {rank: call for rank, call in found if call is not None}

    def last_number(self, rank: int) -> int:
        """Return the number of a rank's last collective; 0 if it made none."""
        return max(max(self.collectives[rank], default=0), self.enqueued.get(rank, 0))

    def absent(self, sequence: int) -> list[int]:
        """Return the ranks whose dump shows that they never made this call."""
        return [
            rank
            for rank in self.collectives
            if self.last_number(rank) < sequence and rank not in self.blank
        ]


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """The dumps of a job by rank, and its groups."""

    dumps: dict[int, Dump]
    groups: tuple[JobGroup, ...]
    world: tuple[int, ...]  # Every rank that a dump names

    @cached_property
    def missing(self) -> tuple[int, ...]:
        return tuple(rank for rank in self.world if rank not in self.dumps)

    @cached_property
    def habits(self) -> Habits:
        """Return how often each call followed each other one."""
        return Habits.of(self)


@dataclass(frozen=True, kw_only=True)
class Habits:
    """Counts of what call followed what other in groups of a family, over all ranks and steps."""

    followed: dict[str, Counter[tuple[Site | None, Site]]] = field(
        default_factory=lambda: defaultdict(Counter)
    )
    made: dict[str, Counter[Habit]] = field(default_factory=lambda: defaultdict(Counter))

    @staticmethod
    def of(job: Job) -> Habits:
        habits = Habits()
        for group in job.groups:
            counted = habits.followed[group.family]
            for own in group.collectives.values():
                for sequence, call in own.items():
                    before = own.get(sequence - 1)
                    counted[(site(before.what) if before else None, site(call.what))] += 1
                    habits.made[group.family][habit(call.what)] += 1
            for calls in group.p2p.values():
                habits.made[group.family].update(habit(call.what) for call in calls)
        return habits

    def times(self, family: str, before: CollectiveCall | None, after: CollectiveCall) -> int:
        """Return how often `after`, with tensors of its sizes, followed `before`."""
        pair = (site(before.what) if before else None, site(after.what))
        return min(self.followed[family][pair], self.made[family][habit(after.what)])

    def follows(self, family: str, before: CollectiveCall, after: CollectiveCall) -> bool:
        """Return whether `after` ever came next after `before`, of whatever sizes."""
        return self.followed[family][(site(before.what), site(after.what))] > 0


def job_of(dumps: Sequence[Dump]) -> Job:
    """Return a job's groups.

    Groups are told apart by name and members: the halves of a split may share a name.
    """
    told: dict[tuple[str, tuple[int, ...]], dict[int, DumpedGroup]] = {}
    for dump in dumps:
        for name, group in dump.groups.items():
            told.setdefault((name, group.ranks), {})[dump.rank] = group
    for (name, members), seen in list(told.items()):
        if not members:  # recorded on other ranks alone
            homes = [key for key in told if key[0] == name and set(seen) <= set(key[1])]
            if len(homes) == 1:
                told[homes[0]].update(told.pop((name, members)))
    default = _default_members(told)
    world = {dump.rank for dump in dumps}.union(default)
    if not default:
        world.update(*(members for _, members in told))
    everyone = {dump.rank: dump for dump in dumps}
    return Job(
        dumps=everyone,
        groups=tuple(_groups(told, everyone, tuple(sorted(world)))),
        world=tuple(sorted(world)),
    )


def _default_members(told: Iterable[tuple[str, tuple[int, ...]]]) -> tuple[int, ...]:
    return max((members for name, members in told if name in ("", "0")), key=len, default=())


def _groups(
    told: dict[tuple[str, tuple[int, ...]], dict[int, DumpedGroup]],
    dumps: dict[int, Dump],
    world: tuple[int, ...],
) -> Iterator[JobGroup]:
    """Build each group that was used."""
    default = _default_members(told) or world
    for (name, members), seen in sorted(told.items(), key=lambda pair: _natural(pair[0][0])):
        if not any(group.calls or group.last_enqueued > 0 for group in seen.values()):
            continue
        first = next(iter(seen.values()))
        known = members or (default if name in ("0", *DEFAULT_GROUP) else ())
        ranks = known or tuple(sorted(seen))
        empty = DumpedGroup(name=name, description="", ranks=(), calls=(), last_enqueued=-1)
        own = {rank: seen.get(rank, empty) for rank in ranks if rank in dumps}
        yield JobGroup(
            name=name,
            title=first.title,
            family=first.description or name,
            members=ranks,
            views=tuple(sorted(seen)),
            is_known=bool(known),
            collectives={
                rank: {call.sequence: call for call in group.calls if not call.is_p2p}
                for rank, group in own.items()
            },
            p2p={rank: [c for c in group.calls if c.is_p2p] for rank, group in own.items()},
            enqueued={rank: group.last_enqueued for rank, group in own.items()},
            blank=frozenset(
                rank
                for rank, group in own.items()
                if not group.calls and group.last_enqueued < 0 and not dumps[rank].is_whole
            ),
        )


def _natural(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdigit() else (1 << 60, name)
