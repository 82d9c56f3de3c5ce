"""Problems: inputs drawn from a seed, identity by hash, a bound that wrong answers do not meet."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import replace

import pytest
import torch
from each_case import each
from torch._subclasses.fake_tensor import FakeTensorMode

from ratchet.base.errors import KernelError
from ratchet.judge.kernels.library import LIBRARY
from ratchet.judge.problems.inputs import build
from ratchet.judge.problems.problem import DISTRIBUTIONS, LAYOUTS, Case, Problem, TensorSpec
from ratchet.judge.problems.suites.shipped import WorkloadShapes
from ratchet.judge.problems.tolerance import Tolerance

SHAPES = WorkloadShapes(sequence=16, hidden=32, intermediate=48, parameters=((9, 4),))


@pytest.fixture
def problem() -> Problem:
    return LIBRARY["rms_norm"].problems(SHAPES)[0]


def test_a_problem_survives_json(problem: Problem) -> None:
    again = Problem.from_json(json.loads(json.dumps(problem.as_json())))
    assert again == problem
    assert again.hash == problem.hash
    with pytest.raises(KernelError, match="not a problem's JSON"):
        Problem.from_json({"name": "x"})


def test_the_hash_covers_cases_tolerance_and_reference(problem: Problem) -> None:
    others = (
        replace(problem, cases=problem.cases[1:]),
        replace(problem, tolerance=Tolerance(ulps=3.0)),
        replace(problem, reference=problem.reference.replace("rms_norm", "layer_norm")),
    )
    assert len({problem.hash, *(other.hash for other in others)}) == 4


def test_references_that_are_not_there_are_named(problem: Problem) -> None:
    for wrong in ("ratchet.nowhere:f", "ratchet.judge.problems.suites.shipped.layers:nothing"):
        with pytest.raises(KernelError, match="cannot be loaded"):
            replace(problem, reference=wrong).load_reference()


@pytest.mark.parametrize("distribution", ["normal", "heavy_tailed", "positive", "outliers"])
def test_a_deviation_scales_the_values(distribution: str) -> None:
    plain = TensorSpec(shape=(64, 8), dtype="float32", distribution=distribution)
    (values,), (scaled,) = (build([one], 5) for one in (plain, replace(plain, deviation=0.25)))
    torch.testing.assert_close(scaled, 0.25 * values, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("distribution", "deviation"),
    [("normal", 0.0), ("normal", -1.0), ("normal", float("inf")), ("normal", float("nan"))]
    + [(name, 0.5) for name in ("uniform", "integers", "state", "from_file", "from_file_large")],
)
def test_a_deviation_that_means_nothing_is_refused(distribution: str, deviation: float) -> None:
    with pytest.raises(KernelError, match="deviation"):
        TensorSpec(
            shape=(2,), dtype="int64", distribution=distribution, low=0, high=2, deviation=deviation
        )


def test_a_hidden_case_s_deviation_counts_at_the_timed_sizes() -> None:
    timed = TensorSpec(shape=(8, 8), dtype="float32", deviation=0.25)
    hidden = TensorSpec(shape=(2, 8), dtype="float32")
    cases = (
        Case(name="t", inputs=(timed,), timed=True),
        Case(name="h", inputs=(hidden,), hidden=True),
    )
    found = Problem(name="p", reference="m:f", cases=cases).varied(cases[0])
    assert [one.inputs for one in found] == [(replace(timed, deviation=1.0),)]


DRAWN_HERE = [name for name in DISTRIBUTIONS if name != "state" and "from_file" not in name]
"""The others are drawn by a problem file's own code: tests/judge/trial/test_problem_files.py."""


@each(itertools.product(DRAWN_HERE, LAYOUTS))
def test_the_seed_decides_the_values(distribution: str, layout: str) -> None:
    spec = TensorSpec(
        shape=(2, 3, 4, 5), dtype="float32", distribution=distribution, layout=layout, low=0, high=9
    )
    case = Case(name="one", inputs=(spec, spec))
    maker = Problem(name="x", reference="math:sqrt", cases=(case,))
    first, second = maker.build_inputs(case, 7)
    assert first.shape == second.shape == (2, 3, 4, 5)
    again = maker.build_inputs(case, 7)[0]
    assert torch.equal(first.nan_to_num(), again.nan_to_num())
    if distribution not in ("zeros", "ones"):
        assert not torch.equal(first, second)
        assert not torch.equal(first, maker.build_inputs(case, 8)[0])
    assert first.is_contiguous() == (layout == "contiguous")
    if layout != "broadcast" or distribution != "specials":  # only the first row may be seen there
        assert bool(torch.isfinite(first).all()) == (distribution != "specials")


def test_mistaken_specs_are_refused() -> None:
    with pytest.raises(KernelError, match="'cauchy'"):
        TensorSpec(shape=(1,), dtype="float32", distribution="cauchy")
    with pytest.raises(KernelError, match="low and high"):
        TensorSpec(shape=(1,), dtype="float32", distribution="uniform")


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "gated_activation", "rope", "adamw"])
def test_wrong_answers_fail_every_problem(name: str) -> None:
    for problem in LIBRARY[name].problems(replace(SHAPES, dtype="float32")):
        case = next(case for case in problem.cases if case.timed)
        inputs = problem.build_inputs(case, 1)
        reference = problem.load_reference()
        own = reference(*(t.clone() for t in inputs), case.scalars)
        other = reference(*(t.clone() for t in problem.build_inputs(case, 2)), case.scalars)
        oracle = reference(*(t.double() for t in inputs), case.scalars)
        assert all(result.passed for result in problem.tolerance.check_all(own, own, oracle))
        for wrong in (
            [torch.zeros_like(t) for t in own],
            [torch.full_like(t, 0.5) for t in own],
            [t * 1.01 for t in own],
            [torch.full_like(t, float("nan")) for t in own],
            list(other),
        ):
            checked = problem.tolerance.check_all(wrong, own, oracle)
            assert not all(result.passed for result in checked), problem.name


def test_exact_means_every_bit() -> None:
    value = torch.tensor([0.0, 1.0, float("nan")])
    exact = Tolerance(exact=True)
    assert exact.check(value, value, value.double()).passed
    assert not exact.check(torch.tensor([-0.0, 1.0, float("nan")]), value, value.double()).passed


E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
SLACK = Tolerance(code_slack=1)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, E4M3, E5M2], ids=str)
def test_codes_are_exact_or_their_neighbours_a_few_times(dtype: torch.dtype) -> None:
    bits = torch.randint(1, 120, (5000,), dtype=torch.uint8)
    own = bits.view(dtype)

    def off(steps: int, count: int) -> torch.Tensor:
        moved = bits.clone()
        moved[:count] -= steps
        return moved.view(dtype)

    assert Tolerance().check(own.clone(), own, own).passed
    assert not Tolerance().check(off(1, 1), own, own).passed
    bits[:10] = 50
    assert SLACK.check(off(1, 5), own, own).passed
    assert not SLACK.check(off(1, 6), own, own).passed
    assert not SLACK.check(off(2, 1), own, own).passed
    assert SLACK.check(off(1, 6), own, off(1, 3)).passed  # the oracle's codes are right too
    few = own[:4]
    assert SLACK.check(off(1, 2)[:4], few, few).passed
    assert not SLACK.check(off(1, 3)[:4], few, few).passed


def test_fp8_codes_are_in_the_order_of_their_values() -> None:
    signs = torch.tensor([0x80, 0x00, 0x01, 0x81], dtype=torch.uint8).view(E4M3)
    swapped = torch.tensor([0x00, 0x80, 0x81, 0x01], dtype=torch.uint8).view(E4M3)
    assert Tolerance().check(swapped[:2], signs[:2], signs[:2]).passed  # 0 and -0
    assert not SLACK.check(swapped, signs, signs).passed  # two steps from least to minus least
    infinite = torch.tensor([0x7C], dtype=torch.uint8).view(E5M2)
    largest = torch.tensor([0x7B], dtype=torch.uint8).view(E5M2)
    assert not SLACK.check(infinite, largest, largest).passed
    nan, other = (torch.tensor([one], dtype=torch.uint8).view(E4M3) for one in (0x7F, 0xFF))
    assert Tolerance().check(other, nan, nan).passed
    assert not SLACK.check(torch.tensor([0x7E], dtype=torch.uint8).view(E4M3), nan, nan).passed


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool], ids=str)
def test_a_slack_is_for_codes_of_a_byte(dtype: torch.dtype) -> None:
    own = torch.ones(5000, dtype=dtype)
    off = own.clone()
    off[0] = 0
    assert not SLACK.check(off, own, own).passed


def test_bytes_are_drawn_in_their_range() -> None:
    for dtype, low, high in (("int8", -128, 128), ("uint8", 0, 256)):
        spec = TensorSpec(shape=(4000,), dtype=dtype, distribution="integers", low=low, high=high)
        (drawn,) = build([spec], 1)
        assert drawn.dtype == getattr(torch, dtype)
        assert (int(drawn.min()), int(drawn.max())) == (low, high - 1)
        with pytest.raises(KernelError, match=f"not all {dtype}: it holds"):
            replace(spec, high=high + 1)
    with pytest.raises(KernelError, match="unknown dtype 'int4'"):
        TensorSpec(shape=(1,), dtype="int4")


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_fp8_is_drawn_as_reals_are(dtype: str, layout: str) -> None:
    (drawn,) = build([TensorSpec(shape=(2, 3, 4, 5), dtype=dtype, layout=layout)], 7)
    (real,) = build([TensorSpec(shape=(2, 3, 4, 5), dtype="float32", layout=layout)], 7)
    assert drawn.dtype == getattr(torch, dtype)
    assert drawn.stride() == real.stride()
    assert torch.equal(drawn.float(), real.to(drawn.dtype).float())


def test_specials_must_stand_where_the_reference_has_them() -> None:
    own = torch.tensor([1.0, float("nan"), float("inf")])
    bound = Tolerance()
    assert bound.check(own.clone(), own, own.double()).passed
    for wrong in ([1.0, 0.0, float("inf")], [1.0, float("nan"), -float("inf")]):
        assert not bound.check(torch.tensor(wrong), own, own.double()).passed
    assert not bound.check(torch.tensor([float("nan")] * 3), own, own.double()).passed


def test_shape_and_dtype_are_part_of_the_answer() -> None:
    own = torch.ones(4)
    assert not Tolerance().check(torch.ones(5), own, own.double()).passed
    assert not Tolerance().check(torch.ones(4, dtype=torch.bfloat16), own, own.double()).passed


def test_a_large_tensor_is_the_same_however_many_cores_draw_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = TensorSpec(shape=(3, 700_001), dtype="float32")
    (drawn,) = build([spec], 5)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    (alone,) = build([spec], 5)
    assert torch.equal(drawn, alone)
    assert not torch.equal(drawn, build([spec], 6)[0])
    assert abs(drawn.mean().item()) < 0.005 and abs(drawn.std().item() - 1) < 0.005
    parts = drawn.flatten()[: 16 * 131_250].reshape(16, -1)
    assert torch.corrcoef(parts).fill_diagonal_(0).abs().max() < 0.02


def test_a_large_tensor_has_a_shape_where_tensors_are_fake() -> None:
    with FakeTensorMode():
        (drawn,) = build([TensorSpec(shape=(3, 700_001), dtype="bfloat16")], 5)
    assert drawn.shape == (3, 700_001) and drawn.dtype == torch.bfloat16
