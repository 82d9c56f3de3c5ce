"""`ratchet bench WORKLOAD --parallel LAYOUT`: step time, memory and communication by rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final

import msgspec

from ratchet.base import git, scratch
from ratchet.base.devices.probe import probe, software
from ratchet.base.ledger import Ledger
from ratchet.base.ledger.books import ObservationBook
from ratchet.scale.parallel.launch import Communication, communication_of, run_ranks
from ratchet.scale.parallel.rank import WARMUP_STEPS, RankRequest, RankResult
from ratchet.train.turn.bench import Figure, observed
from ratchet.train.workloads.bench import spread_of
from ratchet.train.workloads.names import LoadOptions
from ratchet.train.workloads.parallel import ParallelLayout
from ratchet.train.workloads.parallel.meshes import check_devices

ARM: Final = "step"
BENCHED: Final = "bench-parallel"  # Kind of evidence: the figures of one layout


@dataclass(frozen=True, kw_only=True, slots=True)
class RankBench:
    """One rank's figures; times are of a step, in seconds."""

    rank: int
    host: str
    device: str
    step_time_s: float  # Median
    low_s: float
    high_s: float
    peak_memory_bytes: int
    communication: Communication


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelBench:
    workload: str
    layout: str
    world: int
    step_time_s: float  # Median of each step's slowest rank
    low_s: float
    high_s: float
    slowest_rank: int  # The rank that was slowest in most steps
    first_step_s: float
    tokens_per_s: float  # Items of `unit` of all ranks per second
    unit: str
    items_per_step: int
    sequence: int  # Tokens of a sequence; 0 if the batches hold none
    steps: int
    parameters: int
    peak_memory_bytes: int  # Peak of the rank that takes most
    exposed_communication_s: float  # Time of the rank that exposes most, a step
    threads: int  # CPU threads of each rank
    loss: float  # Loss of the last timed step
    ranks: tuple[RankBench, ...]


def bench_parallel(
    workload: str, layout: ParallelLayout, *, options: LoadOptions, steps: int
) -> ParallelBench:
    """Time `steps` steps of a workload, as written, on the ranks of a layout on this machine.

    Raises DeviceError for more ranks than this machine holds, WorkloadError for a layout that the
    workload does not allow, and RanksError if a rank dies.
    """
    check_devices(layout, str(options["device"]))
    asked = RankRequest(
        workload=workload,
        options=options,
        layout=str(layout),
        arms={ARM: None},
        rounds=steps,
    )
    with scratch.folder("ranks") as folder:
        found = run_ranks(asked, folder)
        talk = [communication_of(folder / one.arms[ARM].trace) for one in found]
    return _figures(asked, found, talk)


def record_parallel(result: ParallelBench, *, device: str, ledger: str | None) -> dict[str, object]:
    """Store the figures in the ledger; return them as JSON with versions and commit."""
    commit = git.stamp(Path.cwd())
    document = {**asdict(result), "versions": asdict(software()), "commit": commit.revision}
    with Ledger.open(ledger) as book:
        here = book.here(probe(device))
        book.remember(BENCHED, f"{result.workload} {result.layout}", document, fingerprint=here)
        figures: list[Figure] = [
            ("step_time_s", "s", result.step_time_s, result.low_s, result.high_s),
            ("peak_memory_bytes", "B", result.peak_memory_bytes, None, None),
            ("exposed_communication_s", "s", result.exposed_communication_s, None, None),
        ]
        name = f"{result.workload} ({result.layout})"
        ObservationBook(book).record(observed(name, figures, commit, here))
    return document


def recorded(workload: str, *, device: str, ledger: str | None) -> list[ParallelBench]:
    """Return the newest figures of each layout that this machine's ledger holds for a workload."""
    with Ledger.open_to_read(ledger) as book:
        found = book.newest_of(BENCHED, fingerprint=book.here(probe(device)))
    names = {one.name for one in fields(ParallelBench)}
    own = [one for one in found.values() if one["workload"] == workload and names <= one.keys()]
    return [msgspec.convert(one, ParallelBench) for one in own]


def _figures(
    asked: RankRequest, found: Sequence[RankResult], talk: Sequence[Communication]
) -> ParallelBench:
    own = [one.arms[ARM].times_s for one in found]
    slowest = [max(step) for step in zip(*own, strict=True)]
    late = Counter(step.index(max(step)) for step in zip(*own, strict=True))
    first = found[0]
    low_s, middle_s, high_s = spread_of(slowest)
    return ParallelBench(
        workload=asked.workload,
        layout=asked.layout,
        world=len(found),
        step_time_s=middle_s,
        low_s=low_s,
        high_s=high_s,
        slowest_rank=late.most_common(1)[0][0],
        first_step_s=max(one.arms[ARM].first_step_s for one in found),
        tokens_per_s=first.items_per_step / middle_s,
        unit=first.unit,
        items_per_step=first.items_per_step,
        sequence=first.sequence,
        steps=asked.rounds,
        parameters=first.parameters,
        peak_memory_bytes=max(one.arms[ARM].peak_memory_bytes for one in found),
        exposed_communication_s=max(one.exposed_s for one in talk),
        threads=first.threads,
        loss=first.arms[ARM].losses[WARMUP_STEPS + asked.rounds - 1],
        ranks=tuple(_of_rank(*one) for one in zip(found, talk, strict=True)),
    )


def _of_rank(one: RankResult, talk: Communication) -> RankBench:
    low_s, middle_s, high_s = spread_of(one.arms[ARM].times_s)
    return RankBench(
        rank=one.rank,
        host=one.host,
        device=one.device,
        step_time_s=middle_s,
        low_s=low_s,
        high_s=high_s,
        peak_memory_bytes=one.arms[ARM].peak_memory_bytes,
        communication=talk,
    )
