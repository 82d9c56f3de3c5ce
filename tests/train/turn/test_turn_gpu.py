"""Whole turns on GPUs that are not here: replayed graphs, fp8 products and their losses."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import pytest
from simulated_turns import BATCH_SIZE, CEILINGS, World, run

from ratchet.base.devices.probe import Device
from ratchet.base.errors import DeviceError, DeviceLost
from ratchet.judge.steps.arms import raise_worker_error
from ratchet.train.turn.comparisons import larger_batch_words
from ratchet.train.turn.loop import Outcome
from ratchet.train.turn.show import render_page

BUDGET_S = 1800.0
H100 = Device(
    kind="cuda",
    vendor="NVIDIA",
    model="NVIDIA H100 80GB HBM3",
    cores=132,
    threads=132,
    isa=("sm_90",),
    memory_bytes=80 << 30,
    runtime="cuda 13.0",
)
MI300X = Device(
    kind="cuda",
    vendor="AMD",
    model="AMD Instinct MI300X",
    cores=304,
    threads=304,
    isa=("gfx942",),
    memory_bytes=192 << 30,
    runtime="rocm 7.0",
)
GPUS = [pytest.param(H100, id="H100"), pytest.param(MI300X, id="MI300X")]
FASTER = {"compile_mode=reduce-overhead": 0.6, "precision=bf16_autocast": 0.6}


def world(device: Device | None, *worse: str, **more: Any) -> World:
    factors = {**FASTER, **more.pop("factors", {})}
    return World(
        ceilings=CEILINGS, device=device, factors=factors, learns_worse=frozenset(worse), **more
    )


def turn(device: Device | None, folder: Path, *worse: str, **more: Any) -> Outcome:
    return run(world(device, *worse, **more), folder, BUDGET_S)


@pytest.mark.parametrize("device", GPUS)
def test_replayed_graphs_that_learn_as_well_are_the_rival_and_kept(
    device: Device, tmp_path: Path
) -> None:
    outcome = turn(device, tmp_path)
    assert "reduce-overhead" in outcome.result.best_compile
    assert outcome.recipe.config.compile_mode == "reduce-overhead"
    assert outcome.result.losses is not None and outcome.result.losses.passed


@pytest.mark.parametrize("device", GPUS)
def test_replayed_graphs_that_learn_otherwise_are_no_rival_and_no_recipe(
    device: Device, tmp_path: Path
) -> None:
    outcome = turn(device, tmp_path, "reduce-overhead")
    result = outcome.result
    assert outcome.recipe.config.compile_mode == "default"
    assert outcome.recipe.config.precision != "fp32"
    assert "reduce-overhead" not in result.best_compile
    assert any("replayed graphs were dropped" in one for one in result.warnings)
    replayed = [one for one in result.rivals if "reduce-overhead" in one.title]
    assert replayed and all("losses differ" in one.reason for one in replayed)


def test_fp8_products_are_kept_where_they_learn_as_well(tmp_path: Path) -> None:
    outcome = turn(H100, tmp_path, factors={"products": 0.7})
    assert outcome.recipe.config.products == "fp8"
    assert outcome.result.losses is not None and outcome.result.losses.passed


def test_what_was_proven_in_one_mode_goes_on_in_a_faster_one(tmp_path: Path) -> None:
    outcome = turn(H100, tmp_path, factors={"precision=bf16_master": 0.4})
    assert "reduce-overhead" in outcome.result.best_compile
    config = outcome.recipe.config
    assert (config.compile_mode, config.precision) == ("reduce-overhead", "bf16_master")
    assert outcome.result.recipe_is == "proven"


def test_fp8_products_that_learn_worse_leave_the_rest_as_it_was(tmp_path: Path) -> None:
    outcome = turn(H100, tmp_path, "fp8", factors={"products": 0.7})
    change = next(one for one in outcome.result.changes if one.name == "fp8-products")
    assert change.decision == "refused" and change.reason.startswith("losses: ")
    assert outcome.recipe.config.products == "own"
    assert outcome.recipe.config.precision != "fp32"


def test_an_idle_gpu_is_offered_the_batch_that_fills_it_and_keeps_the_one_it_has(
    tmp_path: Path,
) -> None:
    result = turn(H100, tmp_path, idle=0.9).result
    found = result.larger_batch
    assert found is not None and found.batch_size == BATCH_SIZE * 16
    assert found.rate / found.rate_now == pytest.approx(10.0, rel=0.02)
    said = f"The GPU idles 90% of this step; a batch of {found.batch_size} gives about 10.0x"
    assert said in larger_batch_words(found).replace("\N{NO-BREAK SPACE}", " ")
    assert larger_batch_words(found) in html.unescape(render_page(result))
    assert all(arm.tokens_per_s < found.rate for arm in result.arms)


def test_a_batch_that_does_not_fit_is_not_offered(tmp_path: Path) -> None:
    found = turn(MI300X, tmp_path, idle=0.9, largest_batch=BATCH_SIZE * 4).result.larger_batch
    assert found is not None and found.batch_size == BATCH_SIZE * 4


@pytest.mark.parametrize("idle, device", [(0.1, H100), (0.9, None)])
def test_a_busy_gpu_and_a_cpu_are_offered_none(
    idle: float, device: Device | None, tmp_path: Path
) -> None:
    assert turn(device, tmp_path, idle=idle).result.larger_batch is None


def test_a_change_that_runs_out_of_memory_is_out_and_the_turn_goes_on(tmp_path: Path) -> None:
    short = DeviceError("a step of 'x' does not fit in the memory of cuda; use a smaller batch")
    result = turn(H100, tmp_path, breaks={"max-autotune": short}).result
    rows = [one for one in result.rivals if "max-autotune" in one.title]
    assert rows and all("use a smaller batch" in one.reason for one in rows)
    assert result.recipe_is == "proven" or result.best_compile != "not timed"


def test_a_gpu_that_is_lost_ends_the_turn_in_one_line_and_nothing_measured_is_lost(
    tmp_path: Path,
) -> None:
    here = world(H100)
    here.breaks["reduce-overhead"] = DeviceLost("the GPU stopped answering")
    with pytest.raises(DeviceLost, match="stopped answering"):
        run(here, tmp_path, BUDGET_S)
    kinds = {kind for kind, _ in here.evidence}
    assert {"describe", "workload", "screening"} & kinds
    here.breaks.clear()
    outcome = run(here, tmp_path, BUDGET_S)
    assert outcome.result.resumed and "reduce-overhead" in outcome.result.best_compile


@pytest.mark.parametrize(
    "said",
    [
        "CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        "HIP error: no ROCm-capable device is detected",
        "CUDA error: uncorrectable ECC error encountered CUDA kernel errors might be reported late",
    ],
)
def test_errors_that_blame_the_device_are_told_from_those_of_what_ran(said: str) -> None:
    with pytest.raises(DeviceLost, match="run again") as lost:
        raise_worker_error("x", {"kind": "AcceleratorError", "message": said})
    assert "\n" not in str(lost.value)


def test_a_busy_gpu_is_told(tmp_path: Path) -> None:
    free = turn(H100, tmp_path / "free").result
    assert not any("other processes" in one for one in free.warnings)
    busy = turn(H100, tmp_path, others_bytes=20 << 30).result
    assert any("hold 21 GB of cuda:0" in one for one in busy.warnings)


@pytest.mark.parametrize("cores", [2, 16])
def test_with_cores_to_spare_the_replaying_mode_compiles_beside_the_first(
    cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cores)))
    outcome = turn(H100, tmp_path)
    titles = [one.title for one in outcome.result.rivals if one.step_time_s is not None]
    beside = "reduce-overhead" in titles[1] and "bf16" in titles[1]
    assert beside == (cores == 16), titles
    assert outcome.recipe.config.compile_mode == "reduce-overhead"
