"""Experts, narrow products, held power and racks: what plans say of the machines of 2026."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ratchet.base.errors import PlanError
from ratchet.scale.plan import PlanRequest, planned
from ratchet.scale.plan.cluster import SUSTAINED, parse_cluster
from ratchet.scale.plan.commands import slurm, torchrun
from ratchet.scale.plan.layout import PRECISIONS, STACKS, Layout, columns
from ratchet.scale.plan.search import PlanQuestion, evaluate, make_asked
from ratchet.scale.plan.shape import Shape, find_shape
from ratchet.scale.plan.time import Times, attention_s, grouped_s, product_s

BENCHMARKS = Path(__file__).parents[3] / "benchmarks" / "scale"
DEEPSEEK = find_shape("deepseek-v3")


def times(shape: Shape, words: str, layout: Layout, stack: str = "megatron") -> Times:
    cluster = parse_cluster(words)
    asked = PlanQuestion(shape=shape, cluster=cluster, stack=STACKS[stack], batch=4 * layout.dp)
    return evaluate(asked, columns([layout])).times


@pytest.mark.parametrize("name", ["gb200", "gb300", "b300", "mi350p"])
def test_devices_that_are_rented_now_are_planned(name: str) -> None:
    asked = make_asked(find_shape("llama3-8b"), parse_cluster(f"{name}:8"), STACKS["torch"])
    found = evaluate(asked, columns([Layout(dp=8, sharding="full", checkpointing="full")]))
    assert 0 < found.times.total[0] < 1000


@pytest.mark.parametrize(
    ("words", "local", "nodes"),
    [("gb200:72", 72, 1), ("gb200:64", 64, 1), ("gb300:256", 64, 4), ("gb200:144", 72, 2),
     ("b300:16", 8, 2)],
)  # fmt: skip
def test_a_rack_is_one_node(words: str, local: int, nodes: int) -> None:
    cluster = parse_cluster(words)
    assert (cluster.local, cluster.nodes) == (local, nodes)


def test_a_rack_starts_on_machines_of_four() -> None:
    asked = make_asked(find_shape("llama3-8b"), parse_cluster("gb200:64"), STACKS["torch"])
    one = evaluate(asked, columns([Layout(dp=64, sharding="full")])).plan(asked, 0)
    assert "--nnodes=16 --nproc-per-node=4 --rdzv-backend=c10d" in torchrun(asked, one)
    assert "#SBATCH --nodes=16" in slurm(asked, one)


@pytest.mark.parametrize("words", ["gb200:100", "gb200:80x2", "mi350x:16x2"])
def test_nodes_that_no_rack_has_are_refused(words: str) -> None:
    with pytest.raises(PlanError, match=r"nodes of 72|at most 72|at most 8"):
        parse_cluster(words)


def test_a_device_held_to_fewer_watts_is_slower_and_says_what_it_was_fitted_on() -> None:
    whole, held = parse_cluster("h100:8x1"), parse_cluster("h100:8x1", power_w=500)
    assert held.products["bf16"].per_s == pytest.approx(whole.products["bf16"].per_s * 5 / 7)
    assert "fitted on" in held.products["bf16"].source and held.power_w == 500
    # The same die at 750 and 1,000 W: its clocks are what the exponent stands on.
    ratio = 0.75**0.63
    fast, slow = parse_cluster("mi325x:8x1"), parse_cluster("mi325x:8x1", power_w=750)
    assert slow.products["bf16"].per_s / fast.products["bf16"].per_s == pytest.approx(ratio)
    assert ratio == pytest.approx(1207 / 1447, rel=0.01)
    assert parse_cluster("h100:8x1", power_w=700) == whole


@pytest.mark.parametrize("watts", [-1.0, 701.0])
def test_watts_that_a_board_does_not_take_are_refused(watts: float) -> None:
    with pytest.raises(PlanError, match="takes 700 W at most"):
        parse_cluster("h100:8x1", power_w=watts)


def test_precisions_are_those_of_the_device() -> None:
    known = {name: set(parse_cluster(f"{name}:8x1").products) for name in ("h100", "b200")}
    assert known["h100"] == {"bf16", "fp8"} and known["b200"] == set(PRECISIONS)
    assert set(parse_cluster("mi355x:8x1").products) == set(PRECISIONS) - {"nvfp4"}
    with pytest.raises(PlanError, match="no mxfp8 products"):
        planned(PlanRequest(model="llama3-8b", cluster="h100:8x1", precisions=("mxfp8",)))


def test_fewer_bits_are_faster_and_fewer_than_all_layers_have_four() -> None:
    sizes = [np.array([one]) for one in (32768.0, 16384.0, 16384.0)]
    b200 = parse_cluster("b200:8x1")
    s = {one: float(product_s(b200, *sizes, np.array([PRECISIONS.index(one)]))[0])
         for one in PRECISIONS}  # fmt: skip
    assert s["bf16"] > s["fp8"] == s["mxfp8"] > s["nvfp4"] > s["mxfp4"]


@pytest.mark.parametrize(
    ("name", "cited", "exponent"), [("mi350x", "mi355x", 0.63), ("gb300", "gb200", 1.0)]
)
def test_a_device_without_a_ceiling_has_that_of_its_die_by_its_watts(
    name: str, cited: str, exponent: float
) -> None:
    other, measured = parse_cluster(f"{name}:8"), parse_cluster(f"{cited}:8")
    watts = (other.power_w / measured.power_w) ** exponent
    rate = measured.products["fp8"].per_s
    assert other.products["fp8"].per_s == pytest.approx(rate * watts)
    assert measured.device in other.products["fp8"].source
    for precision, one in other.products.items():
        assert one.per_s <= SUSTAINED * other.peak[precision] * (1 + 1e-9)


def test_one_expert_is_a_product_and_many_never_beat_the_rate() -> None:
    mi355x = parse_cluster("mi355x:8x1")
    sizes = [np.array([one]) for one in (4096.0, 3072.0, 5120.0)]
    assert grouped_s(mi355x, np.array([1.0]), *sizes) == product_s(mi355x, *sizes)
    many = float(grouped_s(mi355x, np.array([16.0]), *sizes)[0])
    flops = 2.0 * 16 * float(np.prod(sizes))
    assert many > flops / (mi355x.products["bf16"].per_s * mi355x.grouped[0])


WINDOWS = replace(find_shape("gpt-oss-120b"), windowed=36, window=1024)


@pytest.mark.parametrize(
    ("name", "shape", "heads", "sequence", "batch", "measured_ms"),
    [
        ("h200", find_shape("llama3-70b"), 64, 8192, 1, (1.708, 5.083)),
        ("gb200", find_shape("llama3-70b"), 64, 4096, 2, (0.391, 1.198)),
        ("gb200", find_shape("llama3-70b"), 64, 8192, 2, (1.397, 4.127)),
        ("gb200", DEEPSEEK, 128, 4096, 2, (0.977, 3.383)),
        ("h200", WINDOWS, 64, 4096, 2, (0.358, 1.042)),
    ],
)
def test_fused_attention_takes_what_nvidia_measured(
    name: str, shape: Shape, heads: int, sequence: int, batch: int, measured_ms: tuple[float, float]
) -> None:
    # NVIDIA/cudnn-frontend benchmark/sdpa_benchmark_training/results @3929da2.
    shape = replace(shape, heads=heads, sequence=sequence)
    tokens = np.array([float(batch * sequence)])
    found = attention_s(
        shape, parse_cluster(f"{name}:8"), columns([Layout(dp=8)]), tokens, STACKS["megatron"]
    )
    for time_s, one_ms in zip(found, measured_ms, strict=True):
        assert 1e3 * time_s[0] == pytest.approx(one_ms, rel=0.2)


def test_an_exchange_across_nodes_goes_through_each_devices_own_card() -> None:
    inside = times(DEEPSEEK, "h100:8x8", Layout(dp=64, ep=8)).experts[0]
    across = times(DEEPSEEK, "h100:8x8", Layout(dp=64, ep=64)).experts[0]
    rack = times(DEEPSEEK, "gb200:64", Layout(dp=64, ep=64)).experts[0]
    # 400 Gb/s a card beside 450 GB/s of NVLink, of which an all-to-all reaches less, and seven of
    # eight tokens leave the node.
    assert 5 < across / inside < 8 and rack < inside


def test_a_token_sent_once_goes_to_the_nodes_that_its_router_allows() -> None:
    layout = Layout(dp=64, ep=64)
    copies = times(DEEPSEEK, "h100:8x8", layout).experts[0]
    once = times(DEEPSEEK, "h100:8x8", layout, "megatron-deepep").experts[0]
    free = replace(DEEPSEEK, most_nodes=0)
    anywhere = times(free, "h100:8x8", layout, "megatron-deepep").experts[0]
    # Of eight nodes, 8 x (1 - (7 / 8)^8) = 5.25 hold a token's experts, of which 4 are allowed.
    assert copies / once == pytest.approx(8 / 4, rel=0.05)
    assert anywhere / once == pytest.approx(5.25 / 4, rel=0.05)


def test_an_all_to_all_in_a_mesh_takes_what_was_told_of_one() -> None:
    layout = Layout(dp=8, ep=8, micro_batch=2)
    found = times(find_shape("mixtral-8x22b"), "mi355x:8x1", layout).experts[0]
    # Two of 384 MiB are projected to take 3.913 ms (EXCHANGE_MESH). Each of 56 layers has four for
    # each of 2 micro-batches.
    assert found / (2 * 56) == pytest.approx(2 * 3.913e-3, rel=0.02)


def test_latent_attention_costs_its_own_products() -> None:
    layout = Layout(dp=64, ep=64)
    whole = replace(DEEPSEEK, latent_rank=0, query_rank=0)
    more = (
        times(whole, "gb200:64", layout).compute[0] - times(DEEPSEEK, "gb200:64", layout).compute[0]
    )
    weights = whole.attention_parameters - DEEPSEEK.attention_parameters
    flops = 4 * 61 * 6.0 * weights * DEEPSEEK.sequence
    assert 187e6 < DEEPSEEK.attention_parameters < 188e6  # arXiv:2412.19437, section 4.2
    assert more == pytest.approx(flops / parse_cluster("gb200:64").products["bf16"].per_s, rel=0.15)


def test_the_output_layer_takes_the_place_of_the_layers_that_the_last_stage_lacks() -> None:
    layout, few = Layout(dp=8, pp=16), replace(DEEPSEEK, vocabulary=1024)
    # 61 layers make fifteen stages of 4 and one of 1; 64 make sixteen of 4.
    assert times(DEEPSEEK, "h100:8x16", layout).compute == times(few, "h100:8x16", layout).compute
    even, few = replace(DEEPSEEK, layers=64), replace(few, layers=64)
    assert times(even, "h100:8x16", layout).compute > times(few, "h100:8x16", layout).compute


def test_a_second_token_takes_the_output_layer_again() -> None:
    twice = replace(DEEPSEEK, predicted=2)
    more = twice.flops_per_token - DEEPSEEK.flops_per_token
    assert more == 6 * DEEPSEEK.vocabulary * DEEPSEEK.hidden
    assert times(twice, "h100:8x8", Layout(dp=64)).compute > (
        times(DEEPSEEK, "h100:8x8", Layout(dp=64)).compute
    )


def test_gradients_of_experts_with_few_tokens_wait_for_their_fp32_sums() -> None:
    h100, one = parse_cluster("h100:8x1"), np.array([1.0])
    few, many = ((16 * one, 2048 * one, 1536 * one, rows * one) for rows in (256.0, 65536.0))
    summed, written = (float(grouped_s(h100, *few, 0, moved)[0]) for moved in (8.0, 2.0))
    assert summed > 1.3 * written
    assert grouped_s(h100, *many, 0, 8.0) == grouped_s(h100, *many, 0, 2.0)


def test_the_fullest_rank_sets_the_time() -> None:
    even = times(DEEPSEEK, "h100:8x8", Layout(dp=64, ep=64))
    skewed = times(replace(DEEPSEEK, imbalance=1.5), "h100:8x8", Layout(dp=64, ep=64))
    assert skewed.experts[0] / even.experts[0] == pytest.approx(1.5, rel=0.05)
    assert skewed.compute[0] > even.compute[0]
    with pytest.raises(PlanError, match="below 1"):
        replace(DEEPSEEK, imbalance=0.5)
    with pytest.raises(PlanError, match="no experts to balance"):
        planned(PlanRequest(model="llama3-8b", cluster="h100:8x1", imbalance=1.5))


def test_small_experts_wait_for_the_host() -> None:
    small = find_shape("qwen3-30b-a3b")
    one, four = (
        times(small, "b200:8x1", Layout(dp=8, ep=8, micro_batch=tokens, precision="mxfp8"))
        for tokens in (1, 4)
    )  # four sequences take one micro-batch instead of four
    assert one.compute[0] > 2 * four.compute[0]


@pytest.mark.parametrize("model", ["llama3-70b", "mixtral-8x7b"])
def test_adapters_leave_no_gradients_of_weights(model: str) -> None:
    words = {"model": model, "cluster": "h100:8x2", "parallel": "fsdp=16", "batch": 64}
    whole = planned(PlanRequest(**words)).best  # type: ignore[arg-type]
    adapted = planned(PlanRequest(**words, lora=True)).best  # type: ignore[arg-type]
    assert adapted.memory_by_part["gradients"] == adapted.memory_by_part["optimizer"] == 0
    assert adapted.time_s["optimizer"] == 0 and adapted.step_s < whole.step_s


@pytest.mark.parametrize("stack", ["torch", "megatron"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_each_precision_has_its_words(stack: str, precision: str) -> None:
    asked = make_asked(
        find_shape("llama3-8b"), parse_cluster("b200:8x1"), STACKS[stack],
        precisions=(precision,), batch=64,
    )  # fmt: skip
    layout = Layout(dp=8, sharding="full", precision=precision)  # type: ignore[arg-type]
    words = torchrun(asked, evaluate(asked, columns([layout])).plan(asked, 0))
    said = any(one in words for one in ("fp8", "fp4", "float8", "=mx", "FP4"))
    assert said is (precision != "bf16")


def test_every_published_row_is_planned_or_told_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import published_rows

    table = published_rows.read_table()
    lines = sum(
        len((BENCHMARKS / "published" / name).read_text().splitlines()) - 1
        for name in ("runs.csv", "throughput.csv")
    )
    told = len(table.rows) + len(table.products) + len(table.twice) + len(table.refused)
    assert told == lines == 224 and len(table.refused) == 5
    for name in ("published_rows", "plan_sweeps"):
        sys.modules.pop(name)
