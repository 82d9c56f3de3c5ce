from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import ratchet.train.workloads.bench as bench_module
from ratchet.judge.problems import references
from ratchet.train.workloads.bench import bench, peak_memory_bytes
from ratchet.train.workloads.check import check
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.fake import saved_bytes, step_flops
from ratchet.train.workloads.load import load
from ratchet.train.workloads.workload import Workload


def linear(values: bool = False) -> Workload:
    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        scale = x.sum().item() if values else 1.0
        return (model(x) * scale).square().mean()

    return Workload(
        name="linear",
        model=nn.Linear(16, 8, bias=False),
        loss=loss,
        batch=lambda index: torch.ones(32, 16, requires_grad=False),
        tokens_per_batch=32,
    )


@pytest.mark.parametrize("values", [False, True])
def test_a_linear_layer_costs_two_products(values: bool) -> None:
    # Forward and weight gradient; the input needs none. With `.item()` a real run counts.
    assert step_flops(linear(values)) == 2 * (2 * 32 * 16 * 8)


def test_a_transformers_operations_follow_its_dimensions() -> None:
    workload = load("llama-tiny")
    matrices = sum(
        p.numel() for n, p in workload.model.named_parameters() if p.dim() > 1 and "emb" not in n
    )
    products = 6 * matrices * workload.tokens_per_batch
    # Two products of [64, 16] by 64 keys forward and five back, 4 heads, 8 sequences, 2 layers.
    attention = 7 * (2 * 64 * 64 * 16) * 4 * 8 * 2
    assert step_flops(workload) == products + attention


def test_groups_of_heads_are_counted_by_a_torch_that_knows_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch 2.11 refuses keys with fewer heads than queries."""

    def strict(count: Callable[..., int]) -> Callable[..., int]:
        def counted(*shapes: tuple[int, ...]) -> int:
            assert len({shape[1] for shape in shapes}) == 1, "batch/heads mismatch among tensors"
            return count(*shapes)

        return counted

    given = [torch.empty(2, heads, 8, 16, device="meta") for heads in (4, 2, 2)]
    right = [count(given) for count in (forward, backward)]
    for name in ("sdpa_flop", "sdpa_backward_flop"):
        monkeypatch.setattr(references, name, strict(getattr(references, name)))
    assert [count(given) for count in (forward, backward)] == right
    product = 2 * 2 * 4 * 8 * 8 * 16
    assert right == [2 * product, 5 * product]


def forward(given: list[torch.Tensor]) -> int:
    return references.forward_flops(*given, out_val=None)


def backward(given: list[torch.Tensor]) -> int:
    return references.backward_flops(given[0], *given, out_val=None)


def test_counting_leaves_no_gradient_and_no_wrapper() -> None:
    workload = load("llama-tiny")
    step_flops(workload)
    assert saved_bytes(workload, workload.batch(0))
    assert all(parameter.grad is None for parameter in workload.model.parameters())


def test_saved_bytes_of_a_linear_layer_are_its_output() -> None:
    # `square` keeps the layer's output (32 x 8 fp32) and the layer its input (32 x 16 fp32).
    workload = linear()
    saved = saved_bytes(workload, workload.batch(0))
    assert saved is not None
    assert 4 * (32 * 8 + 32 * 16) <= saved <= 2 * 4 * (32 * 8 + 32 * 16)


def test_checkpointing_saves_memory_in_the_estimate() -> None:
    from dataclasses import replace

    workload = load("llama-tiny")
    plain = saved_bytes(workload, workload.batch(0))
    recomputed = saved_bytes(replace(workload, checkpointing="blocks:1"), workload.batch(0))
    assert plain is not None and recomputed is not None
    assert recomputed < plain / 2


def test_bench_reports_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_module, "gemm_rate", lambda *_: 1e12)
    result = bench(load("llama-tiny"), StepConfig(), steps=3)
    assert result.low_s <= result.step_time_s <= result.high_s
    assert result.tokens_per_s == pytest.approx(512 / result.step_time_s)
    assert result.mfu == pytest.approx(result.flops_per_step / result.step_time_s / 1e12)
    assert result.peak_memory_bytes > 10**7
    assert 0 < result.loss < 7


def test_an_unmeasured_rate_gives_no_mfu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_module, "gemm_rate", lambda *_: 0.0)
    assert bench(load("llama-tiny"), StepConfig(), steps=3).mfu == 0.0


def test_peak_memory_never_falls() -> None:
    before = peak_memory_bytes("cpu")
    kept = torch.ones(10**6)
    assert peak_memory_bytes("cpu") >= before
    del kept


@pytest.mark.parametrize(("unit", "expected"), [("tokens", "samples"), ("images", "images")])
def test_without_tokens_samples_are_counted(
    monkeypatch: pytest.MonkeyPatch, unit: Any, expected: str
) -> None:
    monkeypatch.setattr(bench_module, "gemm_rate", lambda *_: 0.0)
    workload = replace(linear(), tokens_per_batch=None, unit=unit)
    check(workload)
    result = bench(workload, StepConfig(), steps=3)
    assert result.unit == expected
    assert result.tokens_per_s == pytest.approx(32 / result.step_time_s)
