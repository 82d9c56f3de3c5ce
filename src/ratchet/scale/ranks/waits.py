"""Who waits for whom: the graph of waits over a job's groups, and its sources.

Its nodes are meetings (a collective, or a send with its receive, that has not ended), ranks, and
disagreements. A meeting waits for the ranks that did not come, or for what its ranks called before
it; a rank waits in the meetings it came to. What waits for nothing is what the rest follows from.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ratchet.scale.ranks.disagree import Disagreement
from ratchet.scale.ranks.dumps import CollectiveCall, ends_of
from ratchet.scale.ranks.groups import Job, JobGroup, Site, site


@dataclass(kw_only=True, slots=True, eq=False)
class Meeting:
    """A collective, or a send with its receive, at which some rank waits or is missing."""

    group: JobGroup
    sequence: int
    here: dict[int, CollectiveCall]
    absent: list[int]  # They never came, as their dumps show
    unknown: list[int]  # No dump tells whether they came
    is_done: bool = False  # All that came went on: nobody waits
    counts: tuple[int, int] | None = None  # Of a send without receive: made here, made there

    @property
    def call(self) -> CollectiveCall:
        """Return the call of a rank that came, the earliest."""
        return min(self.here.values(), key=lambda call: call.created_ns)

    @property
    def is_unlike(self) -> bool:
        """Return whether a send and its receive differ in size or dtype."""
        ends = [call.what for call in self.here.values() if call.is_p2p]
        return len({(what.dtypes, tuple(map(math.prod, what.inputs))) for what in ends}) > 1

    @property
    def waiting(self) -> list[int]:
        """Return the ranks that wait in it; where none is recorded to, those that came."""
        held = [rank for rank, call in self.here.items() if not call.is_done]
        return sorted(held or self.here)


_Place = tuple[str, Site]  # The family of a call's group, and where the call is in the script
FARTHEST_BACK: Final = 500  # Calls of a rank that are searched for what it does next
MOST_MATES: Final = 128  # Ranks of a group whose programs are compared
LEAST_ALIKE: Final = 0.6  # Share of a rank's steps that another one with its program makes too
Node = tuple[Literal["meeting", "rank", "fault"], int]


@dataclass(frozen=True, kw_only=True)
class Source:
    """Nodes that wait for nothing else, with what waits for them."""

    nodes: tuple[Node, ...]  # One, or those of a circle
    meetings: tuple[Meeting, ...]  # That wait for it, the nearest first
    waiting: frozenset[int]  # Ranks in those


@dataclass(kw_only=True, eq=False)
class Waits:
    job: Job
    meetings: list[Meeting]
    faults: list[tuple[Disagreement, tuple[JobGroup, ...]]]  # With the groups it is in
    edges: dict[Node, list[Node]] = field(default_factory=lambda: defaultdict(list))
    devices: set[int] = field(default_factory=set)
    """Ranks whose device did not begin what the others began."""
    _known_steps: dict[int, Counter[tuple[_Place, _Place]]] = field(default_factory=dict)

    @cached_property
    def sources(self) -> list[Source]:
        """Return what waits for nothing else, of ranks and meetings only what others wait for."""
        nodes: list[Node] = [("meeting", place) for place in range(len(self.meetings))]
        nodes += [("fault", place) for place in range(len(self.faults))]
        nodes += [("rank", rank) for rank in self.job.world]
        number = {node: place for place, node in enumerate(nodes)}
        pairs = [(number[a], number[b]) for a, ends in self.edges.items() for b in ends]
        rows, columns = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        size = len(nodes)
        links = coo_array((np.ones(len(pairs), dtype=np.int8), (rows, columns)), (size, size))
        _, labels = connected_components(links, connection="strong")
        leaves = np.ones(size, dtype=bool)
        leaves[labels[rows[labels[rows] != labels[columns]]]] = False
        waited = np.bincount(columns, minlength=size) > 0
        found: dict[int, list[Node]] = defaultdict(list)
        for place, node in enumerate(nodes):
            if leaves[labels[place]] and (node[0] != "rank" or waited[place]):
                found[int(labels[place])].append(node)
        backwards: dict[Node, list[Node]] = defaultdict(list)
        for start, ends in self.edges.items():
            for end in ends:
                backwards[end].append(start)
        return [self._source(tuple(circle), backwards) for circle in found.values()]

    def _source(self, circle: tuple[Node, ...], backwards: dict[Node, list[Node]]) -> Source:
        seen = dict.fromkeys(circle)
        queue = list(circle)
        for node in queue:
            for before in backwards[node]:
                if before not in seen:
                    seen[before] = None
                    queue.append(before)
        meetings = [self.meetings[place] for kind, place in queue if kind == "meeting"]
        live = [one for one in meetings if not one.is_done]
        return Source(
            nodes=circle,
            meetings=tuple(meetings),
            waiting=frozenset(rank for one in live for rank in one.waiting),
        )

    def novelty(self, rank: int) -> tuple[CollectiveCall, Site] | None:
        """Return a rank's last call that follows another as on no rank with the same program.

        With it comes what follows the call before on those ranks.
        """
        own = self._programs[rank]
        steps = self._steps(rank)
        groups = [group.members for group in self.job.groups if rank in group.members]
        few = [members for members in groups if len(members) < len(self.job.world)] or groups
        mates = {one for members in few for one in members[:MOST_MATES]} & self._programs.keys()
        likeness = {
            mate: len(steps.keys() & self._steps(mate).keys()) / max(1, len(steps))
            for mate in mates - {rank}
        }
        best = max(likeness.values(), default=0.0)
        usual: Counter[tuple[_Place, _Place]] = Counter()
        for mate, alike in likeness.items():
            if alike == best > LEAST_ALIKE:
                usual += self._steps(mate)
        for before, after in zip(own[-2::-1], own[:0:-1], strict=False):
            step = (before[:2], after[:2])
            if steps[step] == 1 and not usual[step] and usual:
                follows = Counter({b: n for (a, b), n in usual.items() if a == step[0]})
                if follows.total() > 1:
                    return after[2], follows.most_common(1)[0][0][1]
        return None

    def other_end(self, rank: int, group: JobGroup, call: CollectiveCall) -> str:
        """Return what a rank sent or received at a call's line before; empty if just this."""
        made = Counter(
            one.what.operation
            for one in group.p2p.get(rank, ())
            if one is not call and site(one.what) == site(call.what)
        )
        return "" if not made or call.what.operation in made else made.most_common(1)[0][0]

    def _steps(self, rank: int) -> Counter[tuple[_Place, _Place]]:
        """Return how often each call of a rank followed each other one."""
        if rank not in self._known_steps:
            own = [one[:2] for one in self._programs[rank]]
            self._known_steps[rank] = Counter(itertools.pairwise(own))
        return self._known_steps[rank]

    def comes_next(self, rank: int, meeting: Meeting) -> bool:
        """Return whether ranks go on to this meeting from where a rank stopped."""
        where = (meeting.group.family, site(meeting.call.what))
        own = self._programs.get(rank, [])
        return bool(own) and self._followed[own[-1][:2]][where] > 0

    def usual_next(self, rank: int) -> Site | None:
        """Return what came next when a rank was where it is now: after the longest same calls.

        None if after as many the same calls now one, now another came.
        """
        own = [one[:2] for one in self._programs.get(rank, ())]
        came: set[Site] = set()
        longest = 1
        for end in range(len(own) - 1, max(0, len(own) - FARTHEST_BACK), -1):
            pairs = zip(own[end - 1 :: -1], own[::-1], strict=False)
            same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
            if same >= longest:
                came = {own[end][1], *(came if same == longest else ())}
                longest = same
        if not came and own:
            follows = self._followed[own[-1]].most_common(1)
            if follows and follows[0][1] > 0.9 * self._followed[own[-1]].total():
                came = {follows[0][0][1]}
        return came.pop() if len(came) == 1 else None

    @cached_property
    def _programs(self) -> dict[int, list[tuple[str, Site, CollectiveCall]]]:
        found: dict[int, list[tuple[str, Site, CollectiveCall]]] = defaultdict(list)
        for group in self.job.groups:
            for rank, own in group.collectives.items():
                found[rank] += [(group.family, site(c.what), c) for c in own.values()]
            for rank, calls in group.p2p.items():
                found[rank] += [(group.family, site(call.what), call) for call in calls]
        for program in found.values():
            program.sort(key=lambda one: one[2].order)
        return dict(found)

    @cached_property
    def _followed(self) -> defaultdict[_Place | None, Counter[_Place]]:
        counted: defaultdict[_Place | None, Counter[_Place]] = defaultdict(Counter)
        for own in self._programs.values():
            before = None
            for family, where, _ in own:
                counted[before][(family, where)] += 1
                before = (family, where)
        return counted


def waits_of(job: Job, faults: Sequence[tuple[Disagreement, tuple[JobGroup, ...]]]) -> Waits:
    """Return the graph of a job's waits; calls from a disagreement on wait for it alone."""
    meetings = [one for group in job.groups for one in _of_group(job, group)]
    if meetings and job.missing:
        meetings += [one for group in job.groups for one in _perhaps_failed(job, group)]
    waits = Waits(job=job, meetings=meetings, faults=list(faults))
    _connect(waits)
    return waits


def is_troubled(job: Job, group: JobGroup) -> bool:
    """Return whether somebody waits in a group."""
    return next(_collectives(job, group), None) is not None


def _of_group(job: Job, group: JobGroup) -> Iterator[Meeting]:
    yield from _collectives(job, group)
    if group.is_known:
        yield from _pairs(job, group)


def _collectives(job: Job, group: JobGroup) -> Iterator[Meeting]:
    numbers = group.numbers
    open_ones = {
        sequence
        for own in group.collectives.values()
        for sequence, call in own.items()
        if not call.is_done
    }
    first_absent = {
        numbers[place]
        for rank in group.collectives
        if rank not in group.blank
        and (place := bisect_left(numbers, group.last_number(rank) + 1)) < len(numbers)
    }
    unknown = [rank for rank in group.members if rank not in group.collectives]
    for sequence in sorted(open_ones | first_absent):
        here = group.made(sequence)
        absent = [rank for rank in group.absent(sequence) if rank not in here]
        if not here or (not absent and sequence not in open_ones):
            continue
        yield Meeting(
            group=group,
            sequence=sequence,
            here=here,
            absent=absent,
            unknown=unknown + sorted(group.blank - here.keys()),
            is_done=all(
                call.is_done and not job.dumps[rank].is_gloo for rank, call in here.items()
            ),
        )


def _perhaps_failed(job: Job, group: JobGroup) -> Iterator[Meeting]:
    """Return the last collectives of ranks of gloo, which marks one that failed as ended.

    They count where a member left no dump: it may have ended, and its end failed them.
    """
    unknown = [rank for rank in group.members if rank not in group.collectives]
    for rank, own in group.collectives.items() if unknown else ():
        last = job.dumps[rank].last() if job.dumps[rank].is_gloo else None
        call = own.get(last[1].sequence) if last and last[0].name == group.name else None
        if call and call.is_done and not group.absent(call.sequence):
            yield Meeting(
                group=group, sequence=call.sequence, here={rank: call}, absent=[], unknown=unknown
            )


def _pairs(job: Job, group: JobGroup) -> Iterator[Meeting]:
    """Return the sends and receives of a group that wait for their other ends."""
    sent: dict[tuple[int, int], list[CollectiveCall]] = defaultdict(list)
    received: dict[tuple[int, int], list[CollectiveCall]] = defaultdict(list)
    for rank, calls in group.p2p.items():
        for call in calls:
            if ends := ends_of(call, rank, group.members):
                side = sent if call.what.operation.startswith("send") else received
                side[ends].append(call)
    for pair in sorted(sent.keys() | received.keys()):
        source, target = pair
        outs, ins = sent[pair], received[pair]
        if source not in job.dumps or target not in job.dumps:
            rank, calls, other = (
                (source, outs, target) if source in job.dumps else (target, ins, source)
            )
            for call in calls:
                if not call.is_done:
                    yield Meeting(
                        group=group, sequence=call.sequence, here={rank: call}, absent=[],
                        unknown=[other],
                    )  # fmt: skip
            continue
        made = (len(outs), len(ins))
        if not (job.dumps[source].is_whole and job.dumps[target].is_whole):
            # Their starts are lost: what is still open belongs together.
            outs, ins = ([c for c in calls if not c.is_done] for calls in (outs, ins))
        for out, into in zip(outs, ins, strict=False):
            if not (out.is_done and into.is_done):
                yield Meeting(
                    group=group, sequence=out.sequence, here={source: out, target: into},
                    absent=[], unknown=[],
                )  # fmt: skip
        more, rank, other = (
            (outs, source, target) if len(outs) > len(ins) else (ins, target, source)
        )
        for call in more[min(len(outs), len(ins)) :]:
            yield Meeting(
                group=group, sequence=call.sequence, here={rank: call}, absent=[other], unknown=[],
                is_done=call.is_done, counts=made if rank == source else made[::-1],
            )  # fmt: skip


def _connect(waits: Waits) -> None:
    """Draw an edge from each meeting and each rank to what it waits for."""
    job, edges = waits.job, waits.edges
    chains = _chains(waits.meetings)
    for place, meeting in enumerate(waits.meetings):
        node: Node = ("meeting", place)
        fault = _fault(waits, meeting)
        if fault is not None:
            edges[node].append(("fault", fault))
        elif meeting.is_unlike:
            continue
        elif meeting.absent:
            edges[node] += [("rank", rank) for rank in meeting.absent]
        else:
            edges[node] += [("rank", rank) for rank in meeting.unknown]
            edges[node] += _held_up(waits, meeting, chains, place)
    for place, meeting in enumerate(waits.meetings):
        for rank, call in meeting.here.items():
            is_waiting = not call.is_done or job.dumps[rank].is_gloo
            if is_waiting and rank not in waits.devices:
                edges[("rank", rank)].append(("meeting", place))


def _fault(waits: Waits, meeting: Meeting) -> int | None:
    for place, (fault, groups) in enumerate(waits.faults):
        is_in = meeting.group in groups and not meeting.call.is_p2p
        if is_in and (fault.kind == "members" or meeting.sequence >= fault.sequence):
            return place
    return None


Chain = list[tuple[int, int]]  # (order, place of the meeting) of a rank's open calls


def _chains(meetings: Iterable[Meeting]) -> dict[int, Chain]:
    chains: dict[int, Chain] = defaultdict(list)
    for place, meeting in enumerate(meetings):
        for rank, call in meeting.here.items():
            if not call.is_done:
                chains[rank].append((call.order, place))
    for chain in chains.values():
        chain.sort()
    return chains


def _held_up(
    waits: Waits, meeting: Meeting, chains: dict[int, Chain], place: int
) -> Iterator[Node]:
    """Return what may hold up a meeting to which all came: what its ranks called before it.

    Where devices' starts are recorded, only ranks whose device did not begin it are held up.
    """
    open_on = {rank: call for rank, call in meeting.here.items() if not call.is_done}
    has_begun = any(call.is_started for call in open_on.values())
    for rank, call in open_on.items():
        if call.is_started:
            continue
        batch = [other for other in _at(chains[rank], call.order) if other != place]
        batch = [other for other in batch if waits.meetings[other].absent]
        yield from (("meeting", other) for other in batch)
        before = bisect_left(chains[rank], (call.order, -1))
        if before:
            last = chains[rank][before - 1][0]
            yield from (("meeting", other) for other in _at(chains[rank], last))
        elif has_begun and not batch:
            waits.devices.add(rank)
            yield ("rank", rank)


def _at(chain: Chain, order: int) -> list[int]:
    """Return the meetings of the calls that a rank made together."""
    start, end = bisect_left(chain, (order, -1)), bisect_left(chain, (order + 1, -1))
    return [place for _, place in chain[start:end]]
