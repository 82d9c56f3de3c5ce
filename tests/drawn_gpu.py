"""A GPU whose times are drawn, under the judge's real plan, rounds, interval and clock checks.

Only the batches are made up. Their scatter is what runs on GPUs showed (docs/log/2026-11-27.md), as
far as it was written down:

- the round trip of a launch was 1.72 ms (`shared/gpu`, 2026-11-25: 2.99 ms a batch by the judge's
  clock, 0.717 by the device's), 2.1 to 3.0 ms (2026-11-26, third part), and 2.5 ms on an H200
  (2026-11-27, ninth part);
- the raw samples were not kept, so `BATCH_S` follows from the half widths of the intervals of
  `gpu_clock.py`: 0.8 % and 2.1 % at 235 us and 86 calls, 0.6 % twice at 1.8 ms and 12 calls (third
  part); a test draws them again;
- a call that is shorter than Python's launches lasts as long as those, and scatters by 15 % (the
  same, two launches of 40 us);
- a tenth of 80 GB for a batch, and a tenth of a second for a round.
"""

from __future__ import annotations

import contextlib
import functools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ratchet.base.measure import Timing
from ratchet.judge.trial import decide, looks, sample
from ratchet.judge.trial.arms import CANDIDATE, REFERENCE, TWIN
from ratchet.judge.trial.looks import time_until_answered
from ratchet.judge.trial.open_problem import DeviceClock, Record
from ratchet.judge.trial.sample import CaseTiming
from ratchet.judge.verdict import CandidateFault, Decided

ROUND_TRIPS_S = (0.0017, 0.0030)
BATCH_S = 0.00012
"""Standard deviation of a round trip from one batch to the next of a launch."""
LATE, LATE_S = 0.03, 0.001
"""Share of batches whose processes wait for a core, and for how long on average."""
PYTHON = 0.15
BATCH_BYTES = 8 << 30
GAP_S = 0.012
"""Seconds between two batches, in which the GPU draws for `DRAW_S` of them and rests."""
DRAW_S = 0.004
RESAMPLES = 100
STEP_S = 0.001


@dataclass(kw_only=True)
class Clocks:
    """The frequency of a GPU, which follows its recent load; all levels are from 0 to 1."""

    heat_loss: float = 0.0
    """Share of the frequency that steady work at full power costs."""
    heat_s: float = 0.05
    sleep_loss: float = 0.0
    """Share of the frequency that is missing after a long rest."""
    wake_s: float = 0.01
    sleep_s: float = 0.02
    _heat: float = 0.0
    _awake: float = 0.0

    @property
    def speed(self) -> float:
        return (1 - self.heat_loss * self._heat) * (1 - self.sleep_loss * (1 - self._awake))

    def rest(self, time_s: float) -> None:
        self._heat *= math.exp(-time_s / self.heat_s)
        self._awake *= math.exp(-time_s / self.sleep_s)

    def load(self, time_s: float, power: float) -> None:
        """Work for so long."""
        self._heat = power + (self._heat - power) * math.exp(-time_s / self.heat_s)
        self._awake = 1 + (self._awake - 1) * math.exp(-time_s / self.wake_s)

    def work(self, work_s: float, power: float) -> float:
        """Do what takes so long at full speed; return how long it takes."""
        if not self.heat_loss and not self.sleep_loss:  # no load changes its speed
            return work_s
        took_s = 0.0
        while work_s > 0:
            step_s = min(STEP_S, work_s / self.speed)
            work_s -= step_s * self.speed
            took_s += step_s
            self.load(step_s, power)
        return took_s


@dataclass(frozen=True, kw_only=True)
class Tricks:
    """What a candidate makes of the GPU outside the clock, in seconds."""

    power: float = 0.5
    """Of its own calls; the reference's have 0.5."""
    wakes_s: float = 0.0
    """Works before its batch is handed over."""
    heats_s: float = 0.0
    """Leaves work of full power behind, which ends as the next batch begins."""
    cools_s: float = 0.0
    """Pauses before its batch is handed over."""
    idles_s: float = 0.0
    """Is slow to deliver its outputs at the end of a round."""


@dataclass(kw_only=True)
class World:
    """A case on a drawn GPU: `call_s` at full speed, of a call of `call_bytes`."""

    rng: np.random.Generator
    call_s: float
    call_bytes: float = 32 << 20
    faster: float = 1.0
    """How many times as fast the candidate's calls are."""
    python_s: float = 0.0
    """What Python takes to launch a call, in either arm."""
    starts: float = 0.0
    """How much one start of a process differs from the next."""
    clocks: Clocks = field(default_factory=Clocks)
    tricks: Tricks = field(default_factory=Tricks)
    round_trip_s: float = 0.0025
    left_s: float = 0.0
    """Work of full power that is queued."""

    def begin_launch(self) -> None:
        self.round_trip_s = float(self.rng.uniform(*ROUND_TRIPS_S))

    def batch(self, calls: int, *, faster: float, power: float) -> Timing:
        """Draw a batch: the work by the device's clock, and by the judge's as wall time."""
        device_s = self.clocks.work(calls * self.call_s / faster, power)
        dispatch_s = calls * self.python_s * math.exp(PYTHON * self.rng.normal())
        device_s = max(device_s, dispatch_s if self.python_s else 0.0)
        late_s = (self.rng.random() < LATE) * self.rng.exponential(LATE_S)
        trip_s = max(0.001, self.round_trip_s + BATCH_S * self.rng.normal()) + late_s
        return Timing(wall_time_s=device_s + trip_s, cpu_time_s=device_s)

    def between(self) -> None:
        """Draw the next batch's values and hand them over."""
        self.clocks.load(DRAW_S, 0.5)
        self.clocks.rest(GAP_S - DRAW_S)
        self.clocks.load(self.left_s, 1.0)
        self.left_s = 0.0


class DrawnArm:
    """An arm of the judge, of which only the batches are made up."""

    def __init__(self, name: str, world: World, clock: DeviceClock) -> None:
        self.name, self.batch_s = name, math.inf
        self.checked = self.order_looks = 0
        self.rest_s = self.load_s = self.waited_s = self.ran_s = 0.0
        self._world, self._clock = world, clock
        self._speed = math.exp(world.starts * world.rng.normal())

    def run(self, iterations: int) -> Timing:
        world, own = self._world, self.name == CANDIDATE
        tricks = world.tricks if own else Tricks()
        world.between()
        world.clocks.rest(tricks.cools_s)
        world.clocks.load(tricks.wakes_s, 0.5)
        faster = self._speed * (world.faster if own else 1.0)
        world.clocks.rest(self.rest_s)
        world.clocks.load(self.load_s, 0.5)
        timing = world.batch(iterations, faster=faster, power=tricks.power)
        times = timing.wall_time_s, timing.cpu_time_s
        self._clock.note(0, self.name, *times, trusted=not own)
        world.left_s = tricks.heats_s
        return timing

    def check_due(self) -> None:
        self._world.clocks.rest(self._world.tricks.idles_s)

    def nothing(self, *_: object, **__: object) -> None:
        """Stand for what a simulation has no need of."""

    begin = sample = probe_before = watch_before = close = nothing


def _warm(arm: Any, calls: int) -> float:
    return GAP_S + float(arm.run(calls).wall_time_s)


def rivalry_of(world: World) -> Any:
    """Return what the judge knows of the problem."""
    facts = SimpleNamespace(time_s=world.call_s, bytes=world.call_bytes, flops=1.0)
    opened = SimpleNamespace(
        cases=[facts],
        timed=[0],
        problem=SimpleNamespace(cases=[SimpleNamespace(name="timed")], model=None),
        accelerator=SimpleNamespace(batch_bytes=BATCH_BYTES),
        with_fewer_calls=lambda wanted, run, **_: run(wanted),
        told_of_fewer=lambda _: "",
        check_time_s=[0.0005],
        clock=SimpleNamespace(left_s=50.0, limit_s=60.0),
        rng=random.Random(int(world.rng.integers(1 << 40))),
        variations=lambda case: 0,
        ask=lambda **_: {"least_s": 1e-9, "told": ""},
        flushes=lambda: "not real",
    )
    return SimpleNamespace(
        opened=opened,
        rivals=SimpleNamespace(lasting={REFERENCE: None}),
        record=Record(),
        device_clock=DeviceClock(),
        least_calls=1,
        among=1,
    )


def judged(monkeypatch: pytest.MonkeyPatch, world: World) -> tuple[Decided, CaseTiming]:
    """Judge a drawn world by the judge's own timing; return its answer and the samples."""
    rivalry = rivalry_of(world)
    lasting = {name: DrawnArm(name, world, rivalry.device_clock) for name in (REFERENCE, TWIN)}

    @contextlib.contextmanager
    def launch(_: int) -> Iterator[Any]:
        world.begin_launch()
        yield SimpleNamespace(first_call_s=0.0, returns_outputs=True, pause=lambda: None)

    @contextlib.contextmanager
    def rivals(*_: object) -> Iterator[Sequence[DrawnArm]]:
        yield list(lasting.values())

    def candidate(*_: object) -> DrawnArm:
        return DrawnArm(CANDIDATE, world, rivalry.device_clock)

    with monkeypatch.context() as patch, contextlib.ExitStack() as after:
        # The answer that is kept came from fewer resamples than a caller's would.
        after.callback(decide._compare_with_rivals.cache_clear)
        for name in ("compare", "aa_floor"):
            fewer = functools.partial(getattr(decide, name), resamples=RESAMPLES)
            patch.setattr(decide, name, fewer)
        patch.setattr(sample, "warm", _warm)
        patch.setattr(sample, "rivals", rivals)
        patch.setattr(sample, "RivalArm", lambda name, *_: lasting[name])
        patch.setattr(sample, "CandidateArm", candidate)
        return _decided(world, rivalry, time_until_answered(0, rivalry, launch, None))


def _decided(world: World, rivalry: Any, timing: CaseTiming) -> tuple[Decided, CaseTiming]:
    concluded = decide.conclude([timing], rivalry)
    world.clocks.rest(1.0)  # the candidate's processes end
    world.left_s = 0.0
    try:
        looks.check_clocks([timing], rivalry, won=concluded.status == "proven")
    except CandidateFault as fault:
        return fault.decided, timing
    return concluded, timing
