"""How far a step is from its limit: an honest bound, and what each lever could win of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_turns import CEILINGS, NO_BF16, World, run
from test_selection import situation

from ratchet.base.devices.ceilings import Ceilings
from ratchet.train.levers import all_levers, kernel_levers
from ratchet.train.turn.explain import categorise
from ratchet.train.turn.headroom import Worth, limit_of, shared_s, winnable_s
from ratchet.train.turn.optimize_result import IdentityResult, OpTime, StepLimit, StepProfile


def profile(ops: dict[str, tuple[float, float | None]], window_s: float = 1.0) -> StepProfile:
    found = [
        OpTime(
            name=name,
            category=categorise(name) if "::" in name else name,
            time_s=time_s,
            calls=1,
            share=0.0,
            bound="",
            least_s=least,
        )
        for name, (time_s, least) in ops.items()
    ]
    identity = IdentityResult(
        window_s=window_s,
        compute_s=window_s,
        exposed_communication_s=0.0,
        exposed_copy_s=0.0,
        idle_s=0.0,
    )
    return StepProfile(
        total_s=sum(op.time_s for op in found),
        ops=found,
        identity=identity,
        findings=[],
        trace="",
        system_s=0.05,
    )


def limit(of: StepProfile, step_time_s: float = 1.0) -> StepLimit:
    found = limit_of(
        of,
        arm="best_compile",
        title="t",
        step_time_s=step_time_s,
        situation=situation(),
        ceilings=CEILINGS,
    )
    assert found is not None
    return found


STEP = profile({"matmul": (0.6, 0.45), "attention": (0.2, 0.05), "loss": (0.1, None)})


def test_the_parts_sum_to_the_step_and_the_bound_to_its_parts() -> None:
    found = limit(STEP)
    assert sum(one.time_s for one in found.categories) == pytest.approx(1.0)
    assert found.least_s == pytest.approx(0.5)
    assert found.share == pytest.approx(0.5) and found.most == pytest.approx(2.0)
    assert sum(one.winnable_s for one in found.categories) == pytest.approx(0.5)
    times = {one.category: one for one in found.categories}
    assert times["overhead"].time_s == pytest.approx(0.1)
    assert times["loss"].unknown_s == times["loss"].winnable_s == pytest.approx(0.1)


def test_profiling_s_own_cost_is_taken_out() -> None:
    slow = limit(profile({"matmul": (1.2, 0.45)}, window_s=2.0), step_time_s=1.0)
    assert slow.categories[0].time_s + slow.categories[1].time_s == pytest.approx(1.0)
    assert slow.least_s == pytest.approx(0.45)


@given(
    st.dictionaries(
        st.sampled_from(["matmul", "attention", "loss", "optimizer", "compiled"]),
        st.tuples(st.floats(0.01, 1.0), st.none() | st.floats(0.0, 2.0)),
        min_size=1,
    ),
    st.floats(0.1, 10.0),
)
def test_a_step_is_never_beyond_its_limit(
    ops: dict[str, tuple[float, float | None]], step_time_s: float
) -> None:
    window_s = sum(time_s for time_s, _ in ops.values()) * 1.1
    found = limit(profile(ops, window_s), step_time_s)
    assert 0.0 <= found.share <= 1.0
    assert found.most is None or found.most >= 1.0
    assert all(0.0 <= one.winnable_s <= one.time_s + 1e-9 for one in found.categories)


def test_clipping_can_be_won_even_where_the_update_is_above_the_ceiling_of_a_copy() -> None:
    ops = {"aten::_fused_adamw_": (1e-9, None), "aten::linalg_vector_norm": (0.1, None)}
    found = limit(profile({"matmul": (0.6, 0.45), **ops}))
    won = winnable_s(all_levers()["kernel:adamw"], found, STEP, CEILINGS)
    assert won == pytest.approx(0.1, rel=1e-6)


def test_a_lever_wins_no_more_than_what_it_acts_on() -> None:
    found, levers = limit(STEP), all_levers()
    won = {name: winnable_s(one, found, STEP, CEILINGS) for name, one in levers.items()}
    assert won["kernel:attention"] == pytest.approx(0.15)
    assert won["kernel:linear"] == pytest.approx(0.15)
    assert won["allocator-mallopt"] == pytest.approx(0.05)
    assert won["affinity"] is None
    assert won["kernel:adamw"] is None  # the profile shows no optimizer
    # Half of the products' bound at twice the rate, and what they lose against it today.
    assert won["matmul-precision"] == pytest.approx(0.15 + 0.15 + 0.5 * 0.5)


def test_what_can_win_next_to_nothing_says_so() -> None:
    worth = Worth(by_lever={"small": 0.002, "large": 0.5, "unknown": None}, step_time_s=1.0)
    assert worth.too_small("small") == "at most 0.2% of the step could be won by it"
    assert worth.too_small("large") is None and worth.too_small("unknown") is None


def test_max_autotune_is_not_timed_where_the_roofline_leaves_it_nothing(tmp_path: Path) -> None:
    world = World(categories={"matmul": (0.9, 0.9), "attention": (0.1, 0.01)})
    result = run(world, tmp_path, 1800.0).result
    rival = next(one for one in result.rivals if "max-autotune, fp32" in one.title)
    assert rival.step_time_s is None and "could be won" in rival.reason
    assert result.limit is not None and result.limit.share == pytest.approx(0.91, abs=0.02)
    assert result.limit.categories[0].category == "attention"


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("aten::mkldnn_convolution", "convolution"),
        ("aten::convolution_backward", "convolution"),
        ("aten::addmm", "matmul"),
        ("aten::native_batch_norm", "norm"),
        ("aten::max_pool2d_with_indices", "pooling"),
        ("aten::_fused_adamw_", "optimizer"),
        ("Torch-Compiled Region: 0/0", "compiled"),
        ("autograd::engine::evaluate_function: AddmmBackward0", "overhead"),
        ("AddmmBackward0", "overhead"),
        ("aten::tanh", "elementwise"),
        ("aten::copy_", "memory"),
    ],
)
def test_categories_are_named_properly(name: str, category: str) -> None:
    assert categorise(name) == category


def test_kernels_share_what_can_be_won_of_the_operators_they_act_on() -> None:
    found = limit(profile({"matmul": (0.4, 0.4), "compiled": (0.4, None), "attention": (0.2, 0.0)}))
    kernels = [one for one in kernel_levers() if one.name != "kernel:layer_norm"]
    shared = shared_s(kernels, found)
    fusing = [one for one in kernels if "compiled" in one.acts_on]
    assert len(fusing) > 2
    assert shared["kernel:rope"] == pytest.approx(0.4 / len(fusing))
    assert sum(shared.values()) == pytest.approx(0.6)
    worth = Worth(by_lever={"kernel:rope": 0.4, "kernel:attention": 0.2}, shared=shared)
    names = [one.name for one in worth.ranked(kernels)]
    assert names[0] == "kernel:attention"


@pytest.mark.parametrize(
    ("ceilings", "first"),
    [(CEILINGS, ["adamw", "attention"]), (NO_BF16, ["attention", "adamw"])],
)
def test_the_update_that_bf16_weights_need_is_judged_first(
    ceilings: Ceilings, first: list[str], tmp_path: Path
) -> None:
    world = World(
        categories={"attention": (0.9, 0.3), "optimizer": (0.1, None)},
        ceilings=ceilings,
        verdict_s=1.0,
    )
    run(world, tmp_path, 600.0)
    judged = [name.rpartition(":")[2] for kind, name in world.evidence if kind == "judged"]
    assert judged[:2] == first
