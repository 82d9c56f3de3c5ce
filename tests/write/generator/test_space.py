"""Schedules: first, drawn and changed ones, and the kernels that they give."""

from __future__ import annotations

import random

import pytest

from ratchet.judge.problems.suites import find_problem
from ratchet.write.author import Space
from ratchet.write.generator import space_for
from ratchet.write.generator.schedule import OPTIONS


@pytest.fixture(scope="module")
def space() -> Space:
    return space_for(find_problem("softmax").at("ci"))


def test_the_first_schedules_are_different_kernels(space: Space) -> None:
    hashes = [space.kernel(schedule).hash for schedule in space.first()]
    assert len(set(hashes)) > len(hashes) / 2


def test_a_schedule_gives_the_same_kernel_again(space: Space) -> None:
    schedule = space.draw(random.Random(3))
    assert space.kernel(schedule) == space.kernel(schedule)


def test_a_neighbour_differs_in_one_choice(space: Space) -> None:
    source = random.Random(5)
    schedule = space.first()[0]
    for _ in range(20):
        other = space.change(schedule, source)
        assert sum(one != two for one, two in zip(schedule, other, strict=True)) == 1
        schedule = other


def test_only_choices_that_matter_are_in_a_space(space: Space) -> None:
    rows = {name for name, _ in space.first()[0]}
    elements = {name for name, _ in space_for(find_problem("gelu").at("ci")).first()[0]}
    assert "keep" in rows and "stream" not in rows
    assert "stream" in elements and "keep" not in elements


def test_only_batched_products_are_chained() -> None:
    chosen = {
        name: {choice for choice, _ in space_for(find_problem(name).at("ci")).first()[0]}
        for name in ("attention_full", "linear_gelu", "softmax")
    }
    assert [name for name, choices in chosen.items() if "chain" in choices] == ["attention_full"]


def test_values_are_known(space: Space) -> None:
    for name, value in space.draw(random.Random(7)):
        assert value in OPTIONS[name]


def test_features_tell_schedules_apart(space: Space) -> None:
    one, other = space.first()[:2]
    assert len(space.features(one)) == len(space.features(other))
    assert space.features(one) != space.features(other)


def test_a_kernel_holds_only_what_it_uses(space: Space) -> None:
    source = space.kernel(space.first()[0]).source
    assert "r_exp(" in source and "r_erf(" not in source and "r_gemm" not in source
    assert '#include "' not in source
