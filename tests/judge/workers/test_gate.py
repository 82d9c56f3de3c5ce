"""The gate refuses a problem that a trivial answer passes, however large its outputs are."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from ratchet.judge.workers.reference.gate import SAMPLED, gate
from ratchet.kernels.case import Case, TensorSpec
from ratchet.kernels.problem import Problem

LARGE = 4 * SAMPLED


def problem(size: int) -> Problem:
    spec = TensorSpec(shape=(size,), dtype="float32")
    return Problem(
        name="large",
        reference="none:none",
        cases=(Case(name="large", tier="ci", inputs=(spec,)),),
    )


def nothing(x: Tensor, _: object) -> tuple[Tensor]:
    return (x * 0,)


def a_number(x: Tensor, _: object) -> tuple[Tensor]:
    return (x * 0 + 3.25,)


def the_input(x: Tensor, _: object) -> tuple[Tensor]:
    return (x.clone(),)


def one_element(x: Tensor, _: object) -> tuple[Tensor]:
    """Zeros but for one place, which a sample hardly meets."""
    found = torch.zeros_like(x)
    found[123] = x.sum()
    return (found,)


def work(x: Tensor, _: object) -> tuple[Tensor]:
    return (x.sin(),)


@pytest.mark.parametrize("size", [200, LARGE])
@pytest.mark.parametrize(
    ("reference", "passing"),
    [
        (nothing, {"zeros", "a constant", "the output for other inputs"}),
        (a_number, {"a constant", "the output for other inputs"}),
        (the_input, {"an input passed through"}),
        (one_element, set()),
        (work, set()),
    ],
)
def test_a_trivial_answer_passes_only_where_it_is_right_everywhere(
    size: int, reference: object, passing: set[str]
) -> None:
    assert set(gate(problem(size), reference, random.Random(1))) == passing  # type: ignore[arg-type]
