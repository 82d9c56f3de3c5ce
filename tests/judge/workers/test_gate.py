"""The gate refuses a problem that a trivial answer passes, however large its outputs are."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ratchet.judge.problems import references
from ratchet.judge.problems.case import Case, TensorSpec
from ratchet.judge.problems.problem import Problem
from ratchet.judge.workers.gate import SAMPLED, gate
from ratchet.judge.workers.reference import ReferenceWorker

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


def test_nothing_is_computed_for_an_answer_that_has_failed_already() -> None:
    calls: list[int] = []

    def the_input_where_small(x: Tensor, _: object) -> tuple[Tensor]:
        calls.append(x.numel())
        return (x.clone() if x.numel() == 200 else x.sin(),)

    small, large = (problem(size).cases[0] for size in (200, LARGE))
    both = replace(problem(200), cases=(large, small))
    assert gate(both, the_input_where_small, random.Random(1)) == []
    assert calls == [200] * 3 + [LARGE] * 2  # the second has no other inputs


def test_the_operations_of_one_form_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = replace(problem(200).cases[0], timed=True)
    spec = timed.inputs[0]
    hidden = replace(
        timed, timed=False, hidden=True, name="hidden", inputs=(replace(spec, distribution="tiny"),)
    )
    other = replace(hidden, name="other", inputs=(replace(spec, shape=(300,)),))
    counted: list[str] = []

    class Noted(references.FlopCount):
        def __init__(self) -> None:
            counted.append("once")
            super().__init__()

    monkeypatch.setattr(references, "FlopCount", Noted)
    asked = replace(problem(200), reference=f"{__name__}:work", cases=(timed, hidden, other))
    message = {"do": "open", "problem": asked.as_json(), "threads": 1, "seed": 1, "device": None}
    message["is_timed"] = True
    reply, _ = ReferenceWorker().answer(message, [])
    assert len(counted) == 2 and reply["gate"] == []
    assert reply["cases"][0]["flops"] == reply["cases"][1]["flops"]
    untimed, _ = ReferenceWorker().answer({**message, "is_timed": False}, [])
    assert len(counted) == 2 and untimed["cases"][0]["flops"] == 0
