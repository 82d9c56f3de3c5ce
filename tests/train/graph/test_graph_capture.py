"""Call sites taken out of a workload, and the problems that are made of them."""

from __future__ import annotations

import json
from dataclasses import asdict

import torch

from ratchet.judge.kernels.library import LIBRARY
from ratchet.train.graph.capture import CapturedSite, capture, problems_for
from ratchet.train.graph.scope import merge_sites
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.load import load


def sites_of(precision: str) -> list[CapturedSite]:
    return capture(load("llama-tiny"), StepConfig(precision=precision))  # type: ignore[arg-type]


def test_shapes_are_the_workloads_own() -> None:
    sites = {site.kernel: site for site in sites_of("bf16_autocast")}
    attention = sites["attention"]
    assert attention.shapes == {"q": (8, 4, 64, 16), "k": (8, 2, 64, 16), "v": (8, 2, 64, 16)}
    assert set(attention.dtypes.values()) == {"bf16"}
    assert attention.scalars == {"causal": True, "scale": 0.25}
    assert attention.count == 2
    assert sites["linear_cross_entropy"].shapes["weight"] == (512, 64)
    assert sites["adamw"].shapes["embedding.weight"] == (512, 64)


def test_fp32_products_stay_in_fp32() -> None:
    linear = [site for site in sites_of("fp32") if site.kernel == "linear"]
    assert [site.dtypes for site in linear] == [{"x": "fp32", "weight": "fp32"}] * len(linear) != []


def test_bf16_weights_leave_the_model_alone() -> None:
    workload = load("llama-tiny")
    sites = capture(workload, StepConfig(precision="bf16_master"))
    assert {p.dtype for p in workload.model.parameters()} == {torch.float32}
    assert all(p.grad is None for p in workload.model.parameters())
    linear = next(site for site in sites if site.kernel == "linear")
    assert linear.dtypes == {"x": "bf16", "weight": "bf16"}


def test_sites_survive_json() -> None:
    sites = sites_of("bf16_autocast")
    again = [CapturedSite.from_json(json.loads(json.dumps(asdict(site)))) for site in sites]
    assert again == sites


def test_alike_sites_are_merged() -> None:
    site = CapturedSite(pattern="p", kernel="p", shapes={"x": (1,)}, dtypes={}, scalars={})
    other = CapturedSite(pattern="p", kernel="p", shapes={"x": (2,)}, dtypes={}, scalars={})
    assert [found.count for found in merge_sites([site, other, site])] == [2, 1]


def test_problems_have_the_captured_shapes() -> None:
    problems = problems_for(sites_of("bf16_autocast"))
    assert {name for name, _ in problems} == set(LIBRARY) - {"layer_norm"}
    assert len({problem.hash for _, problem in problems}) == len(problems)
    forward = {problem.name: problem for _, problem in problems}["attention_forward"]
    timed = next(case for case in forward.cases if case.timed)
    assert timed.inputs[0].shape == (8, 4, 64, 16)
    assert timed.inputs[1].shape == (8, 2, 64, 16)
    assert timed.inputs[0].dtype == "bfloat16"
