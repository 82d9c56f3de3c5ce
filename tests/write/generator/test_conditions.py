"""Conditions on positions: where loops are cut, and where products need not look."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.judge.problems.suites import find_problem
from ratchet.write.form import Matmul
from ratchet.write.form.extent import Extent, named, whole
from ratchet.write.form.forms import forms_of
from ratchet.write.generator.conditions import Band, LoopSplits, left_band, needed_band
from ratchet.write.generator.fusion import planned

WITHIN = st.integers(-5, 25)


@given(st.lists(st.tuples(st.sampled_from((1, -1)), WITHIN), max_size=3), WITHIN, WITHIN)
def test_the_pieces_of_a_loop_are_the_loop(
    turns: list[tuple[int, int]], first: int, length: int
) -> None:
    end = first + max(0, length)
    variable = named("j", named("n"))
    splits = LoopSplits(variable="j", depth=1, tag="c")
    conditions = {}
    for step, rest in turns:
        condition = variable * step + rest
        name = splits.name_of(condition)
        assert name is not None
        conditions[name] = condition
    before, pieces = splits.pieces(str(first), str(end))
    values = {"whole_min": min, "whole_max": max}
    for line in before:
        name, text = line.removeprefix("const int64_t ").removesuffix(";").split(" = ")
        values[name] = eval(text.replace("(int64_t)", ""), {}, values)
    places: list[int] = []
    for piece in pieces:
        own = range(eval(piece.first, {}, values), eval(piece.end, {}, values))
        places += own
        for opening in piece.opening:
            if opening.startswith("constexpr"):
                name, truth = opening.removeprefix("constexpr bool ").rstrip(";").split(" = ")
                held = {_at(conditions[name], place) for place in own}
                assert held <= {truth == "true"}
    assert places == list(range(first, end))


def _at(condition: Extent, place: int) -> bool:
    found = condition.replace({"j": whole(place)}).constant
    assert found is not None
    return found >= 0


def test_a_condition_with_steps_and_a_short_loop_are_not_cut() -> None:
    splits = LoopSplits(variable="j", depth=1, tag="c")
    assert splits.name_of(named("j") * 2 - 3) is None
    assert splits.pieces("0", "n")[1][0].opening == ()
    assert LoopSplits(variable="j", depth=1, tag="c", steps=3).name_of(named("j") - 1) is None


@pytest.mark.parametrize(
    ("name", "bands"),
    [
        ("attention_full", [(None, None), (None, None)]),
        ("attention_causal", [(None, whole(1)), (None, whole(1))]),
    ],
)
def test_a_mask_bounds_products(
    name: str, bands: list[tuple[Extent | None, Extent | None]]
) -> None:
    plan = planned(forms_of(find_problem(name).at("ci"))[0])
    nodes = [one for stage in plan.stages for one in stage.nodes]
    scores, mixed = (one for one in nodes if isinstance(one, Matmul))
    scored = needed_band(scores, nodes, plan.kept)
    assert [(scored.first, scored.end)] == bands[:1]
    mixing = left_band(mixed)
    assert [(mixing.first, mixing.end)] == bands[1:]
    assert needed_band(mixed, nodes, plan.kept) == Band()
    assert left_band(scores) == Band()
