"""Why a job hangs, from its ranks' flight-recorder dumps: the cause first, then what follows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from ratchet.base.show import model as m
from ratchet.scale.ranks.beside import EndedRank
from ratchet.scale.ranks.disagree import Disagreement, members_disagree, named, parting
from ratchet.scale.ranks.dumps import Calling, CollectiveCall, Read
from ratchet.scale.ranks.groups import Job, Site, habit, job_of, site
from ratchet.scale.ranks.logs import NO_DUMPS, logged
from ratchet.scale.ranks.waits import Meeting, Source, Waits, is_troubled, waits_of

MOST_FOLLOWING: Final = 12  # Lines of consequences that are shown
MOST_SUSPECTS: Final = 256  # Ranks of a circle whose programs are compared
FRAMES: Final = 3  # Frames of a stack that a sentence holds


@dataclass(frozen=True, kw_only=True, slots=True)
class Untangled:
    ranks: tuple[int, ...]
    missing_dumps: tuple[int, ...]  # Ranks that some dump names and that left none
    calls: int
    found: tuple[Disagreement, ...]  # The one that most ranks wait for first
    unseen: tuple[str, ...]  # What was not recorded, so that nothing is known of it
    faults: tuple[str, ...]  # Files that could not be read

    @property
    def is_clear(self) -> bool:
        """Return whether nothing was found, and everything that was given was looked at."""
        return not (self.found or self.unseen or self.faults)


def untangle(read: Read) -> Untangled:
    """Return what a job's ranks wait for, the sources of the graph of waits first."""
    if not read.dumps:
        beside = read.beside
        return Untangled(
            ranks=tuple(
                sorted({one.rank for one in beside.ended} | {one.rank for one in beside.timed_out})
            ),
            missing_dumps=(),
            calls=0,
            found=tuple(logged(beside)),
            unseen=(*_restarts(read), NO_DUMPS),
            faults=read.faults,
        )
    job = job_of(read.dumps)
    faults = members_disagree(job)
    doubted = {group for _, groups in faults for group in groups}
    for group in job.groups:
        if group not in doubted:
            found = parting(job, group, is_troubled=is_troubled(job, group))
            if found:
                faults.append((found, (group,)))
    waits = waits_of(job, faults)
    told = _Told(read=read, waits=waits)
    return Untangled(
        ranks=tuple(job.dumps),
        missing_dumps=job.missing,
        calls=sum(len(group.calls) for dump in read.dumps for group in dump.groups.values()),
        found=tuple(told.found()),
        unseen=(*_restarts(read), *_unseen(job)),
        faults=read.faults,
    )


def _restarts(read: Read) -> list[str]:
    """Return what logs say of attempts before the one that the dumps are of."""
    return [
        f"{one.path.name} says that local rank {one.rank} ended ({one.said}) and that torchrun "
        f"started all ranks again: the {'dumps are' if read.dumps else 'rest is'} of the attempt "
        "after it"
        for one in read.beside.ended
        if one.was_restarted
    ]


def _unseen(job: Job) -> list[str]:
    """Return what the dumps do not record."""
    dumps = job.dumps.values()
    said = []
    if any(dump.is_gloo for dump in dumps):
        said.append(
            "gloo records no sends and receives and not whether a collective failed: a rank may "
            "wait in one that is not here"
        )
    if not any(group.calls for dump in dumps for group in dump.groups.values()):
        said.append(
            "the dumps hold no call, so nothing can be compared: see that the job starts with "
            "TORCH_FR_BUFFER_SIZE=2000"
        )
    if len(job.dumps) == 1 and len(job.world) > 1:
        said.append(f"there is one dump of {len(job.world)} ranks: nothing can be compared")
    if unlisted := [group.title for group in job.groups if not group.is_known]:
        said.append(
            f"the dumps do not list the members of group {', '.join(unlisted[:8])}: a rank that "
            "never called anything there is not missed, and sends are not matched"
        )
    return said


@dataclass(frozen=True, kw_only=True)
class _Told:
    """Sources put into words."""

    read: Read
    waits: Waits

    @property
    def job(self) -> Job:
        return self.waits.job

    def found(self) -> list[Disagreement]:
        """Return the findings, that without which nothing else follows first."""
        ranked: list[tuple[tuple[object, ...], Disagreement]] = []
        together: dict[int, list[tuple[int, Source]]] = defaultdict(list)
        sources = self.waits.sources
        likely = self._likeliest(sources)
        for source in sources:
            kind, place = source.nodes[0]
            if len(source.nodes) == 1 and kind == "rank":
                nearest = self._missed(place, source)
                together[0 if place in likely else id(nearest)].append((place, source))
                continue
            if len(source.nodes) > 1:
                one = self._circle(source)
                weight = 0
            elif kind == "fault":
                one = self.waits.faults[place][0]
                weight = 0 if source.waiting else 3
            else:
                one = self._unended(self.waits.meetings[place])
                weight = 0 if one.kind == "shape" else 2
            ranked.append((self._key(weight, source), self._with(one, source)))
        for alike in together.values():
            ranks = sorted(rank for rank, _ in alike)
            source = max((source for _, source in alike), key=lambda one: len(one.waiting))
            one, weight = self._absent(ranks, self._missed(ranks[0], source), source)
            ranked.append((self._key(weight, source), self._with(one, source)))
        ranked.sort(key=lambda pair: pair[0])
        found = [one for _, one in ranked]
        return self._ended_first(found)

    def _likeliest(self, sources: Sequence[Source]) -> set[int]:
        """Return the ranks without a dump that explain all that waits for any of those."""
        unseen = {
            place: one.waiting
            for one in sources
            for kind, place in one.nodes
            if kind == "rank" and place not in self.job.dumps
        }
        explained = frozenset().union(*unseen.values())
        alone = {rank for rank, waiting in unseen.items() if waiting == explained}
        return alone or set(unseen)

    def _key(self, weight: int, source: Source) -> tuple[object, ...]:
        stopped = min((one.call.created_ns for one in source.meetings), default=0)
        return weight, -len(source.waiting), stopped, str(source.nodes[0])

    def _with(self, one: Disagreement, source: Source) -> Disagreement:
        own = {rank for kind, rank in source.nodes if kind == "rank"}
        lines = (
            []
            if not source.waiting - set(one.ranks)
            else [
                f"group {meeting.group.title}, {_numbered(meeting)} at {meeting.call.what.where}: "
                f"{named(meeting.waiting)} wait{'s' if len(meeting.waiting) == 1 else ''}"
                for meeting in source.meetings
                if not meeting.is_done
            ]
        )
        if len(lines) > MOST_FOLLOWING:
            lines[MOST_FOLLOWING:] = [f"and {len(lines) - MOST_FOLLOWING} more"]
        waiting = source.waiting - own - set(one.ranks)
        return replace(one, waiting=tuple(sorted(waiting)), follows=tuple(lines))

    def _missed(self, rank: int, source: Source) -> Meeting:
        """Return the meeting that a rank did not come to, of several the one that was next."""
        if rank in self.waits.devices:
            held = [one for one in source.meetings if rank in one.here]
            return min(held, key=lambda one: one.here[rank].order)
        missed = [
            one for one in source.meetings if rank in one.absent or rank in one.unknown
        ] or list(source.meetings)
        return max(
            missed,
            key=lambda one: (
                rank in one.absent,
                not one.is_done,
                rank in self.job.dumps or not one.call.is_p2p,
                self.waits.comes_next(rank, one),
                -len(one.absent) - len(one.unknown),  # others that it waits for wait themselves
                -one.call.created_ns,
            ),
        )

    def _absent(
        self, ranks: list[int], missed: Meeting, source: Source
    ) -> tuple[Disagreement, int]:
        """Return the finding of ranks that did not come, and how unsure it is."""
        what = missed.call.what
        waiting = [rank for rank in missed.waiting if rank not in ranks]
        awaited = f"{_numbered(missed)} at {what.where}"
        is_pair = missed.call.is_p2p and len(ranks) == 1
        if waiting and not is_pair:
            awaited += f", where {named(waiting)} wait{_s(waiting)}"
        stacks = {missed.waiting[0]: what.stack}
        if set(ranks) <= self.waits.devices:
            return Disagreement(
                kind="device",
                group=missed.group.title,
                sequence=missed.sequence,
                said=f"{named(ranks)} called {awaited}, but the device did not begin it",
                remedy="look at the kernel before it on that device: one that does not end, or "
                "a device that stopped",
                ranks=tuple(ranks),
                stacks=stacks,
            ), 0
        told = [self._last(rank, missed, stacks) for rank in ranks[:4]]
        last = "; ".join(dict.fromkeys(filter(None, told)))
        if len(ranks) > 1 and len(set(told)) == 1:  # what is said of each is the same
            last = last.replace("its dump cannot", "their dumps cannot", 1)
            last = last.replace("it left", "they left", 1)
        is_known = all(rank in self.job.dumps and rank not in missed.group.blank for rank in ranks)
        did = "did not come to" if is_known else "may not have come to"
        if is_pair:
            not_ = "did not" if is_known else "may not have"
            pair = ("receive", "sent") if what.operation.startswith("send") else ("send", "awaits")
            end = pair[0] if is_known else {"receive": "received", "send": "sent"}[pair[0]]
            did = f"{not_} {end} what {named(missed.waiting)} {pair[1]} in"
        said = f"{named(ranks)} {did} {awaited}{': ' if last else ''}{last}"
        if missed.counts:
            here, there = missed.counts
            said += f" ({here} of these calls were made, and {there} at the other end)"
        return Disagreement(
            kind="p2p" if missed.call.is_p2p else "missing",
            group=missed.group.title,
            sequence=missed.sequence,
            said=said,
            remedy="match every send with a receive, or see what the other end does"
            if missed.call.is_p2p
            else f"see what {named(ranks)} did after that: an exception, a slow input, another "
            "branch",
            ranks=tuple(ranks),
            stacks=stacks,
        ), (0 if is_known and not missed.is_done else 3 if missed.is_done else 1)

    def _last(self, rank: int, missed: Meeting, stacks: dict[int, tuple[str, ...]]) -> str:
        """Return what is known of a rank that did not come."""
        said = []
        if rank not in self.job.dumps:
            broken = rank in self.read.broken
            said.append("its dump cannot be read" if broken else "it left no dump")
        else:
            last = self.job.dumps[rank].last()
            number = missed.group.last_number(rank) if rank in missed.group.collectives else 0
            if last:
                group, call = last
                where = "" if group.name == missed.group.name else f", group {group.title}"
                said.append(
                    f"its last call was {call.what.operation} (number {call.sequence}{where}) at "
                    f"{_path(call.what)}"
                )
                stacks[rank] = call.what.stack
                if (usual := self.waits.usual_next(rank)) and usual != site(missed.call.what):
                    said.append(f"after which {_at(usual)} comes otherwise")
            else:
                said.append("its dump holds no call")
            if number and (not last or last[0].name != missed.group.name):
                said.append(f"its last one in this group was number {number}")
        if stack := self.read.beside.stacks.get(rank):
            said.append(f"it is at {' < '.join(stack[:FRAMES])}")
            stacks[rank] = stack
        said += [f"{one.path.name}: {one.said}" for one in self._ended(rank)]
        return ", ".join(said)

    def _ended(self, rank: int) -> list[EndedRank]:
        ended = self.read.beside.ended
        return [one for one in ended if one.rank == rank and not one.was_restarted][:1]

    def _ended_first(self, found: list[Disagreement]) -> list[Disagreement]:
        """Put what a log says ended first before what only follows from it."""
        first = next((one for one in self.read.beside.ended if not one.was_restarted), None)
        if first is None:
            return found
        about = [one for one in found if first.rank in one.ranks and one.kind != "unfinished"]
        if about:
            return [*about, *(one for one in found if one not in about)]
        waiting = tuple(sorted({rank for one in found for rank in one.waiting} - {first.rank}))
        stack = self.read.beside.stacks.get(first.rank, ())
        last = self.job.dumps[first.rank].last() if first.rank in self.job.dumps else None
        at = f", after {last[1].what.operation} at {_path(last[1].what)}" if last else ""
        ended = Disagreement(
            kind="ended",
            group=last[0].title if last else "",
            sequence=last[1].sequence if last else 0,
            said=f"rank {first.rank} ended first ({first.said}, {first.path.name}){at}",
            remedy="see that rank's own output for the reason",
            ranks=(first.rank,),
            stacks={first.rank: stack or (last[1].what.stack if last else ())},
            waiting=waiting,
        )
        return [ended, *found]

    def _unended(self, meeting: Meeting) -> Disagreement:
        """Return the finding of a meeting that all came to and that does not end."""
        what = meeting.call.what
        waiting = meeting.waiting
        ranks = sorted(meeting.here)
        if meeting.is_unlike:
            made = self.job.habits.made[meeting.group.family]
            ranks.sort(key=lambda rank: made[habit(meeting.here[rank].what)])
            a, b = (meeting.here[rank].what for rank in ranks)
            is_sure = made[habit(a)] == 1 < made[habit(b)]
            return Disagreement(
                kind="shape",
                group=meeting.group.title,
                sequence=meeting.sequence,
                said=f"{_sized(ranks[0], a)}, and {_sized(ranks[1], b)}",
                remedy="send and receive one size and dtype",
                ranks=tuple(ranks[:1] if is_sure else ranks),
                stacks={rank: meeting.here[rank].what.stack for rank in ranks},
            )
        return Disagreement(
            kind="unfinished",
            group=meeting.group.title,
            sequence=meeting.sequence,
            said=f"every rank called {_numbered(meeting)} at {what.where} alike, and it did not "
            f"end on {named(waiting)}",
            remedy="the call itself is right: look at the network, at a device that stopped, "
            "or at a kernel before it that does not end",
            ranks=tuple(waiting),
            stacks={waiting[0]: meeting.here[waiting[0]].what.stack},
        )

    def _circle(self, source: Source) -> Disagreement:
        """Return the finding of ranks that wait for each other."""
        places = [place for kind, place in source.nodes if kind == "meeting"]
        meetings = [self.waits.meetings[place] for place in places]
        if all(kind == "meeting" for kind, _ in source.nodes):
            return self._crossed(meetings)
        held: dict[int, tuple[Meeting, CollectiveCall]] = {}
        for one in meetings:
            for rank, call in one.here.items():
                if rank not in held or held[rank][1].order < call.order:
                    held[rank] = (one, call)
        left = [rank for kind, rank in source.nodes if kind == "rank" and rank in held]
        suspects = list(held) if len(held) <= MOST_SUSPECTS else left[:MOST_SUSPECTS]
        novel = {rank: new for rank in suspects if (new := self.waits.novelty(rank))}
        told = {r: (_at(site(call.what)), _at(usual)) for r, (call, usual) in novel.items()}
        if not told:  # the same calls as ever, but with another rank
            told = {
                rank: (f"{call.what.operation} at {call.what.where}", usual)
                for rank, (one, call) in held.items()
                if (usual := self.waits.other_end(rank, one.group, call))
            }
        is_sure = len(told) == 1
        named_first = list(told) if is_sure else left or list(held)
        said = []
        for rank in named_first[:2]:
            one, call = held[rank]
            if is_sure:
                made, usual = told[rank]
                said.append(f"rank {rank} called {made}, where {usual} is usual")
            missed = [meeting for meeting in meetings if rank in meeting.absent]
            whom = missed[0] if missed else one
            said.append(
                f"rank {rank} waits in {_numbered(one)} of group {one.group.title} at "
                f"{_path(call.what)}, and {named(whom.waiting)} wait{_s(whom.waiting)} for it in "
                f"{_numbered(whom)} of group {whom.group.title} at {whom.call.what.where}"
            )
        first, _ = held[named_first[0]]
        return Disagreement(
            kind="p2p" if first.call.is_p2p else "deadlock",
            group=first.group.title,
            sequence=first.sequence,
            said="; ".join(said),
            remedy="call what they wait in in one order on every rank, and match every send with "
            "a receive",
            ranks=tuple(sorted(told if is_sure else held)),
            stacks={rank: held[rank][1].what.stack for rank in named_first[:2]},
        )

    def _crossed(self, meetings: Sequence[Meeting]) -> Disagreement:
        """Return the finding of meetings that ranks called in different orders."""
        for one in meetings:
            for other in meetings:
                both = sorted(one.here.keys() & other.here.keys())
                early = [rank for rank in both if one.here[rank].order < other.here[rank].order]
                late = [rank for rank in both if one.here[rank].order > other.here[rank].order]
                if late and len(early) >= len(late):
                    return self._other_way(one, other, early, late)
        return self._unended(min(meetings, key=lambda one: one.call.created_ns))

    def _other_way(
        self, one: Meeting, other: Meeting, early: list[int], late: list[int]
    ) -> Disagreement:
        news = [any(self.waits.novelty(rank) for rank in ranks) for ranks in (early, late)]
        if len(early) == len(late) and news == [True, False]:
            early, late, one, other = late, early, other, one
        a, b = other.here[late[0]].what, one.here[late[0]].what
        is_sure = len(early) > len(late) or news[0] != news[1]
        return Disagreement(
            kind="order",
            group=one.group.title,
            sequence=one.sequence,
            said=f"{named(late)} called {a.operation} (group {other.group.title}) at {a.where} "
            f"before {b.operation} (group {one.group.title}) at {b.where}, {named(early)} the "
            "other way round",
            remedy="call them in one order on every rank",
            ranks=tuple(late if is_sure else sorted({*early, *late})),
            stacks={rank: one.here[rank].what.stack for rank in (late[0], early[0])},
        )


def _s(ranks: Sequence[int]) -> str:
    return "s" if len(ranks) == 1 else ""


def _numbered(meeting: Meeting) -> str:
    return f"{meeting.call.what.operation} (number {meeting.sequence})"


def _at(where: Site) -> str:
    operation, stack = where
    return f"{operation} at {stack[0]}" if stack else operation


def _path(what: Calling) -> str:
    return " < ".join(what.stack[:FRAMES]) or what.where


def _sized(rank: int, what: Calling) -> str:
    sizes = ", ".join(str(list(one)) for one in what.inputs)
    return (
        f"rank {rank} called {what.operation} with {sizes} {', '.join(what.dtypes)} at {what.where}"
    )


def untangled_report(found: Untangled) -> m.ResultReport:
    """Describe the cause with what follows from it, other findings, and what was not looked at."""
    count = len(found.ranks)
    ranks = f"{count} rank{'' if count == 1 else 's'}"
    missing = named(found.missing_dumps) if found.missing_dumps else ""
    left_out = f"{missing} left no dump: not looked at" if missing else ""
    if found.found:
        first = found.found[0]
        headline = f"{_title(first)}: {first.said}."
    elif found.faults:
        files = len(found.faults)
        headline = (
            f"{files} file{'' if files == 1 else 's'} cannot be read ({found.faults[0]}): nothing "
            f"was found in the {found.calls} calls of {ranks} that could be."
        )
    elif found.unseen:
        headline = (
            f"Nothing was found in {found.calls} calls of {ranks}, but not everything was looked "
            f"at: {found.unseen[0]}."
        )
    else:
        headline = (
            f"{found.calls} calls of {ranks} agree: no rank waits for another in what the dumps "
            f"hold{f' ({left_out})' if left_out else ''}."
        )
    return m.ResultReport(
        headline=headline,
        sections=m.blocks(
            *(_section(one, first=place == 0) for place, one in enumerate(found.found)),
            m.section("Not there", f"{left_out}.") if left_out else None,
            m.section("Not recorded", *found.unseen) if found.unseen else None,
            m.section("Not read", *found.faults) if found.faults else None,
        ),
    )


def _title(one: Disagreement) -> str:
    if not one.group:  # a log does not name it
        return f"{one.kind}, collective {one.sequence}" if one.sequence else one.kind
    return f"{one.kind} in group {one.group}, collective {one.sequence}"


def _section(one: Disagreement, *, first: bool) -> m.ReportSection:
    stacks = [
        m.section(f"Stack of rank {rank}", m.Lines(stack))
        for rank, stack in one.stacks.items()
        if stack
    ]
    title = _title(one)
    return m.section(
        title[0].upper() + title[1:],
        "" if first else f"{one.said}.",
        f"To fix it: {one.remedy}.",
        *stacks,
        m.section(f"What follows from it: {len(one.waiting)} ranks wait", m.Lines(one.follows))
        if one.follows
        else None,
    )
