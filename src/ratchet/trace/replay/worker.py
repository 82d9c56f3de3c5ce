"""The process that replays calls: a JSON line for each call in, one for each result out."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec
import torch

from ratchet.base.errors import told
from ratchet.trace.replay.rebuild import Unbuildable, build
from ratchet.trace.replay.recorded import Recorded, ReplayAbout, ReplayAnswer

BATCHES = 9
BATCH_S, BUDGET_S = 0.02, 1.5
"""Least time of a batch of calls, and most time of all batches, in seconds."""
HEADROOM = 3
"""Memory that a call may take beyond its inputs, as a multiple of the room for inputs."""


def main(device: str, room_bytes: int) -> int:
    """Answer calls until the input ends."""
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    if device == "cpu":
        used = _address_space()
        most = used + HEADROOM * room_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
    named = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    _say(ReplayAbout(device=named, torch=str(torch.__version__), threads=torch.get_num_threads()))
    for line in sys.stdin:
        _say(_answer(line, device, room_bytes))
    return 0


def _answer(line: str, device: str, room_bytes: int) -> ReplayAnswer:
    try:
        built = build(msgspec.json.decode(line, type=Recorded), device, room_bytes)
    except Unbuildable as why:
        return ReplayAnswer(outcome="not rebuilt", why=str(why))
    except (RuntimeError, MemoryError) as error:
        return ReplayAnswer(outcome="failed", why=told(error))
    try:
        with torch.inference_mode():
            times = _timed(lambda: built.call(*built.arguments, **built.keywords), device)
    # Values differ from the recording's, so an op may raise anything: that is its answer.
    except Exception as error:
        return ReplayAnswer(outcome="failed", why=told(error))
    times.sort()
    middle = times[len(times) // 2]
    return ReplayAnswer(
        outcome="timed", time_ns=round(1e9 * middle), shortest_ns=round(1e9 * times[0])
    )


def _timed(call: Callable[[], object], device: str) -> list[float]:
    """Return the seconds per call of each batch."""
    call()
    once = _batch(call, 1, device)
    count = max(1, int(BATCH_S / max(once, 1e-7)))
    begun = time.perf_counter()
    times: list[float] = []
    while len(times) < BATCHES and (not times or time.perf_counter() - begun < BUDGET_S):
        times.append(_batch(call, count, device) / count)
    return times


def _batch(call: Callable[[], object], count: int, device: str) -> float:
    """Time `count` calls in seconds, on a GPU by its own events."""
    if device == "cuda":
        event: Any = torch.cuda.Event
        begin, end = event(enable_timing=True), event(enable_timing=True)
        begin.record()
        for _ in range(count):
            call()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3
    begun = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - begun


def _address_space() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _say(answer: ReplayAbout | ReplayAnswer) -> None:
    print(msgspec.json.encode(answer).decode(), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
