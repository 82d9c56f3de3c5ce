"""Check the ranks of a job before it starts: speed, links, clocks and versions.

Every rank runs `preflight` (torchrun starts them); rank 0 gets the answer. Alone, a process checks
its own device. Every wait has a limit, which the error names.
"""

from __future__ import annotations

import datetime
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from ratchet.base.errors import RanksError
from ratchet.base.show import model as m
from ratchet.base.show.words import show_bandwidth, show_flops
from ratchet.train.workloads.parallel.meshes import rank_device

GEMM_SIZE: Final = {"cpu": 1024, "cuda": 8192}
COPY_BYTES: Final = {"cpu": 64 << 20, "cuda": 1 << 30}
MESSAGE_BYTES: Final = {"cpu": 8 << 20, "cuda": 128 << 20}
REPEATS: Final = 5
SLOW: Final = 0.85  # Share of the ranks' median below which a rank is named an outlier
SLOW_OF_FEW: Final = 0.5
"""The same of a link beside the fastest, where three are too few for a median to tell."""
SKEW_S: Final = 0.01
"""Difference of clocks that is named: traces and logs of ranks are compared by their clocks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankCheck:
    """Figures that one rank measured. Bandwidths are 0 without other ranks."""

    rank: int
    host: str
    device: str
    gemm_flops_per_s: float  # fp32 products on a CPU, bf16 on a GPU
    copy_bytes_per_s: float  # Bytes read and written by a copy
    ring_bytes_per_s: float  # Sent to the next rank while it receives from the one before
    all_to_all_bytes_per_s: float  # Bytes that one rank sends to all others together
    clock_skew_s: float  # Its clock minus rank 0's, less half the way there and back
    versions: dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Preflight:
    """Figures of all ranks, and what stands out."""

    ranks: tuple[RankCheck, ...]
    pairs: dict[str, float]
    """Bytes per second between two ranks, by `0-1`: neighbours, and those half the world apart."""
    outliers: tuple[str, ...]  # A sentence each; empty if the ranks are alike


def preflight(device: str, *, time_limit_s: float = 60.0) -> Preflight | None:
    """Measure this rank, and all of them if torchrun started it; None on other ranks than 0.

    Raises RanksError if the ranks do not meet, or if one stops answering, within the limit.
    """
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    where = rank_device(device)
    if world == 1:
        return _answer([_own(rank, where)], {})
    limit = datetime.timedelta(seconds=time_limit_s)
    backend = "nccl" if where.type == "cuda" else "gloo"
    try:
        store = _all_here(rank, world, limit)
        dist.init_process_group(backend, store=store, timeout=limit, rank=rank, world_size=world)
        side = dist.new_group(backend="gloo", timeout=limit)
        return _together(rank, world, where, side)
    except (RuntimeError, dist.DistError) as error:
        said = " ".join(str(error).split())[:160]
        raise RanksError(
            f"rank {rank} of {world} waited up to {time_limit_s:g} s for the others ({said}): see "
            "which rank ended, or raise --time-limit"
        ) from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _all_here(rank: int, world: int, limit: datetime.timedelta) -> Store:
    """Return the store at which all ranks meet; RanksError names those that do not come."""
    holds = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "")
    if not host or not port.isdigit():
        raise RanksError(
            f"MASTER_ADDR is {host} and MASTER_PORT is {port or None}: start ranks with torchrun, "
            "or set both"
        )
    try:
        server = TCPStore(host, int(port), is_master=holds, timeout=limit, wait_for_workers=False)
    except dist.DistError as error:
        raise RanksError(
            f"rank {rank} of {world} reached nobody at {host}:{port} within "
            f"{limit.total_seconds():g} s: see whether rank 0, or torchrun's first node, started"
        ) from error
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"preflight/{attempt}", server)
    store.set(f"rank/{rank}", platform.node())
    store.add("count", 1)
    deadline_s = time.monotonic() + limit.total_seconds()
    while store.add("count", 0) < world and time.monotonic() < deadline_s:
        time.sleep(0.05)
    if absent := [one for one in range(world) if not store.check([f"rank/{one}"])]:
        many = f" and {len(absent) - 16} more" if len(absent) > 16 else ""
        who = ", ".join(map(str, absent[:16])) + many
        raise RanksError(
            f"rank {who} of {world} never came within {limit.total_seconds():g} s: see why it did "
            "not start, or raise --time-limit"
        )
    return store


def _together(
    rank: int, world: int, where: torch.device, side: dist.ProcessGroup | None
) -> Preflight | None:
    own = replace(_own(rank, where), clock_skew_s=_skew(rank, world, side))
    message = torch.empty(MESSAGE_BYTES[where.type] // 4, device=where)
    dist.barrier(group=side)
    own = replace(
        own,
        ring_bytes_per_s=_ring(message, rank, world, where),
        all_to_all_bytes_per_s=_all_to_all(message, world, where),
    )
    pairs = {
        f"{a}-{b}": bandwidth
        for a, b in _pairs(world)
        if (bandwidth := _pair(message, rank, a, b, where, side))
    }
    told: list[tuple[RankCheck, dict[str, float]] | None] = [None] * world
    dist.gather_object((own, pairs), told if rank == 0 else None, dst=0, group=side)
    if rank:
        return None
    gathered = [one for one in told if one is not None]
    return _answer(
        [one for one, _ in gathered],
        {name: value for _, own_pairs in gathered for name, value in own_pairs.items()},
    )


def _own(rank: int, where: torch.device) -> RankCheck:
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else platform.machine()
    return RankCheck(
        rank=rank,
        host=platform.node(),
        device=name,
        gemm_flops_per_s=_gemm(where),
        copy_bytes_per_s=_copy(where),
        ring_bytes_per_s=0.0,
        all_to_all_bytes_per_s=0.0,
        clock_skew_s=0.0,
        versions={
            "python": platform.python_version(),
            "torch": torch.__version__,
            "kernel": platform.release(),
            "accelerator": str(torch.version.hip or torch.version.cuda or "none"),
        },
    )


def _best_s(run: Callable[[], object], where: torch.device) -> float:
    """Return the shortest of some runs after one that warms up."""
    times_s = []
    for _ in range(REPEATS + 1):
        start_s = time.perf_counter()
        run()
        if where.type == "cuda":
            torch.cuda.synchronize(where)
        times_s.append(time.perf_counter() - start_s)
    return min(times_s[1:])


def _gemm(where: torch.device) -> float:
    size = GEMM_SIZE[where.type]
    dtype = torch.bfloat16 if where.type == "cuda" else torch.float32
    a = torch.ones(size, size, device=where, dtype=dtype)
    return 2 * size**3 / _best_s(lambda: a @ a, where)


def _copy(where: torch.device) -> float:
    source = torch.zeros(COPY_BYTES[where.type], dtype=torch.uint8, device=where)
    target = torch.empty_like(source)
    return 2 * source.numel() / _best_s(lambda: target.copy_(source), where)


def _ring(message: torch.Tensor, rank: int, world: int, where: torch.device) -> float:
    received = torch.empty_like(message)
    operations = [
        dist.P2POp(dist.isend, message, (rank + 1) % world),
        dist.P2POp(dist.irecv, received, (rank - 1) % world),
    ]

    def run() -> None:
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    return message.numel() * 4 / _best_s(run, where)


def _all_to_all(message: torch.Tensor, world: int, where: torch.device) -> float:
    count = message.numel() // world * world
    sent, received = message[:count], torch.empty(count, device=where)
    time_s = _best_s(lambda: dist.all_to_all_single(received, sent), where)
    return count * 4 * (world - 1) / world / time_s


def _pairs(world: int) -> list[tuple[int, int]]:
    """Return each rank with its neighbours in the ring, and with the rank half the world away."""
    neighbours = [(one, one + 1) for one in range(world - 1)]
    if world > 2:  # the ring closes, so every rank has two links or more
        neighbours.append((0, world - 1))
    far = [(one, one + world // 2) for one in range(world // 2)]
    return sorted(set(neighbours) | set(far))


def _pair(
    message: torch.Tensor,
    rank: int,
    a: int,
    b: int,
    where: torch.device,
    side: dist.ProcessGroup | None,
) -> float:
    """Return the bandwidth between two ranks, alone on the network; 0 on other ranks than `a`."""
    dist.barrier(group=side)
    if rank not in (a, b):
        return 0.0

    def run() -> None:
        if rank == a:
            dist.send(message, b)
            dist.recv(message, b)
        else:
            dist.recv(message, a)
            dist.send(message, a)

    time_s = _best_s(run, where)
    return 2 * message.numel() * 4 / time_s if rank == a else 0.0


def _skew(rank: int, world: int, side: dist.ProcessGroup | None) -> float:
    """Return this rank's clock minus rank 0's (Cristian's method, the shortest of several ways)."""
    answer = 0.0
    for other in range(1, world):
        best_s = float("inf")
        for _ in range(REPEATS):
            stamp = torch.zeros(1, dtype=torch.float64)
            if rank == 0:
                dist.recv(stamp, other, group=side)
                stamp[0] = time.time()
                dist.send(stamp, other, group=side)
            elif rank == other:
                start_s = time.time()
                dist.send(stamp, 0, group=side)
                dist.recv(stamp, 0, group=side)
                way_s = time.time() - start_s
                if way_s < best_s:
                    best_s, answer = way_s, start_s + way_s / 2 - float(stamp[0])
        dist.barrier(group=side)
    return answer


def _answer(checks: Sequence[RankCheck], pairs: dict[str, float]) -> Preflight:
    return Preflight(ranks=tuple(checks), pairs=pairs, outliers=tuple(outliers(checks, pairs)))


MEASURED: Final = {
    "gemm_flops_per_s": "matrix products",
    "copy_bytes_per_s": "memory",
    "ring_bytes_per_s": "ring",
    "all_to_all_bytes_per_s": "all-to-all",
}


def outliers(checks: Sequence[RankCheck], pairs: dict[str, float]) -> list[str]:
    """Return a sentence for each rank, pair, clock and version that stands out."""
    said = []
    for field, title in MEASURED.items():
        values = [getattr(one, field) for one in checks]
        middle = statistics.median(values)
        said += [
            f"rank {one.rank} on {one.host}: {title} at {value / middle:.0%} of the ranks' median"
            for one, value in zip(checks, values, strict=True)
            if middle > 0 and value < SLOW * middle
        ]
    said += _slow_links(checks, pairs)
    said += [
        f"rank {one.rank} on {one.host}: its clock is {one.clock_skew_s:+.3f} s off rank 0's"
        for one in checks
        if abs(one.clock_skew_s) > SKEW_S
    ]
    for name in sorted({name for one in checks for name in one.versions}):
        told: dict[str, list[int]] = {}
        for one in checks:
            told.setdefault(one.versions.get(name, "none"), []).append(one.rank)
        if len(told) > 1:
            parts = (f"{value} on {', '.join(map(str, ranks))}" for value, ranks in told.items())
            said.append(f"{name} differs between ranks: {'; '.join(parts)}")
    return said


def _slow_links(checks: Sequence[RankCheck], pairs: dict[str, float]) -> list[str]:
    """Return a sentence for each rank all of whose links are slow, and for each other slow link."""
    is_few = len(pairs) < 4
    usual = max(pairs.values(), default=0.0) if is_few else statistics.median_high(pairs.values())
    share = SLOW_OF_FEW if is_few else SLOW
    ends = {name: frozenset(map(int, name.split("-"))) for name in pairs}
    slow = {name for name, value in pairs.items() if value < share * usual}
    whole = [
        one
        for one in checks
        if (own := {name for name in pairs if one.rank in ends[name]}) <= slow and len(own) > 1
    ]
    beside = "the fastest" if is_few else "the median"
    said = []
    for one in whole:
        best = max(value for name, value in pairs.items() if one.rank in ends[name])
        said.append(f"rank {one.rank} on {one.host}: no link above {best / usual:.0%} of {beside}")
    named = {one.rank for one in whole}
    said += [
        f"ranks {name.replace('-', ' and ')}: their link at {pairs[name] / usual:.0%} of {beside}"
        for name in pairs
        if name in slow and not ends[name] & named
    ]
    return said


CHECKS: Final = (
    m.number("rank"),
    m.Column("host"),
    m.Column("device"),
    m.number("products", "gemm_flops_per_s", show_flops),
    m.number("copy", "copy_bytes_per_s", show_bandwidth),
    m.number("ring", "ring_bytes_per_s", show_bandwidth),
    m.number("all-to-all", "all_to_all_bytes_per_s", show_bandwidth),
    m.number("clock", "clock_skew_s", lambda value: f"{1e3 * value:+.1f} ms"),
)


def preflight_report(found: Preflight) -> m.ResultReport:
    """Describe each rank's figures, the links between ranks, and what stands out."""
    hosts = len({one.host for one in found.ranks})
    count = len(found.ranks)
    ranks = "1 rank" if count == 1 else f"{count} ranks"
    said = "nothing stands out" if not found.outliers else f"{len(found.outliers)} stand out"
    return m.ResultReport(
        headline=f"{ranks} on {hosts} host{'' if hosts == 1 else 's'}: {said}.",
        sections=m.blocks(
            m.section("Ranks", m.ResultTable(CHECKS, found.ranks)),
            m.section(
                "Links",
                m.grid(
                    ("ranks", "bandwidth"),
                    [(name, show_bandwidth(value)) for name, value in found.pairs.items()],
                ),
            )
            if found.pairs
            else None,
            m.section("Outliers", *found.outliers) if found.outliers else None,
        ),
    )
