"""Shapes, memory and time of plans: published models, and properties that formulas must have."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.base.errors import PlanError
from ratchet.scale.plan.cluster import parse_cluster
from ratchet.scale.plan.layout import STACKS, Layout, columns, parse_layout
from ratchet.scale.plan.memory import memory, parameters_per_rank
from ratchet.scale.plan.search import (
    evaluate,
    front,
    layouts_of,
    make_asked,
    plan,
    plan_degrees,
    room_bytes,
)
from ratchet.scale.plan.shape import Shape, find_shape, of_config
from ratchet.scale.plan.time import link_s, product_s

MI300X = parse_cluster("mi300x:8x2")
SMALL = find_shape("llama3-8b")


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("llama3-8b", 8.03, 7.5),
        ("llama3-405b", 405.8, 403.7),
        ("mixtral-8x7b", 46.7, 12.7),
        ("qwen3-235b-a22b", 235.1, 21.6),
        ("gpt3-175b", 174.6, 174.6),
    ],
)
def test_published_models_have_their_size(name: str, billions: float, active: float) -> None:
    shape = find_shape(name)
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.01)
    assert shape.active_parameters / 1e9 == pytest.approx(active, rel=0.01)


@pytest.mark.parametrize("name", ["llama-60m", "gpt2-124m"])
def test_a_built_in_workload_has_the_parameters_of_its_model(name: str) -> None:
    import torch

    from ratchet.train.workloads.load import FAMILIES

    family, _, size = name.partition("-")
    with torch.device("meta"):
        model = FAMILIES[family].build_model(FAMILIES[family].sizes[size])
    counted = sum(one.numel() for one in model.parameters())
    # Norms, biases and learned positions are left out.
    assert find_shape(name).parameters == pytest.approx(counted, rel=0.02)


def test_a_model_of_transformers_has_its_size() -> None:
    assert find_shape("hf:llama").parameters == pytest.approx(6.74e9, rel=0.01)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("lama3-8b", "mi300x:8x2"), "did you mean llama3-8b"),
        (("llama3-8b", "mi300x"), "DEVICE:LOCALxNODES"),
        (("llama3-8b", "mi999:8x2"), "no device 'mi999'"),
        (("llama3-8b", "a10:8x2"), "a100-sxm-80gb, a100-sxm-40gb"),
        (("llama3-8b", "mi300x:16x2"), "at most 8"),
        (("llama3-8b", "mi300x:12"), "whole nodes"),
        (("llama3-8b", "mi300x:0x2"), "no devices"),
    ],
)
def test_a_mistake_names_value_and_remedy(words: tuple[str, str], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        parse_cluster(words[1])
        find_shape(words[0])


def test_a_configuration_without_the_experts_that_it_sends_tokens_to_is_refused() -> None:
    from transformers import MixtralConfig

    with pytest.raises(PlanError, match="has 0 experts and sends a token to 2 of them"):
        of_config("hf:mine", MixtralConfig(num_local_experts=0))


def test_experts_that_no_token_visits_are_refused() -> None:
    with pytest.raises(PlanError, match="0 of 8 experts"):
        Shape(
            name="odd", layers=2, hidden=64, heads=2, kv_heads=2, head_dim=32, intermediate=0,
            vocabulary=100, sequence=128, experts=8, experts_per_token=0,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tp=3", "do not make the 16"),
        ("dp=2,fsdp=2", "both dp and fsdp"),
        ("xx=2", "no degree"),
        ("tp=0", "give 1 or more"),
        ("dp=4,tp=2", "do not make the 16"),
    ],
)
def test_a_layout_that_does_not_divide_is_refused(text: str, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        parse_layout(text, 16)


def test_states_of_a_sharded_model_shrink_with_its_ranks() -> None:
    stack, batches = STACKS["torch"], np.array([1.0])
    whole = memory(SMALL, columns([Layout(dp=1)]), batches, stack)
    # 2 bytes of weight, 4 of gradient, 12 of AdamW (arXiv:1910.02054 with fp32 gradients).
    states = whole.weights + whole.gradients + whole.optimizer
    assert states[0] == pytest.approx(18 * SMALL.parameters)
    sharded = memory(SMALL, columns([Layout(dp=8, sharding="full")]), batches, stack)
    states = sharded.weights + sharded.gradients + sharded.optimizer
    assert states[0] == pytest.approx(2 * SMALL.parameters)


def test_activations_of_a_gpt_layer_are_those_of_the_paper() -> None:
    """arXiv:2205.05198, table 2: s b h (34 + 5 a s / h) without parallelism."""
    from dataclasses import replace

    shape = find_shape("megatron-22b")
    stack = replace(STACKS["megatron"], flash=False)
    found = memory(shape, columns([Layout(micro_batch=4)]), np.array([1.0]), stack).activations[0]
    tokens, hidden = 4 * shape.sequence, shape.hidden
    each = 34 + 5 * shape.heads * shape.sequence / hidden
    assert found == pytest.approx(shape.layers * tokens * hidden * each)


DEGREES = st.sampled_from([1, 2, 4, 8])


@settings(max_examples=60, deadline=None)
@given(tp=DEGREES, dp=DEGREES, micro=DEGREES, keep=st.sampled_from(["none", "selective", "full"]))
def test_checkpointing_trades_memory_for_time(tp: int, dp: int, micro: int, keep: str) -> None:
    asked = make_asked(SMALL, MI300X, STACKS["torch"], batch=64)
    some = Layout(dp=dp, tp=tp, micro_batch=micro, sharding="full", checkpointing=keep)  # type: ignore[arg-type]
    most = Layout(dp=dp, tp=tp, micro_batch=micro, sharding="full")
    found = evaluate(asked, columns([some, most]))
    assert found.memory.total[0] <= found.memory.total[1] * 1.0001
    assert found.times.total[0] >= found.times.total[1] * 0.9999
    for part in (found.memory, found.times):
        assert all(np.all(getattr(part, name) >= 0) for name in part.__dataclass_fields__)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(64, 65536), columns_=st.integers(64, 65536), inner=st.integers(64, 65536)
)  # fmt: skip
def test_a_product_is_never_faster_than_its_ceilings(rows: int, columns_: int, inner: int) -> None:
    sizes = (np.array([float(one)]) for one in (rows, columns_, inner))
    time_s = float(product_s(MI300X, *sizes)[0])
    assert time_s >= 2.0 * rows * columns_ * inner / MI300X.products["bf16"].per_s
    assert time_s >= 2.0 * rows * columns_ / MI300X.memory.per_s


def test_two_ranks_of_a_full_mesh_use_one_link_of_seven() -> None:
    moved, one = np.array([1e9]), np.array([1.0])
    two = link_s(MI300X, moved, np.array([2.0]), one)[0]
    eight = link_s(MI300X, moved, np.array([8.0]), one)[0]
    assert two / eight == pytest.approx(7.0, rel=0.02)
    h100 = parse_cluster("h100:8x2")
    same = [link_s(h100, moved, np.array([ranks]), one)[0] for ranks in (2.0, 8.0)]
    assert same[0] == pytest.approx(same[1], rel=0.05)


def test_more_bandwidth_never_makes_a_step_slower() -> None:
    slow = make_asked(SMALL, parse_cluster("mi300x:8x2", network_gb_per_s=5), STACKS["torch"])
    fast = make_asked(SMALL, parse_cluster("mi300x:8x2", network_gb_per_s=100), STACKS["torch"])
    layouts = layouts_of(slow)
    before, after = evaluate(slow, layouts).times.total, evaluate(fast, layouts).times.total
    assert np.all(after <= before * (1 + 1e-12)) and np.any(after < before)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 9), st.floats(0.1, 9)), min_size=1, max_size=30))
def test_nothing_beats_the_front_and_all_else_is_beaten(points: list[tuple[float, float]]) -> None:
    step_s, held = (np.array(one) for one in zip(*points, strict=True))
    chosen = {(step_s[at], held[at]) for at in front(step_s, held)}
    for time_s, size in points:
        beaten = any(a <= time_s and b <= size and (a, b) != (time_s, size) for a, b in chosen)
        assert beaten or (time_s, size) in chosen


def test_plans_fit_divide_and_start_with_the_fastest() -> None:
    asked = make_asked(find_shape("llama3-70b"), parse_cluster("mi300x:8x16"), STACKS["torch"])
    found = plan(asked)
    assert found.counted > found.fitting > 0
    times_s = [one.step_s for one in found.front]
    assert times_s == sorted(times_s)
    for one in found.front:
        assert one.layout.world == 128
        assert one.memory_bytes <= room_bytes(asked.cluster)
        assert one.layout.dp * one.layout.micro_batch * one.micro_batches == asked.batch
        assert one.step_s == pytest.approx(sum(one.time_s.values()))
        assert 0 < one.mfu < 0.55  # a measured ceiling is 54 % of MI300X's paper peak
        again = evaluate(asked, columns([one.layout])).plan(asked, 0)
        assert again.step_s == pytest.approx(one.step_s)


def test_a_model_that_fits_nowhere_names_the_smallest_cluster() -> None:
    asked = make_asked(find_shape("llama3-405b"), parse_cluster("h100:8x1"), STACKS["torch"])
    with pytest.raises(PlanError, match=r"it fits h100:8x\d+: plan for that"):
        plan(asked)


def test_a_node_is_filled_before_a_second_one() -> None:
    asked = make_asked(find_shape("llama3-70b"), parse_cluster("mi300x:1"), STACKS["torch"])
    with pytest.raises(PlanError, match=r"it fits mi300x:8x1: plan for that"):
        plan(asked)


def test_a_precision_that_the_device_lacks_is_refused() -> None:
    with pytest.raises(PlanError, match="no fp8 products"):
        make_asked(SMALL, parse_cluster("a100:8x1"), STACKS["torch"], precisions=("fp8",))


def test_layers_that_do_not_divide_make_uneven_stages() -> None:
    shape = find_shape("deepseek-v3")
    asked = make_asked(shape, parse_cluster("h200:8x32"), STACKS["megatron"])
    stages = set(layouts_of(asked).pp.tolist())
    assert {1, 4, 16} <= stages
    for pp in stages:  # the last one has layers too
        assert -(-shape.layers // pp) * (pp - 1) < shape.layers
    # The longest of four stages has 16 of 61 layers.
    held, routed, _ = parameters_per_rank(shape, columns([Layout(pp=1), Layout(pp=4)]))
    assert held[1] / held[0] == routed[1] / routed[0] == pytest.approx(16 / 61)


def test_experts_are_spread_over_whole_data_parallel_ranks() -> None:
    asked = make_asked(find_shape("mixtral-8x7b"), parse_cluster("h100:8x1"), STACKS["torch"])
    with pytest.raises(PlanError, match="ep=8 does not divide the 4 data-parallel ranks"):
        plan_degrees(asked, parse_layout("tp=2,ep=8", 8))
