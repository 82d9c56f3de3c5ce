"""Damaged times: cut off or left out, counted, and the identity holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import made_traces as mt
import numpy as np
import pytest

from ratchet.trace.answers.report import Report, report
from ratchet.trace.read import read
from ratchet.trace.read.times import CLIPPED, FAR

STEP_AT, STEP_LONG = 1_000_000.0, 1000.0


def kernels(*slices: tuple[float, float], stream: int = 7) -> list[dict[str, Any]]:
    """Kernels by start and duration in us, each launched from an op of the step."""
    events = []
    for at, (start, duration) in enumerate(slices, start=1):
        begun = STEP_AT + 10 * at
        events += [
            mt.op("aten::mm", begun, 8),
            mt.launch(begun + 1, 5, at),
            mt.kernel("gemm", start, duration, at, stream=stream),
        ]
    return events


def step() -> dict[str, Any]:
    return mt.step(1, STEP_AT, STEP_LONG)


def reported(folder: Path, events: list[dict[str, Any]]) -> Report:
    return report(read(mt.write(folder / "t.json", events)))


def whole(place: int, duration: float) -> list[tuple[float, float]]:
    """Five kernels of 90 us, 100 us apart; one of them lasts as long as it is told to."""
    found = [(STEP_AT + 50 + 100 * at, 90.0) for at in range(5)]
    found[place] = (found[place][0], duration)
    return found


@pytest.mark.parametrize("duration", [150.0, 400.0, 1_600_000.0])
def test_a_slice_past_the_next_start_is_cut_off_there(tmp_path: Path, duration: float) -> None:
    found = reported(tmp_path, [step(), *kernels(*whole(1, duration))])
    assert found.faults == (CLIPPED,)
    assert found.identity.window == 490_000
    assert found.identity.parts == (460_000, 0, 0, 30_000)


def test_several_cut_slices_are_counted(tmp_path: Path) -> None:
    slices = [(start, 1_600_000.0) for start, _ in whole(0, 0.0)[:4]]
    found = reported(tmp_path, [step(), *kernels(*slices, whole(0, 0.0)[4])])
    assert found.faults == (f"{CLIPPED} (4 times)",)
    assert found.identity.parts == (490_000, 0, 0, 0)


def test_streams_run_beside_each_other(tmp_path: Path) -> None:
    other = mt.kernel("gemm", STEP_AT + 60, 400.0, 9, stream=8)
    found = reported(tmp_path, [step(), *kernels(*whole(0, 90.0)), other])
    assert found.faults == ()
    assert found.identity.window == 490_000


def test_a_small_overlap_is_as_recorded(tmp_path: Path) -> None:
    trace = read(mt.write(tmp_path / "t.json", [step(), *kernels(*whole(1, 113.0))]))
    assert trace.faults == ()
    assert 113_000 in trace.duration.tolist()


@pytest.mark.parametrize("at", [0.0, 5000.0, 9e12])
@pytest.mark.parametrize("duration", [0.0, 90.0])
def test_an_event_far_outside_every_step_is_left_out(
    tmp_path: Path, at: float, duration: float
) -> None:
    slices = whole(0, 90.0)
    slices[2] = (at, duration)
    found = reported(tmp_path, [step(), *kernels(*slices)])
    assert found.faults == (FAR,)
    assert found.identity.window == 490_000
    assert found.identity.parts == (360_000, 0, 0, 130_000)


def test_columns_of_kept_ops_stay_theirs(tmp_path: Path) -> None:
    early = mt.op("aten::early", 3.0, 1)
    trace = read(mt.write(tmp_path / "t.json", [step(), early, *kernels(*whole(0, 90.0))]))
    assert [str(one) for one in trace.faults] == [FAR]
    assert {trace.string(row) for row in trace.ops.row} == {"aten::mm"}
    assert len(trace.ops.row) == 5


def test_without_steps_work_long_before_the_first_call_is_left_out(tmp_path: Path) -> None:
    slices = whole(0, 90.0)
    slices[2] = (0.0, 0.0)
    found = reported(tmp_path, kernels(*slices))
    assert found.faults == (FAR,) and found.identity.window == 490_000


def test_a_device_with_another_clock_keeps_its_work(tmp_path: Path) -> None:
    slices = [(start + 1e9, duration) for start, duration in whole(0, 90.0)]
    found = reported(tmp_path, [step(), *kernels(*slices)])
    assert found.faults == () and found.identity.window == 490_000


def test_work_that_lags_behind_the_last_step_is_kept(tmp_path: Path) -> None:
    slices = [(STEP_AT + 50 + 9_000 * at, 8_000.0) for at in range(9)]
    found = reported(tmp_path, [step(), *kernels(*slices)])
    assert found.faults == () and found.identity.window == 80_000_000


@pytest.mark.parametrize("seed", range(20))
def test_the_identity_holds_whatever_was_damaged(tmp_path: Path, seed: int) -> None:
    noise = np.random.default_rng(seed)
    slices = [
        (float(start), float(noise.choice([0.0, 5.0, 90.0, 1.6e6])))
        for start in STEP_AT + np.cumsum(noise.choice([0.0, 10.0, 100.0], size=30))
    ]
    for at in noise.integers(30, size=3):
        slices[at] = (float(noise.choice([0.0, 1.0, 4e9])), slices[at][1])
    found = reported(tmp_path, [step(), *kernels(*slices)])
    for one in (found.identity, *found.steps):
        assert sum(one.parts) == one.window and min(one.parts) >= 0
