"""Costs, savings, commands and calibration of plans."""

from __future__ import annotations

import gzip
import json
import math
import shlex
from pathlib import Path

import numpy as np
import pytest

from ratchet.base.errors import PlanError
from ratchet.scale.plan import cost_of, savings
from ratchet.scale.plan.calibrate import calibrated
from ratchet.scale.plan.cluster import parse_cluster
from ratchet.scale.plan.commands import jobset, slurm, torchrun
from ratchet.scale.plan.layout import STACKS, Layout, columns
from ratchet.scale.plan.search import LayoutPlan, PlanQuestion, evaluate, make_asked
from ratchet.scale.plan.shape import find_shape
from ratchet.scale.plan.time import product_s

CLUSTER = parse_cluster("mi300x:8x2")
LAYOUT = Layout(dp=2, tp=8, sharding="full", checkpointing="selective")


def plan_one(asked: PlanQuestion, layout: Layout) -> LayoutPlan:
    return evaluate(asked, columns([layout])).plan(asked, 0)


def test_a_run_costs_its_device_hours() -> None:
    asked = make_asked(find_shape("llama3-8b"), CLUSTER, STACKS["torch"], batch=64)
    one = plan_one(asked, LAYOUT)
    cost = cost_of(one, CLUSTER, 1e9, 2.0)
    assert cost.hours * 3600 == pytest.approx(1e9 / one.tokens_per_s)
    assert cost.device_hours == pytest.approx(16 * cost.hours)
    assert cost.money == pytest.approx(2 * cost.device_hours)
    assert cost.steps == math.ceil(1e9 / (64 * 8192))


def test_savings_follow_the_interval() -> None:
    fleet = parse_cluster("mi300x:1x10000")
    found = savings((0.98, 1.25, 1.5), fleet, 2.0, 0.5)
    low, middle, high = found.device_hours
    assert low < 0 < middle < high
    assert middle == pytest.approx(0.2 * 10000 * 8760)
    assert found.money[1] == pytest.approx(2 * middle)
    assert found.paid_after_s[0] == math.inf
    # Half a device-hour is paid when a fifth of 10,000 devices has trained for 0.9 s.
    assert found.paid_after_s[1] == pytest.approx(0.5 / 2000 * 3600)


@pytest.mark.parametrize("ratio", [-1.0, 0.0, math.nan, math.inf])
def test_a_ratio_that_is_none_is_refused(ratio: float) -> None:
    with pytest.raises(PlanError, match="ratio"):
        savings((1.0, ratio, 1.2), CLUSTER, 2.0, 0.5)


@pytest.mark.parametrize("stack", STACKS)
def test_commands_hold_every_degree(stack: str) -> None:
    layout = Layout(dp=1, tp=4, pp=4, vpp=2, checkpointing="full")
    asked = make_asked(find_shape("llama3-8b"), CLUSTER, STACKS[stack], batch=64)
    one = plan_one(asked, layout)
    words = shlex.split(torchrun(asked, one, head="node0"))
    assert words[:3] == ["torchrun", "--nnodes=2", "--nproc-per-node=8"]
    told = " ".join(words)
    assert "tensor" in told and "pipeline" in told and "node0:29500" in told
    script = slurm(asked, one)
    assert "#SBATCH --nodes=2" in script and "srun" in script
    import yaml

    document = yaml.safe_load(jobset(asked, one))
    job = document["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert job["completions"] == 2
    container = job["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"amd.com/gpu": 8}


def test_megatron_s_command_has_the_model_s_sizes() -> None:
    asked = make_asked(find_shape("llama3-8b"), CLUSTER, STACKS["megatron"], batch=64)
    words = torchrun(asked, plan_one(asked, Layout(dp=2, tp=8))).split()
    for said in ("--num-layers=32", "--hidden-size=4096", "--ffn-hidden-size=14336",
                 "--num-attention-heads=32", "--num-query-groups=8", "--group-query-attention",
                 "--swiglu", "--sequence-parallel"):  # fmt: skip
        assert said in words
    old = make_asked(find_shape("gpt3-175b"), CLUSTER, STACKS["megatron-2021"], batch=64)
    words = torchrun(old, plan_one(old, Layout(tp=8, pp=2))).split()
    assert "pretrain_gpt.py" in words and "--hidden-size=12288" in words
    assert not {"--sequence-parallel", "--swiglu", "--group-query-attention"} & set(words)


def trace_of(device: str, path: Path, *, inner: int = 4096, dur_us: int = 1000) -> Path:
    """A trace of one large bf16 product on a device."""
    size = 4096
    common = {"ph": "X", "pid": 0, "tid": 7}
    shapes = {"Input Dims": [[size, inner], [inner, size]],
              "Input type": ["c10::BFloat16", "c10::BFloat16"], "External id": 1}  # fmt: skip
    events = [
        {**common, "pid": 1, "tid": 1, "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 50,
         "args": shapes},
        {**common, "pid": 1, "tid": 1, "cat": "cuda_runtime", "name": "hipLaunchKernel", "ts": 10,
         "dur": 5, "args": {"correlation": 3, "External id": 1}},
        {**common, "cat": "kernel", "name": "Cijk_Ailk_BBS", "ts": 100, "dur": dur_us,
         "args": {"correlation": 3, "External id": 1, "device": 0, "stream": 7}},
    ]  # fmt: skip
    document = {"deviceProperties": [{"id": 0, "name": device}], "traceEvents": events}
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    return path


def test_a_trace_sets_the_rate_of_products(tmp_path: Path) -> None:
    path = trace_of("AMD Instinct MI300X", tmp_path / "one.json.gz")
    found = calibrated(CLUSTER, [path])
    size = np.array(4096.0)
    assert float(product_s(CLUSTER, size, size, size)) == pytest.approx(3.1e-4, rel=0.5)
    # The trace's product now takes the 1 ms that was measured, a launch besides.
    assert float(product_s(found, size, size, size)) == pytest.approx(1e-3, rel=0.01)
    assert found.by_inner == ((4096.0, 1.0),)
    assert "1 products of the given traces" in found.products["bf16"].source
    assert found.fabric == CLUSTER.fabric


def test_each_inner_size_has_its_own_rate(tmp_path: Path) -> None:
    deep = trace_of("AMD Instinct MI300X", tmp_path / "deep.json.gz")
    short = trace_of("AMD Instinct MI300X", tmp_path / "short.json.gz", inner=1024, dur_us=500)
    found = calibrated(CLUSTER, [deep, short])
    size = np.array(4096.0)
    assert float(product_s(found, size, size, size)) == pytest.approx(1e-3, rel=0.01)
    assert float(product_s(found, size, size, np.array(1024.0))) == pytest.approx(5e-4, rel=0.02)
    between = float(product_s(found, size, size, np.array(2048.0)))
    assert 5e-4 < between < 1e-3


def test_a_trace_of_another_device_is_refused(tmp_path: Path) -> None:
    path = trace_of("NVIDIA H100 80GB HBM3", tmp_path / "one.json.gz")
    with pytest.raises(PlanError, match="the cluster has MI300X"):
        calibrated(CLUSTER, [path])
