"""The knapsack over blocks: exact, within its budget, and monotone in it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.base.errors import PlanError
from ratchet.train.memory import parse_size
from ratchet.train.memory.measured import MeasuredStep, MemoryParts
from ratchet.train.memory.plan import BlockCosts, best_plan, least_plan, plan_of, remedies

COUNTS = st.integers(min_value=1, max_value=300)


@st.composite
def made_costs(draw: st.DrawFn, mixes: bool = True) -> BlockCosts:
    blocks = draw(st.integers(min_value=1, max_value=4))

    def of_choices() -> dict[str, float]:
        return {choice: float(draw(COUNTS)) for choice in "nsf"}

    return BlockCosts(
        saved=tuple(of_choices() for _ in range(blocks)),
        own=tuple(of_choices() for _ in range(blocks)),
        outside={place: float(draw(COUNTS)) for place in range(blocks + 1)},
        time_s=tuple(of_choices() for _ in range(blocks)),
        mixes=mixes,
    )


def all_plans(costs: BlockCosts) -> list[str]:
    blocks = len(costs.saved)
    if not costs.mixes:
        return [choice * blocks for choice in "nsf"]
    return ["".join(letters) for letters in itertools.product("nsf", repeat=blocks)]


@settings(max_examples=200, deadline=None)
@given(made_costs(), st.integers(min_value=1, max_value=1500))
def test_no_plan_within_the_budget_takes_less_time(costs: BlockCosts, budget: int) -> None:
    fitting = [plan for plan in all_plans(costs) if costs.peak_bytes(plan) <= budget]
    found = best_plan(costs, budget)
    if not fitting:
        assert found is None
        return
    assert found is not None and found.predicted_bytes <= budget
    assert found.added_s == pytest.approx(min(costs.added_s(plan) for plan in fitting))


@settings(max_examples=50, deadline=None)
@given(made_costs())
def test_the_least_plan_has_the_smallest_peak(costs: BlockCosts) -> None:
    smallest = min(costs.peak_bytes(plan) for plan in all_plans(costs))
    assert least_plan(costs).predicted_bytes <= smallest * 1.001 + 1


@settings(max_examples=50, deadline=None)
@given(made_costs(mixes=False), st.integers(min_value=1, max_value=1500))
def test_blocks_out_of_order_all_choose_the_same(costs: BlockCosts, budget: int) -> None:
    found = best_plan(costs, budget)
    assert found is None or len(set(found.choices)) == 1


@settings(max_examples=50, deadline=None)
@given(made_costs(), st.integers(min_value=1, max_value=1000), st.integers(1, 500))
def test_more_room_never_takes_more_time(costs: BlockCosts, budget: int, more: int) -> None:
    small, large = best_plan(costs, budget), best_plan(costs, budget + more)
    if small is not None:
        assert large is not None and large.added_s <= small.added_s + 1e-9


def test_a_budget_of_real_sizes_is_not_exceeded_by_rounding() -> None:
    saved = {"n": 10506240.0, "s": 6050752.0, "f": 529344.0}
    costs = BlockCosts(
        saved=(saved,) * 12,
        own=({"n": 139933932.0, "s": 140463276.0, "f": 139938988.0},) * 12,
        outside={12: 153076972.0},
        time_s=({"n": 0.0, "s": 0.1, "f": 0.15},) * 12,
        mixes=True,
    )
    found = best_plan(costs, 220_000_000)
    assert found is not None and found.predicted_bytes <= 220_000_000
    assert costs.peak_bytes("n" * 12) > 220_000_000
    assert plan_of(costs, found.choices) == found


def least(*, activations: int) -> MeasuredStep:
    parts = MemoryParts(
        parameters=100, gradients=100, optimizer=200, activations=activations, rest=0
    )
    return MeasuredStep(
        checkpointing="plan:ff",
        compiled=False,
        peak_bytes=400 + activations,
        parts=parts,
        stretches=(),
    )


def test_what_else_would_fit_follows_the_formulas() -> None:
    found = remedies(least(activations=800), 800, samples=8, block_bytes=10)
    assert found == "a batch of 4"
    # Room for activations and a whole block leaves 280: 400 of states over two ranks.
    found = remedies(least(activations=100), 400, samples=1, block_bytes=10)
    assert found == "sharding over 2 ranks"
    nothing = remedies(least(activations=800), 100, samples=1, block_bytes=10)
    assert "larger device" in nothing


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("2GiB", 2 << 30), ("2g", 2 << 30), ("16GB", 16_000_000_000), ("1.5 MiB", 3 << 19)],
)
def test_sizes_are_read(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["2", "GiB", "-2GiB", "nan", "2 parsecs", "0GiB", ""])
def test_a_size_that_is_none_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(PlanError, match="write 2GiB, 800MiB or 16GB"):
        parse_size(text)
