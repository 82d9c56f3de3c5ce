"""A step at a GPU's sizes without the GPU: its call sites, and lower bounds on their times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from ratchet.amd.emulator.estimates import prediction
from ratchet.base.devices import catalogue
from ratchet.judge.problems.case import Case, TensorSpec
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.references import LeastWork, least_work
from ratchet.scale.plan.time import products_s
from ratchet.train.graph.scope import CapturedSite
from ratchet.train.turn.arm import make_shapes_arm
from ratchet.train.turn.dry_run import (
    at_batch,
    bounded,
    device_of,
    region_site,
    sites_of_entries,
)
from ratchet.train.turn.predicted_step import (
    TargetKernel,
    TargetSite,
    predicted_step,
    whole_bound_s,
)
from ratchet.train.workloads.fake import StepProduct
from ratchet.train.workloads.load import load_shapes

MI300X = catalogue.load()["MI300X"]
BYTES_PER_S, BF16_PER_S, FP32_PER_S = 5.3e12, 1307.4e12, 163.4e12


def site(pattern: str, kernel: str, count: int = 1, **more: Any) -> CapturedSite:
    shapes = more.pop("shapes", {"x": (64, 512, 512), "weight": (512,)})
    dtypes = dict.fromkeys(shapes, "bf16")
    about = {"shapes": shapes, "dtypes": dtypes, "scalars": more.pop("scalars", {})}
    return CapturedSite(pattern=pattern, kernel=kernel, count=count, **about)


def attention(*, causal: bool, keys: int = 512) -> CapturedSite:
    shapes = {"q": (64, 8, 512, 64), "k": (64, 8, keys, 64), "v": (64, 8, keys, 64)}
    return site("attention", "attention", 6, shapes=shapes, scalars={"causal": causal})


def test_a_norm_with_a_residual_has_calls_of_its_own() -> None:
    calls = sites_of_entries(
        [site("rms_norm", "rms_norm"), site("rms_norm", "add_rms_norm", 12)], MI300X
    )
    assert {name: [one.calls for one, _, _ in found] for name, found in calls.items()} == {
        "rms_norm_forward": [1],
        "rms_norm_backward": [1],
        "add_rms_norm_forward": [12],
        "add_rms_norm_backward": [12],
    }
    ((forward, asked, case),) = calls["add_rms_norm_forward"]
    assert case in asked.cases and case.inputs[0].shape == (64 * 512, 512)
    elements = 64 * 512 * 512
    assert forward.size_bytes == 4 * 2 * elements + 2 * 512
    assert forward.bound_by == "memory"
    assert forward.bound_s == pytest.approx(forward.size_bytes / BYTES_PER_S)


@pytest.mark.parametrize(("causal", "share"), [(False, 1.0), (True, 513 / 1024)])
def test_a_mask_hides_half_of_the_products(causal: bool, share: float) -> None:
    calls = sites_of_entries([attention(causal=causal)], MI300X)
    ((forward, _, _),) = calls["attention_forward"]
    assert forward.flops == pytest.approx(4 * 64 * 8 * 512 * 512 * 64 * share)
    assert calls["attention_backward"][0][0].flops == pytest.approx(2.5 * forward.flops)


def test_an_update_moves_all_parameters_though_a_verdict_is_at_a_few() -> None:
    shapes = {f"layer {place}": (100 + place, 10) for place in range(20)}
    calls = sites_of_entries([site("adamw", "adamw", shapes=shapes)], MI300X)
    elements = sum(rows * columns for rows, columns in shapes.values())
    ((step, _, _),) = calls["adamw_step"]
    assert step.size_bytes == 4 * (4 + 4) * elements  # a gradient is written, too: zeros
    assert calls["gradient_square_sum"][0][0].size_bytes == 4 * elements + 4


def test_the_bound_is_the_larger_of_bytes_and_products() -> None:
    called = TargetSite(shapes={}, calls=3)
    by_products = LeastWork(flops=1e12, size_bytes=1000, dtype="bf16")
    found = bounded(called, by_products, MI300X)
    assert (found.bound_s, found.bound_by) == (pytest.approx(1e12 / BF16_PER_S), "compute")
    in_fp32 = bounded(called, replace(by_products, dtype="fp32"), MI300X)
    assert in_fp32.bound_s == pytest.approx(1e12 / FP32_PER_S)
    by_bytes = bounded(called, LeastWork(flops=0, size_bytes=10**9, dtype="bf16"), MI300X)
    assert (by_bytes.bound_s, by_bytes.bound_by) == (pytest.approx(1e9 / BYTES_PER_S), "memory")
    assert whole_bound_s([found, by_bytes]) == pytest.approx(3e12 / BF16_PER_S + 3e9 / BYTES_PER_S)
    unknown = bounded(called, by_bytes and None, MI300X)
    assert unknown.bound_s is None and whole_bound_s([found, unknown]) is None
    assert bounded(called, by_products, None).bound_s is None  # the catalogue has no such GPU


@pytest.mark.parametrize("target", ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"])
def test_every_emulated_target_has_a_device_with_figures(target: str) -> None:
    work = LeastWork(flops=1e9, size_bytes=10**6, dtype="bf16")
    device = device_of(target)
    assert device is not None and bounded(TargetSite(shapes={}, calls=1), work, device).bound_s


def kernel(entry: str, status: str, *sites: TargetSite, library: str = "attention") -> TargetKernel:
    return TargetKernel(library=library, entry=entry, sites=sites, status=status, reason="why")


def test_a_predicted_step_adds_kernels_and_products_and_tells_the_rest() -> None:
    asked: list[list[StepProduct]] = []

    def planned(device: str, products: Sequence[StepProduct]) -> float | None:
        asked.append([*products])
        return 2e-3

    head = StepProduct(rows=1024, columns=512, inner=64, count=1)
    body = StepProduct(rows=1024, columns=64, inner=64, count=3)
    flops = 2.0 * 1024 * 64 * (512 + 3 * 64)
    played = prediction("MI300X", 1e-3)
    forward = TargetSite(shapes={}, calls=2, flops=flops / 2, predicted=played)
    words = TargetSite(shapes={"x": (2, 512, 64), "weight": (512, 64)}, calls=1, predicted=played)
    silent = TargetSite(shapes={}, calls=1, flops=flops, no_prediction="it spills")
    rows = (
        kernel("attention_forward", "correct", forward),
        kernel("attention_backward", "correct", silent),
        kernel("linear_cross_entropy", "correct", words, library="linear_cross_entropy"),
        kernel("rope_forward", "wrong", silent, library="rope"),
        kernel("a region", "correct", library="region"),
    )
    about = {"device": "MI300X", "precision": "bf16_master"}
    found = predicted_step(rows, [head, body], planned, **about)
    assert asked == [[body]]  # the head's product is the kernel's
    assert found.kernels is not None and found.kernels.time_s == pytest.approx(3e-3)
    assert found.products is not None and found.products.time_s == 2e-3
    whole = found.predicted
    assert whole is not None and whole.time_s == pytest.approx(5e-3)
    assert whole.low_s == pytest.approx(found.kernels.low_s + found.products.low_s)
    assert found.covered == pytest.approx(2 / 3)  # the backward attention is not in it
    assert found.left_out[:2] == ("attention_backward", "rope_forward")
    assert "regions" in found.left_out[2] and "the host" in found.left_out[-1]

    alone = predicted_step(rows[3:], [body], planned, **about | {"precision": "fp32"})
    assert alone.predicted is None and "no planned rate for fp32" in " ".join(alone.left_out)


def test_a_step_s_products_are_those_of_its_trace() -> None:
    found = make_shapes_arm(workload="llama-tiny", options={"batch_size": 2}).products()
    products = msgspec.convert(found, list[StepProduct])
    facts = make_shapes_arm(workload="llama-tiny", options={"batch_size": 2}).workload()
    flops = sum(2 * one.rows * one.columns * one.inner * one.count for one in products)
    assert 0.5 * facts["flops_per_step"] < flops <= facts["flops_per_step"]
    seconds = products_s("MI300X", products)
    assert seconds is not None and seconds > flops / BF16_PER_S
    assert products_s("RX 9070 XT", products) is None  # the planner knows no links of it


def scaled(x: torch.Tensor, _: object) -> tuple[torch.Tensor, ...]:
    return (x * 2,)


def by_its_values(x: torch.Tensor, _: object) -> tuple[torch.Tensor, ...]:
    return (x[: int(x.sum())],)


def problem(reference: str, *batches: int) -> Problem:
    names = ["captured", *(f"hidden batch {one}" for one in batches[1:])]
    cases = [
        Case(name=name, inputs=(TensorSpec(shape=(4 * size, 7), dtype="float32"),))
        for name, size in zip(names, batches, strict=True)
    ]
    return Problem(name=reference, reference=f"{__name__}:{reference}", cases=tuple(cases))


def test_a_region_has_the_sizes_of_the_steps_own_batch() -> None:
    captured = problem("scaled", 2, 1, 3)
    found = at_batch(captured, 2, 64)
    assert found is not None and found.inputs[0].shape == (256, 7)
    assert at_batch(problem("scaled", 2), 2, 64) is None  # nothing tells how it grows
    known = region_site(captured, 5, found, MI300X)
    assert (known.calls, known.size_bytes) == (5, 2 * 4 * 256 * 7)
    assert known.shapes == {"input 0": (256, 7)}


def test_a_reference_that_reads_values_has_no_bound() -> None:
    asked = problem("by_its_values", 2)
    assert region_site(asked, 1, asked.cases[0], MI300X).bound_s is None


def test_work_is_counted_at_sizes_that_no_memory_holds() -> None:
    spec = TensorSpec(shape=(10**7, 10**6), dtype="bfloat16")
    found = least_work(problem("scaled", 2), (spec,))
    assert found == LeastWork(flops=0, size_bytes=4 * 10**13, dtype="bf16")


@pytest.mark.thorough
def test_a_built_in_step_has_a_gpus_batch_and_no_values() -> None:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    workload = load_shapes("vit-11m", mode)
    assert (workload.tokens_per_batch, workload.unit) == (512, "images")
    tensors = [*workload.model.parameters(), *workload.batch(0)]
    assert all(isinstance(one, FakeTensor) for one in tensors)
    assert load_shapes("vit-11m", mode, batch_size=3).tokens_per_batch == 3


@pytest.mark.thorough
def test_call_sites_without_values_are_those_of_a_real_step() -> None:
    from ratchet.train.graph.capture import capture
    from ratchet.train.workloads.load import load

    arm = make_shapes_arm(workload="llama-tiny", options={"device": "cpu"})
    real = load("llama-tiny")
    config = real.as_written()
    found = arm.sites(precision="fp32")
    assert [CapturedSite(**one) for one in found] == capture(real, config)  # type: ignore[arg-type]
    facts = arm.workload()
    assert facts["tokens_per_batch"] == real.tokens_per_batch and facts["has_attention"]
    assert facts["peak_memory_bytes"] > 16 * facts["parameters"]  # type: ignore[operator]
