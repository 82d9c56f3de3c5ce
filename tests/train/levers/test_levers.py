"""Every lever says when it applies, what it gives and where that is from."""

from __future__ import annotations

import pytest

from ratchet.base.errors import RatchetError
from ratchet.train.levers import (
    LEVERS,
    Lever,
    Situation,
    all_levers,
    check_lever,
    find_lever,
)
from ratchet.train.levers.base import why_bf16_is_slow
from ratchet.train.workloads.config import StepConfig


def situation(**changes: object) -> Situation:
    values: dict[str, object] = {
        "device_kind": "cpu",
        "vendor": "AMD",
        "target": "avx512_bf16",
        "cores": 2,
        "written": StepConfig(),
        "optimizer_is_adamw": True,
        "has_attention": True,
        "trainable_bytes": 1 << 20,
        "peak_memory_bytes": 1 << 28,
        "memory_bytes": 1 << 34,
    }
    return Situation(**{**values, **changes})  # type: ignore[arg-type]


def test_names_are_unique() -> None:
    names = [lever.name for lever in LEVERS]
    assert len(names) == len(set(names))
    assert set(names) < set(all_levers())


@pytest.mark.parametrize("lever", list(all_levers().values()), ids=lambda lever: lever.name)
def test_a_lever_explains_itself_and_changes_the_config(lever: Lever) -> None:
    assert lever.summary and lever.expected and lever.source
    here = situation(cores=8, written=StepConfig(threads=1))
    pulled = lever.set(StepConfig(threads=1), here)
    assert isinstance(pulled, StepConfig)
    assert pulled != StepConfig(threads=1)
    assert lever.set(pulled, here) == pulled


@pytest.mark.parametrize("lever", LEVERS, ids=lambda lever: lever.name)
def test_unset_gives_back_what_was_written(lever: Lever) -> None:
    here = situation(cores=8, written=StepConfig(threads=1))
    pulled = lever.set(here.written, here)
    assert lever.unset(pulled, here) == here.written


def test_levers_of_the_arithmetic_say_so() -> None:
    changing = {lever.name for lever in all_levers().values() if lever.changes_arithmetic}
    assert changing == {"bf16-autocast", "bf16-weights", "fp8-products", "matmul-precision"}


def test_adamw_levers_leave_another_optimizer_alone() -> None:
    here = situation(optimizer_is_adamw=False)
    assert all_levers()["kernel:adamw"].applies(here)
    assert all_levers()["bf16-weights"].applies(here) is None


def test_an_update_that_cannot_be_fused_says_why() -> None:
    here = situation(why_not_fused="a parameter is complex")
    for name in ("fused-optimizer", "kernel:adamw"):
        assert all_levers()[name].applies(here) == "a parameter is complex"
    assert all_levers()["fused-optimizer"].applies(situation()) is None


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp64"])
def test_weights_of_another_dtype_take_no_bf16(dtype: str) -> None:
    here = situation(written=StepConfig(precision=dtype))
    for name in ("bf16-weights", "bf16-autocast", "kernel:adamw"):
        assert dtype in str(all_levers()[name].applies(here))


def test_a_step_that_drops_its_gradients_itself_keeps_doing_so() -> None:
    assert "itself" in str(all_levers()["preallocate"].applies(situation(own_step=True)))


def test_checkpointing_waits_until_memory_is_short() -> None:
    lever = all_levers()["activation-checkpointing"]
    assert lever.applies(situation())
    assert lever.applies(situation(peak_memory_bytes=1 << 34)) is None


def test_cpu_levers_leave_a_gpu_alone() -> None:
    here = situation(device_kind="cuda", target="gfx942")
    for name in ("allocator-mallopt", "huge-pages", "affinity"):
        assert all_levers()[name].applies(here)


def test_a_kernel_applies_where_the_library_has_one_for_the_device() -> None:
    here = situation(device_kind="cuda", target="gfx942")
    reason = all_levers()["kernel:linear"].applies(here)
    assert reason == "the library has no linear kernel in triton, which gfx942 needs"
    for name in ("kernel:rms_norm", "kernel:adamw", "kernel:attention"):
        assert all_levers()[name].applies(here) is None


def test_bf16_is_left_out_where_its_products_are_slow() -> None:
    slow = why_bf16_is_slow({"fp32": 108e9, "bf16": 5.5e9})
    assert slow is not None and "5.5 GFLOP/s in bf16" in slow and "108 in fp32" in slow
    assert why_bf16_is_slow({"fp32": 108e9, "bf16": 216e9}) is None
    assert why_bf16_is_slow({"fp32": 108e9}) is None
    for name in ("bf16-autocast", "bf16-weights"):
        assert all_levers()[name].applies(situation()) is None
        assert all_levers()[name].applies(situation(bf16_is_slow=slow)) == slow


def test_a_plan_of_memory_is_a_lever() -> None:
    name = "checkpointing=plan:ffsn"
    check_lever(name)
    lever = find_lever(name)
    assert lever.applies(situation()) is None
    assert lever.set(StepConfig(), situation()).checkpointing == "plan:ffsn"
    with pytest.raises(RatchetError, match="'checkpointing=plan:x' is no plan"):
        check_lever("checkpointing=plan:x")
