"""Ranks that do not call the same: the first collective of a group where they part.

What decides who is wrong is the majority and habit: how often a call followed the one before it, on
other ranks and in earlier steps. Where neither decides, both sides are named and none is blamed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from ratchet.scale.ranks.dumps import Calling, CollectiveCall
from ratchet.scale.ranks.groups import SAME_SIZES, Job, JobGroup, site

Kind = Literal[
    "operation", "order", "dtype", "shape", "skipped", "extra", "line", "members", "missing",
    "device", "deadlock", "unfinished", "p2p", "ended",
]  # fmt: skip
FARTHEST_SKIP: Final = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Disagreement:
    """One collective on which ranks disagree, or at which some wait for others."""

    kind: Kind
    group: str
    sequence: int
    said: str  # The fault, in a sentence
    remedy: str
    ranks: tuple[int, ...]  # Those without which the rest does not follow; of a doubt, both sides
    stacks: dict[int, tuple[str, ...]]
    """For each rank of interest, the stack of its call, or of its last one."""
    waiting: tuple[int, ...] = ()  # Ranks that wait for it, at however many removes
    follows: tuple[str, ...] = field(default=())  # What waits for it, a line each


def named(ranks: Sequence[int]) -> str:
    """Write ranks in words: rank 3, ranks 0 to 6, ranks 0, 2 and 5; many in short."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    if len(ranks) > 16:
        return f"ranks {', '.join(map(str, ranks[:8]))} and {len(ranks) - 8} more"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def parting(job: Job, group: JobGroup, *, is_troubled: bool) -> Disagreement | None:
    """Return the first collective of a group on which ranks disagree.

    The same operation from other lines counts where the group is in trouble: healthy ranks may
    branch and meet again.
    """
    soft: list[int] = []
    for sequence in group.numbers:
        made = group.made(sequence)
        if len({id(call.what) for call in made.values()}) < 2:
            continue
        if any(len({key(call) for call in made.values()} - {()}) > 1 for key in _keys(made)):
            return _first_soft(job, group, soft) or _differing(job, group, sequence, made)
        if len({site(call.what) for call in made.values()}) > 1:
            soft.append(sequence)
    return _first_soft(job, group, soft) if is_troubled else None


def _first_soft(job: Job, group: JobGroup, soft: Sequence[int]) -> Disagreement | None:
    """Return where lines part for good, of the places where they differ."""
    for sequence in soft:
        made = group.made(sequence)
        sides = _sides(job, group, sequence, made, lambda call: site(call.what))
        if found := _shifted(job, group, sequence, made, sides):
            return found
        if not _meet_again(group, sequence, sides) and sides.is_sure:
            return _made(
                group, "line", sequence, made, sides,
                f"{_called(sides.odd, made)}, {_called(sides.others, made)}: from there on their "
                "lines differ",
                "look for a branch that depends on the rank or on data",
            )  # fmt: skip
    return None


@dataclass(frozen=True, slots=True)
class _Sides:
    """Ranks that part at a collective: those that do what nobody else does, and the rest."""

    odd: list[int]
    others: list[int]
    is_sure: bool


def _sides(
    job: Job, group: JobGroup, sequence: int, made: dict[int, CollectiveCall],
    key: Callable[[CollectiveCall], object],
) -> _Sides:  # fmt: skip
    found: dict[object, list[int]] = {}
    for rank, call in sorted(made.items()):
        found.setdefault(key(call), []).append(rank)
    by_size = sorted(found.values(), key=lambda ranks: (-len(ranks), ranks))
    most, *rest = by_size

    def habit(ranks: list[int]) -> int:
        own = group.collectives[ranks[0]]
        times = job.habits.times(group.family, own.get(sequence - 1), own[sequence])
        return times - len(ranks)

    others = sorted(rank for ranks in rest for rank in ranks)
    usual, unusual = habit(most), max(habit(ranks) for ranks in rest)
    if unusual > 0 >= usual and len(rest) == 1:
        return _Sides(odd=most, others=others, is_sure=True)
    is_sure = len(most) > len(rest[0]) or usual > 0 >= unusual
    if not is_sure:  # the first rank is named first, but for what other groups show
        if len(rest) == 1:
            seen = _elsewhere(job, group, sequence, most[0], key)
            a, b = (seen[key(made[ranks[0]])] for ranks in (most, others))
            if min(a, b) == 0 < max(a, b):
                odd, even = (most, others) if b else (others, most)
                return _Sides(odd=odd, others=even, is_sure=True)
        return _Sides(odd=most, others=others, is_sure=False)
    return _Sides(odd=others, others=most, is_sure=True)


def _elsewhere(
    job: Job, group: JobGroup, sequence: int, rank: int, key: Callable[[CollectiveCall], object]
) -> Counter[object]:
    """Return what ranks of like groups did at a number, of those that did alike before it."""

    def before(own: dict[int, CollectiveCall]) -> list[object]:
        numbers = range(max(1, sequence - FARTHEST_SKIP), sequence)
        return [site(own[one].what) if one in own else None for one in numbers]

    earlier = before(group.collectives[rank])
    return Counter(
        key(own[sequence])
        for other in job.groups
        if other.family == group.family and other is not group
        for own in other.held
        if sequence in own and before(own) == earlier
    )


def _shifted(
    job: Job, group: JobGroup, sequence: int, made: dict[int, CollectiveCall], sides: _Sides
) -> Disagreement | None:
    """Return a collective that one side left out, or made once more."""
    for odd, others in ((sides.odd, sides.others), (sides.others, sides.odd)):
        a, b = group.collectives[odd[0]], group.collectives[others[0]]
        own, other = made[odd[0]], made[others[0]]
        if site(own.what) == site(other.what) or not own.what.stack:
            continue
        step = next((k for k in range(1, FARTHEST_SKIP + 1) if _aligned(a, b, sequence, k)), 0)
        # Those that wait get no farther, but in earlier steps this call came after theirs.
        was_next = job.habits.follows(group.family, other, own)
        if step or (was_next and sides.is_sure and odd is sides.odd):
            count = f" and {step - 1} more" if step > 1 else ""
            if sides.is_sure and odd is sides.others:
                return _made(
                    group, "extra", sequence, made, sides,
                    f"{named(sides.odd)} called {other.what.operation} at {other.what.where}"
                    f"{count}, which {named(sides.others)} did not: they called "
                    f"{own.what.operation} at {own.what.where}",
                    "make the call on every rank; look for a branch that depends on the rank or "
                    "on data",
                )  # fmt: skip
            return _made(
                group, "skipped", sequence, made, sides,
                f"{named(odd)} did not call {other.what.operation} at {other.what.where}{count}, "
                f"as {named(others)} did, and called {own.what.operation} at {own.what.where}",
                "make the call on every rank; look for a branch that depends on the rank or on "
                "data",
            )  # fmt: skip
    return None


def _aligned(
    a: dict[int, CollectiveCall], b: dict[int, CollectiveCall], sequence: int, step: int
) -> bool:
    """Return whether `a` goes on as `b` does `step` calls later."""
    pairs = [
        (call, b[number + step])
        for number, call in a.items()
        if number >= sequence and number + step in b
    ]
    return bool(pairs) and all(site(one.what) == site(other.what) for one, other in pairs)


def _meet_again(group: JobGroup, sequence: int, sides: _Sides) -> bool:
    a, b = group.collectives[sides.odd[0]], group.collectives[sides.others[0]]
    both = [number for number in a if number > sequence and number in b]
    return any(site(a[number].what) == site(b[number].what) for number in both)


def _operation(call: CollectiveCall) -> object:
    return call.what.operation


def _dtypes(call: CollectiveCall) -> object:
    return call.what.dtypes


def _counts(call: CollectiveCall) -> object:
    return tuple(map(math.prod, call.what.inputs))


def _keys(made: dict[int, CollectiveCall]) -> Iterator[Callable[[CollectiveCall], object]]:
    yield _operation
    operations = {call.what.operation for call in made.values()}
    yield _dtypes
    if operations <= set(SAME_SIZES):
        yield _counts


def _differing(
    job: Job, group: JobGroup, sequence: int, made: dict[int, CollectiveCall]
) -> Disagreement:
    key = next(key for key in _keys(made) if len({key(call) for call in made.values()} - {()}) > 1)
    made = {rank: call for rank, call in made.items() if key(call) != ()}
    sides = _sides(job, group, sequence, made, key)
    if _crossed(group, sequence, sides):
        first, second = made[sides.others[0]], made[sides.odd[0]]
        said = (
            f"{_called(sides.odd, made)} before {first.what.operation} at {first.what.where}, "
            f"{named(sides.others)} the other way round"
        )
        return _made(group, "order", sequence, made, sides, said, _same_order(second))
    if found := _shifted(job, group, sequence, made, sides):
        return found
    if key is _operation:
        said = f"{_called(sides.odd, made)}; {_called(sides.others, made)}"
        return _made(group, "operation", sequence, made, sides, said, _same_order(None))
    word, remedy = {
        _dtypes: ("dtype", "cast to one dtype before the call"),
        _counts: ("shape", "pad to one size, or exchange the sizes first"),
    }[key]  # type: ignore[index]
    own = made[sides.odd[0]]

    def value(ranks: Sequence[int]) -> str:
        what = made[ranks[0]].what
        sizes = ", ".join(str(list(one)) for one in what.inputs)
        return f"{named(ranks)} {', '.join(what.dtypes) if word == 'dtype' else sizes}"

    said = (
        f"{value(sides.odd)} in {own.what.operation} at {own.what.where}, where "
        f"{value(sides.others)}"
    )
    if site(own.what) != site(made[sides.others[0]].what):
        said += f" at {made[sides.others[0]].what.where}"
    return _made(group, word, sequence, made, sides, said, remedy)  # type: ignore[arg-type]


def _same_order(_: CollectiveCall | None) -> str:
    return (
        "call the same collectives in the same order on every rank; look for a branch that "
        "depends on the rank or on data"
    )


def _crossed(group: JobGroup, sequence: int, sides: _Sides) -> bool:
    """Return whether two ranks made the same two calls in opposite order."""

    def two(rank: int) -> list[Calling]:
        own = group.collectives[rank]
        return [own[one].what for one in (sequence, sequence + 1) if one in own]

    def is_crossed(odd: list[object], other: list[object]) -> bool:
        return len(odd) == 2 and odd == other[::-1] and odd != other

    odd, other = two(sides.odd[0]), two(sides.others[0])
    return is_crossed([site(one) for one in odd], [site(one) for one in other]) or is_crossed(
        [one.operation for one in odd], [one.operation for one in other]
    )


def _called(ranks: Sequence[int], made: dict[int, CollectiveCall]) -> str:
    what = made[ranks[0]].what
    return f"{named(ranks)} called {what.operation} at {what.where}"


def _made(
    group: JobGroup, kind: Kind, sequence: int, made: dict[int, CollectiveCall], sides: _Sides,
    said: str, remedy: str,
) -> Disagreement:  # fmt: skip
    shown = sorted({sides.odd[0], sides.others[0]})
    return Disagreement(
        kind=kind,
        group=group.title,
        sequence=sequence,
        said=said,
        remedy=remedy,
        ranks=tuple(sides.odd) if sides.is_sure else tuple(sorted(made)),
        stacks={rank: made[rank].what.stack for rank in shown},
    )


def members_disagree(job: Job) -> list[tuple[Disagreement, tuple[JobGroup, ...]]]:
    """Return groups of whose members ranks hold different views, each with those views.

    The halves of a split may rightly share a name. They are in doubt if they overlap, or if no call
    of them ever ended: ranks that make only their own group meet under one name.
    """
    found = []
    by_name: dict[str, list[JobGroup]] = {}
    for group in job.groups:
        by_name.setdefault(group.name, []).append(group)
    for views in by_name.values():
        if len(views) > 1:
            ranks = [rank for view in views for rank in view.members]
            overlap = len(ranks) > len(set(ranks))
            if overlap or not any(_has_worked(view) for view in views):
                found.append((_views(job, views), tuple(views)))
        elif not views[0].is_known and (left := _left_behind(views[0])):
            found.append((left, tuple(views)))
    return found


def _has_worked(group: JobGroup) -> bool:
    return any(call.is_done for own in group.collectives.values() for call in own.values())


ROOTED: Final = ("broadcast", "reduce", "gather", "scatter", "send", "recv")
"""Operations that may end on one rank before others begin."""
MAKE_ALIKE: Final = (
    "call new_group on every rank for every group, in one order, also for groups that a rank is "
    "no member of"
)


def _contradicted(job: Job, rank: int) -> int:
    """Count the members of a rank's groups that list these groups otherwise, or not at all."""
    dumps = {one: dump for one, dump in job.dumps.items() if not dump.is_gloo}
    return sum(
        theirs is None or (bool(theirs.ranks) and theirs.ranks != group.ranks)
        for name, group in job.dumps[rank].groups.items()
        for other in group.ranks
        if other != rank and other in dumps
        for theirs in [dumps[other].groups.get(name)]
    )


def _views(job: Job, views: Sequence[JobGroup]) -> Disagreement:
    """Return the finding of one name with several lists of members, the most common one last.

    Where no list is the most common one, the rank is wrong that most others contradict.
    """
    views = sorted(views, key=lambda view: len(view.views))
    told, stacks = [], {}
    for view in views:
        own = next((own for rank in view.views if (own := view.collectives.get(rank))), None)
        call = own[max(own)] if own else None
        at = f" ({call.what.operation} at {call.what.where})" if call else ""
        told.append(f"{named(view.views)} {list(view.members)}{at}")
        if call:
            stacks[view.views[0]] = call.what.stack
    is_sure = len(views[-1].views) > sum(len(view.views) for view in views[:-1])
    blamed = views[:-1] if is_sure else views
    ranks = sorted({rank for view in blamed for rank in view.views})
    if not is_sure:
        against = {rank: _contradicted(job, rank) for rank in ranks}
        worst = [rank for rank in ranks if against[rank] == max(against.values())]
        ranks = worst if len(worst) == 1 else ranks
    return Disagreement(
        kind="members",
        group=views[0].title,
        sequence=1,
        said=f"ranks disagree on the group's members: {', '.join(told)}",
        remedy=MAKE_ALIKE,
        ranks=tuple(ranks),
        stacks=stacks,
    )


def _left_behind(group: JobGroup) -> Disagreement | None:
    """Return a first collective that ended on some ranks, which went on, and not on others."""
    if not group.held:
        return None
    first = min(min(own) for own in group.held)
    made = group.made(first)
    stuck = sorted(rank for rank, call in made.items() if not call.is_done)
    passed = sorted(
        rank for rank, call in made.items() if call.is_done and group.last_number(rank) > first
    )
    what = next(iter(made.values())).what
    alike = {call.what.operation for call in made.values()} == {what.operation}
    if not stuck or not passed or not alike or what.operation.startswith(ROOTED):
        return None
    return Disagreement(
        kind="members",
        group=group.title,
        sequence=first,
        said=f"ranks disagree on the group's members: {what.operation} at {what.where} ended on "
        f"{named(passed)}, and {named(stuck)} still wait{'s' * (len(stuck) == 1)} in it, so they "
        "are not in one group",
        remedy=MAKE_ALIKE,
        ranks=tuple(sorted(made)),
        stacks={rank: made[rank].what.stack for rank in (stuck[0], passed[0])},
    )
