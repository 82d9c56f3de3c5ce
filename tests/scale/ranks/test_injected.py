"""Faults of one rank in simulated jobs of 8 to 64 ranks: the headline names rank, call and line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from simulated_ranks import Call, Job

from ratchet.scale.ranks.dumps import read_dumps
from ratchet.scale.ranks.untangle import Untangled, untangle, untangled_report


@dataclass(frozen=True)
class Injected:
    """A job with a fault, and what must be said of it."""

    job: Job
    ranks: tuple[int, ...]
    kinds: tuple[str, ...]
    call: Call  # The call that its ranks leave out, get wrong or are waited for at


def skipped(job: Job, rank: int, family: str, line: int) -> Injected:
    place = job.find(rank, family, line)
    kinds = ("p2p",) if family == "PP" else ("skipped",)
    return Injected(job, (rank,), kinds, job.ranks[rank].program.pop(place))


def stuck(job: Job, rank: int, family: str, line: int, dump: str = "whole") -> Injected:
    place = job.find(rank, family, line)
    job.ranks[rank].stops_at = place
    job.ranks[rank].dump = dump
    kinds = ("p2p",) if family == "PP" else ("missing",)
    return Injected(job, (rank,), kinds, job.ranks[rank].program[place])


def wrong(job: Job, rank: int, family: str, line: int, kind: str, **changed: object) -> Injected:
    place = job.find(rank, family, line)
    job.change(rank, place, **changed)
    return Injected(job, (rank,), (kind,), job.ranks[rank].program[place])


def swapped(job: Job, rank: int, family: str, line: int) -> Injected:
    own, place = job.ranks[rank].program, job.find(rank, family, line)
    own[place], own[place + 1] = own[place + 1], own[place]
    return Injected(job, (rank,), ("order", "skipped", "deadlock"), own[place + 1])


def extra(job: Job, rank: int, family: str, line: int) -> Injected:
    place = job.find(rank, family, line)
    own = job.ranks[rank].program
    made = Call(family=family, operation=own[place].operation, line=77, function="log")
    own.insert(place, made)
    return Injected(job, (rank,), ("extra", "shape"), made)


def device(job: Job, rank: int, family: str, line: int) -> Injected:
    place = job.find(rank, family, line)
    job.ranks[rank].device_stops_at = place
    return Injected(job, (rank,), ("device",), job.ranks[rank].program[place])


def lost_too(made: Injected, rank: int) -> Injected:
    """Leave out the dump of a rank that is well."""
    made.job.ranks[rank].dump = "none"
    return made


def other_view(job: Job, rank: int, family: str, line: int) -> Injected:
    """Let a rank take a group for another one of the same name."""
    name, members = job.views[rank][family]
    place = job.find(rank, family, line, step=0)
    job.views[rank][family] = (name, (*members[:-1], members[-1] + 1))
    return Injected(job, (rank,), ("members",), job.ranks[rank].program[place])


WIDE = {"data": 8, "tensor": 1, "pipeline": 1}
LARGE = {"data": 4, "tensor": 4, "pipeline": 4}
DEEP = {"data": 2, "tensor": 1, "pipeline": 4, "micro_batches": 3}
INJECTED: dict[str, Callable[[], Injected]] = {
    "skips-bucket": lambda: skipped(Job(**WIDE), 5, "DP", 31),
    "skips-of-pair": lambda: skipped(Job(), 7, "TP", 12),
    "skips-running-ahead": lambda: skipped(Job(**LARGE, ahead=3), 50, "TP", 22),
    "skips-json": lambda: stuck(Job(**WIDE, form="json"), 2, "DP", 31),
    "stuck": lambda: stuck(Job(), 9, "TP", 11),
    "stuck-before-send": lambda: stuck(Job(**LARGE), 37, "PP", 13),
    "stuck-before-gather": lambda: stuck(Job(**LARGE), 63, "DP", 32),
    "stuck-batched": lambda: stuck(Job(**DEEP, is_batched=True), 5, "PP", 20),
    "dead": lambda: stuck(Job(), 6, "DP", 30, dump="none"),
    "dead-in-dump": lambda: stuck(Job(**LARGE), 21, "TP", 12, dump="cut"),
    "stuck-other-lost": lambda: lost_too(stuck(Job(), 3, "TP", 21), 12),
    "size": lambda: wrong(Job(data=8), 17, "DP", 31, "shape", size=96),
    "dtype": lambda: wrong(Job(**WIDE), 3, "DP", 30, "dtype", dtype="Float"),
    "dtype-of-pair": lambda: wrong(Job(), 4, "TP", 12, "dtype", dtype="Float"),
    "operation": lambda: wrong(Job(), 10, "DP", 32, "operation", operation="broadcast"),
    "order-in-group": lambda: swapped(Job(data=8), 10, "DP", 31),
    "order-of-groups": lambda: swapped(Job(**LARGE), 4, "DP", 32),
    "extra": lambda: extra(Job(data=8), 20, "DP", 31),
    "device": lambda: device(Job(data=3, pipeline=4, has_timing=True, ahead=2), 13, "TP", 11),
    "members": lambda: other_view(Job(**WIDE), 0, "DP", 30),
    "skips-send": lambda: skipped(Job(**DEEP), 2, "PP", 13),
    "quiet-in-group": lambda: stuck(Job(buffer=9, micro_batches=4), 9, "TP", 22),
    "old-version": lambda: stuck(Job(version="2.3"), 11, "DP", 31),
}


def found_in(job: Job, folder: Path) -> Untangled:
    return untangle(read_dumps([job.run().write(folder / "dumps")]))


@pytest.mark.parametrize("name", INJECTED)
def test_an_injected_fault_leads(name: str, tmp_path: Path) -> None:
    made = INJECTED[name]()
    found = found_in(made.job, tmp_path)
    first = found.found[0]
    assert first.kind in made.kinds, first
    assert set(first.ranks) == set(made.ranks), first
    assert made.call.operation in first.said or made.call.ends, first
    assert made.call.where in first.said or made.job.form == "json", first
    accused = {rank for one in found.found for rank in one.ranks}
    assert accused <= set(made.ranks) | set(found.missing_dumps), found.found
    assert not found.is_clear
    assert untangled_report(found).headline.startswith(first.kind)


@pytest.mark.parametrize(
    "job",
    [
        Job(), Job(**WIDE), Job(**LARGE), Job(ahead=4), Job(is_batched=True, ahead=2),
        Job(version="2.2"), Job(version="2.3"), Job(form="json"), Job(buffer=10),
    ],
)  # fmt: skip
def test_a_job_that_ended_has_nothing_found(job: Job, tmp_path: Path) -> None:
    found = found_in(job, tmp_path)
    assert found.is_clear and "agree" in untangled_report(found).headline
