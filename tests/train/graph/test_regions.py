"""Regions taken out of workloads: their keys, their problems, their worth."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TypeAlias

import pytest
import torch
from answers import assert_right
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx

import ratchet
from ratchet.base.devices.ceilings import Ceilings
from ratchet.judge.kernels.kernel_file import built_in_kernel
from ratchet.judge.problems.model_file import run_source
from ratchet.judge.problems.problem_file import load_problem
from ratchet.judge.problems.references import inert_input
from ratchet.judge.workers.gate import gate
from ratchet.train.graph.regions import BEYOND_REACH, OVERLAPPED, Region, RegionReport
from ratchet.train.graph.regions.capture import compiled_s, region_report, with_reach
from ratchet.train.graph.regions.cut import Cut, cut_graph
from ratchet.train.graph.regions.form import RegionForm, form_of, memory_layout
from ratchet.train.graph.regions.problems import Values, header, spec_for
from ratchet.train.graph.regions.trace import TracedGraph, trace
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.load import load

CEILINGS = Ceilings(
    gemm_flops_per_s={"fp32": 1e11, "bf16": 2e11},
    copy_bytes_per_s={"dram": 1e10},
    triad_bytes_per_s={"dram": 1e10},
)
RegionsOf: TypeAlias = Callable[[str], tuple[Region, ...]]
CONFIG = StepConfig(precision="bf16_autocast")
FAMILIES = (
    "llama-tiny",
    "moe-tiny",
    pytest.param("gpt2-tiny", marks=pytest.mark.thorough),
    pytest.param("bert-tiny", marks=pytest.mark.thorough),
    pytest.param("vit-tiny", marks=pytest.mark.thorough),
)


def captured(name: str) -> RegionReport:
    """Return a workload's regions; the capture must leave the model as it was."""
    workload = load(name)
    before = {key: one.clone() for key, one in workload.model.state_dict().items()}
    report = region_report(workload, CONFIG, measuring_s=0, ceilings=CEILINGS)
    assert all(torch.equal(one, before[key]) for key, one in workload.model.state_dict().items())
    assert all(one.grad is None for one in workload.model.parameters())
    return report


@pytest.fixture(scope="session")
def report_of(made_once: Callable[..., RegionReport]) -> Callable[[str], RegionReport]:
    return cache(lambda name: made_once(f"regions-{name}", lambda: captured(name)))


@pytest.fixture(scope="session")
def regions_of(report_of: Callable[[str], RegionReport]) -> RegionsOf:
    return lambda name: report_of(name).regions


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_regions_of_both_passes_and_kinds(family: str, regions_of: RegionsOf) -> None:
    regions = regions_of(family)
    found = {(one.direction, one.kind) for one in regions}
    both = {(way, kind) for way in ("forward", "backward") for kind in ("fused", "product")}
    assert found == both
    assert len({one.key for one in regions}) == len(regions)
    assert all(one.bytes > 0 for one in regions)
    assert all((one.flops > 0) == (one.kind == "product") for one in regions)
    assert [one.gain_s for one in regions] == sorted((one.gain_s for one in regions), reverse=True)


def test_equal_regions_of_two_layers_are_one(regions_of: RegionsOf) -> None:
    regions = regions_of("llama-tiny")
    norms = [one for one in regions if "rsqrt" in one.ops and one.direction == "forward"]
    assert max(one.count for one in norms) >= 2
    attention = [one for one in regions if any("attention" in op for op in one.ops)]
    assert {one.count for one in attention} == {2}


def test_another_model_has_the_same_region(regions_of: RegionsOf) -> None:
    llama = {one.key: one for one in regions_of("llama-tiny")}
    moe = {one.key: one for one in regions_of("moe-tiny")}
    common = llama.keys() & moe.keys()
    assert any("attention" in " ".join(llama[key].ops) for key in common)
    assert any(llama[key].kind == "fused" for key in common)
    assert all(llama[key].problem.name == moe[key].problem.name for key in common)


@pytest.mark.thorough
def test_two_captures_give_the_same_keys_and_problems(regions_of: RegionsOf) -> None:
    again = region_report(load("llama-tiny"), CONFIG, measuring_s=0, ceilings=CEILINGS).regions
    known = {one.key: one.problem.hash for one in regions_of("llama-tiny")}
    assert {one.key: one.problem.hash for one in again} == known


def test_sites_say_which_module_they_come_from(regions_of: RegionsOf) -> None:
    where = {one.where for one in regions_of("llama-tiny")}
    assert any(one.startswith("layers.") for one in where)


def test_products_carry_their_epilogues(regions_of: RegionsOf) -> None:
    regions = regions_of("llama-tiny")
    gated = [one for one in regions if one.kind == "product" and one.ops.count("mm") == 2]
    assert any("mul" in one.ops and one.direction == "forward" for one in gated)


def test_the_floor_is_the_roofline_of_compulsory_work(regions_of: RegionsOf) -> None:
    for region in regions_of("llama-tiny"):
        least = max(region.flops / 2e11, region.bytes / 1e10)
        most = max(region.flops / 1e11, region.bytes / 1e10)
        assert least <= region.floor_s * (1 + 1e-9) and region.floor_s <= most * (1 + 1e-9)


def test_a_product_is_likely_to_win_up_to_what_the_step_s_best_reaches(
    regions_of: RegionsOf,
) -> None:
    first, *others = (one for one in regions_of("llama-tiny") if one.kind == "product")
    fused = next(one for one in regions_of("llama-tiny") if one.kind == "fused")
    times = [(first, 2.0), *((one, 8.0) for one in others), (fused, 8.0)]
    measured = [
        replace(one, time_s=factor * one.floor_s, timed_by="inductor", overlapped=False)
        for one, factor in times
    ]
    best, *slow, pointwise = with_reach(measured)
    assert best.likely_s == pytest.approx(BEYOND_REACH * best.gain_s)
    for one in slow:
        in_reach = 6 / 7 * one.gain_s
        assert one.likely_s == pytest.approx(in_reach + BEYOND_REACH * (one.gain_s - in_reach))
    assert pointwise.likely_s == pointwise.gain_s


def test_of_regions_that_share_operations_the_most_promising_goes_first(
    regions_of: RegionsOf,
) -> None:
    regions = regions_of("llama-tiny")
    assert any(one.overlapped for one in regions) and not all(one.overlapped for one in regions)
    whole = replace(next(one for one in regions if one.overlapped), overlapped=False)
    assert replace(whole, overlapped=True).likely_s == pytest.approx(OVERLAPPED * whole.likely_s)


# Problems


@pytest.mark.parametrize("family", FAMILIES)
def test_no_trivial_answer_passes_and_every_input_counts(
    family: str, regions_of: RegionsOf
) -> None:
    for region in regions_of(family):
        problem = region.problem
        reference = run_source(problem.text).reference
        assert gate(problem, reference, random.Random(1)) == [], problem.name
        assert inert_input(reference, problem.cases, problem.build_inputs) is None, problem.name


def test_hidden_cases_have_other_batch_sizes(regions_of: RegionsOf) -> None:
    regions = regions_of("llama-tiny")
    for region in regions:
        timed, *hidden = region.problem.cases
        assert timed.timed and all(case.hidden and not case.timed for case in hidden)
    scaled = [one for one in regions if one.problem.cases[1].name == "hidden batch 1"]
    assert len(scaled) > 0.9 * len(regions)
    for region in scaled:
        timed, smallest = region.problem.cases[:2]
        ratios = {
            one / other
            for a, b in zip(timed.inputs, smallest.inputs, strict=True)
            for one, other in zip(a.shape, b.shape, strict=True)
        }
        assert ratios <= {1.0, 8.0} and 8.0 in ratios


def test_indices_are_drawn_in_range(regions_of: RegionsOf) -> None:
    embedding = next(one for one in regions_of("llama-tiny") if one.ops[0] == "embedding")
    tokens = next(spec for spec in embedding.problem.cases[0].inputs if spec.dtype == "int64")
    assert tokens.distribution == "integers" and tokens.low == 0
    assert tokens.high is not None and 1 < tokens.high <= 512


def test_values_are_drawn_at_the_step_s_scale_and_at_one(regions_of: RegionsOf) -> None:
    regions = regions_of("llama-tiny")
    drawn = {spec.deviation for one in regions for spec in one.problem.cases[0].inputs}
    assert len(drawn) > 1
    assert all(math.log(one, 4).is_integer() and 4**-4 <= one <= 16 for one in drawn)
    for region in regions:
        timed, *hidden = region.problem.cases
        if any(spec.deviation != 1 for spec in timed.inputs):
            varied = [one for one in hidden if "batch" not in one.name]
            assert all(spec.deviation == 1 for one in varied for spec in one.inputs)


@pytest.mark.parametrize("deviation", [0.5**power for power in range(11)])
def test_an_initialisation_by_a_power_of_two_is_drawn_alike_each_time(deviation: float) -> None:
    drawn = {
        spec_for(
            (4,), "float32", Values(low=-1, high=1, deviation=deviation * (1 + error))
        ).deviation
        for error in (-0.05, 0, 0.05)
    }
    assert len(drawn) == 1


def test_a_saved_region_is_a_problem_file(tmp_path: Path, regions_of: RegionsOf) -> None:
    region = regions_of("llama-tiny")[0]
    path = tmp_path / "region.py"
    path.write_text(region.problem.text, encoding="utf-8")
    assert load_problem(path).hash == region.problem.hash


def test_the_judge_takes_a_saved_region(tmp_path: Path, regions_of: RegionsOf) -> None:
    region = next(
        one
        for one in regions_of("llama-tiny")
        if one.kind == "fused" and one.direction == "backward" and "sum" in one.ops
    )
    path = tmp_path / "region.py"
    path.write_text(region.problem.text, encoding="utf-8")
    kernel = built_in_kernel(region.problem, "eager")
    assert_right(ratchet.judge(kernel, path, time_limit_s=120))


# The text against the graph


@pytest.mark.parametrize("family", FAMILIES)
def test_a_region_computes_what_the_graph_computes(family: str) -> None:
    workload = load(family)
    values: dict[Node, Tensor] = {}
    cuts: list[Cut] = []

    def seen(traced: TracedGraph) -> None:
        found = cut_graph(traced.module.graph)
        cuts.extend(found)
        traced.wanted = frozenset(n for cut in found for n in (*cut.inputs, *cut.outputs))
        traced.look = lambda node, value: values.update({node: value.clone()})

    trace(workload, StepConfig(), workload.batch(0), seen=seen)
    assert len(cuts) > 20
    for cut in cuts:
        form = form_of(cut, None)
        reference = run_source(f"{header(form)}\n\n{form.reference}\n").reference
        got = reference(*(lying(values[one.node]) for one in form.inputs), ())
        for node, one in zip(form.outputs, got, strict=True):
            wanted = lying(values[node])
            assert one.is_contiguous() or one.numel() == 1
            torch.testing.assert_close(one, wanted, rtol=1e-4, atol=1e-5, equal_nan=True)


def form_of_a_fused_product() -> RegionForm:
    """Inductor's decomposition of addcmul calls a prim that `torch._prims` does not have."""
    from torch._inductor import inductor_prims

    def step(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return inductor_prims.fma(x, y, z).sin()

    graph = make_fx(step)(*(torch.ones(4, 8) for _ in range(3))).graph
    (cut,) = cut_graph(graph)
    form = form_of(cut, None)
    assert "prims.fma" in form.reference
    return form


def test_a_prim_of_inductor_is_imported_by_its_problem() -> None:
    form = form_of_a_fused_product()
    plain = replace(form, reference=form.reference.replace("prims.fma", "prims.sin"))
    assert "inductor" in header(form) and "inductor" not in header(plain)


def test_a_problem_registers_the_prims_that_inductor_alone_has() -> None:
    form = form_of_a_fused_product()
    text = f"{header(form)}\n\n{form.reference}\n"
    lines = ["reference(*[torch.ones(4, 8)] * 3, ())"]
    subprocess.run([sys.executable, "-c", "\n".join([text, *lines])], check=True, timeout=120)


def test_a_long_step_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = load("llama-tiny")
    runs = []
    for long_s in (0.0, 1e9):
        monkeypatch.setattr("ratchet.train.graph.regions.trace.LONG_S", long_s)
        shown: list[Node] = []

        def seen(traced: TracedGraph, shown: list[Node] = shown) -> None:
            traced.wanted = frozenset(traced.module.graph.nodes)
            traced.look = lambda node, value: shown.append(node)

        graphs = trace(workload, StepConfig(), workload.batch(0), seen=seen)
        assert all(graph.calls == 1 and graph.times_s for graph in graphs)
        assert len(shown) == len(set(shown))
        runs.append(graphs)
    assert [len(one.times_s) for one in runs[0]] == [len(one.times_s) for one in runs[1]]


def lying(tensor: Tensor) -> Tensor:
    lie = memory_layout(tuple(tensor.shape), tuple(tensor.stride()))
    assert lie is not None and lie.is_dense
    return tensor.permute(lie.order)


# Keys


def keys_of(function: object, *inputs: Tensor) -> list[str]:
    graph: Graph = make_fx(function)(*inputs).graph  # type: ignore[operator]
    return sorted(form_of(cut, None).key for cut in cut_graph(graph))


def test_a_key_knows_no_names_and_no_order() -> None:
    x, y = torch.randn(8, 16), torch.randn(8, 16)

    def one(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        left = x.exp()
        right = y.sin()
        return left * right, left.sum(-1)

    def other(y: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        right = y.sin()
        left = x.exp()
        total = left.sum(-1)
        return total, left * right

    assert keys_of(one, x, y) == keys_of(other, y, x)
    assert len(keys_of(one, x, y)) == 1


@pytest.mark.parametrize(
    "other",
    [
        torch.randn(8, 32),
        torch.randn(16, 8).t(),
        torch.randn(8, 16, dtype=torch.float64),
    ],
    ids=["shape", "strides", "dtype"],
)
def test_a_key_knows_shape_strides_and_dtype(other: Tensor) -> None:
    def function(x: Tensor) -> Tensor:
        return x.exp().sum(-1)

    assert keys_of(function, torch.randn(8, 16)) != keys_of(function, other)


def test_a_region_never_waits_for_itself() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        h = x.exp()
        return torch.mm(h.sin(), w).cos() + h

    graph = make_fx(function)(torch.randn(4, 4), torch.randn(4, 4)).graph
    cuts = [cut for cut in cut_graph(graph) if cut.kind == "fused"]
    assert sorted(len(cut.computing) for cut in cuts) == [2, 2]


# What has no region

DYNAMIC = """
import torch
from torch import nn
from ratchet import Workload

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 1)

    def forward(self, x):
        hidden = torch.relu(self.first(x)).tanh()
        rows = hidden[hidden[:, 0] > 0]
        return self.second(rows).exp().mean() + hidden.square().mean()

def make(seed=0):
    torch.manual_seed(0)
    return Workload(name="dynamic", model=Model(), loss=lambda model, batch: model(batch),
                    batch=lambda index: torch.randn(32, 16) + 0.1)
"""


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's own, at a break
def test_shapes_that_depend_on_data_are_told_and_the_rest_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "dynamic.py"
    path.write_text(DYNAMIC)
    report = region_report(load(f"{path}:make"), StepConfig(), measuring_s=0, ceilings=CEILINGS)
    assert any("tanh" in one.ops for one in report.regions)
    assert all(one.problem.cases for one in report.regions)


def test_random_numbers_stay_outside() -> None:
    def function(x: Tensor) -> Tensor:
        return (torch.rand_like(x) > 0.1).to(x.dtype) * x.exp()

    graph = make_fx(function)(torch.randn(8, 16)).graph
    (cut,) = (cut for cut in cut_graph(graph) if cut.kind == "fused")
    assert len(cut.inputs) == 2
    assert not any("rand" in str(node.target) for node in cut.nodes)


def test_an_index_outside_of_its_tensor_ends_no_process() -> None:
    def picked(table: Tensor, places: Tensor, scalars: tuple[float, ...]) -> tuple[Tensor, ...]:
        return (table[places] * 2,)

    table = torch.randn(8, 64)
    assert compiled_s(picked, [table, torch.full((4096,), 9)]) is None
