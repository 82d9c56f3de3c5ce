"""What the judge asks of a problem before anybody answers it: repeats, depends, fits."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import judge_problems as given
import pytest
import torch
from torch import Tensor

from ratchet.base.errors import KernelError
from ratchet.judge.problems import free_memory
from ratchet.judge.problems.free_memory import check_fits
from ratchet.judge.problems.problem import Case, Problem, TensorSpec
from ratchet.judge.problems.references import inert_input
from ratchet.judge.problems.suites import find_problem
from ratchet.judge.trial.kernel_trial import KernelJudge
from ratchet.judge.workers.gate import check_repeats


def noisy(x: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return (x * 2 + torch.rand_like(x) * 0.1,)


def left_out(x: Tensor, y: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return (x * 2,)


def complex_output(x: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    return (torch.fft.fft(x),)


def drawn_in_the_default_dtype(x: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
    torch.set_default_dtype(x.dtype)
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(3))
    torch.set_default_dtype(torch.float32)
    return (x + noise,)


def problem(reference: str, *cases: Case) -> Problem:
    name = f"test_problem_soundness:{reference}"
    return dataclasses.replace(given.problem("silu", *cases), reference=name)


PAIR = Case(
    name="pair",
    inputs=(TensorSpec(shape=(6, 8), dtype="float32"), TensorSpec(shape=(8,), dtype="float32")),
    scalars=(1.5,),
    timed=True,
)
HUGE = given.case("huge", 1 << 20, 1 << 16, timed=True)


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (problem("noisy"), "nondeterministic"),
        (problem("complex_output"), "its output 0 is torch.complex64, which no kernel can return"),
        (problem("drawn_in_the_default_dtype"), "it answers otherwise in float64 (by "),
        (problem("left_out", PAIR), "does not depend on input 1"),
        (given.problem("silu", HUGE), "too large for this machine: case 'huge' needs about 2048.0"),
    ],
    ids=["nondeterministic", "complex", "other in float64", "inert input", "too large"],
)
def test_a_problem_given_in_python_is_refused(
    judge: KernelJudge, asked: Problem, words: str
) -> None:
    verdict = judge.judge(given.cpp(given.HONEST), asked)
    assert verdict.status == "refused", verdict.reason
    assert words in verdict.reason and "\n" not in verdict.reason


def repeats(problem: Problem, one: Tensor, other: Tensor, *wide: Tensor) -> None:
    oracle = iter(wide)
    case = problem.cases[0]
    check_repeats(problem, case, [one], ([one], [other]), lambda: [next(oracle)])


def test_another_order_of_a_sum_is_no_other_answer() -> None:
    usual, x = given.problem(), torch.randn(8, 16)
    repeats(usual, x, x.clone())
    repeats(usual, x, x * (1 + 1e-7))
    specials = torch.tensor([float("nan"), float("inf"), 0.0])
    repeats(usual, specials, specials.clone())
    half = x.bfloat16()
    repeats(usual, half, half * 1.05, x.double(), x.double() * (1 + 1e-15))


@pytest.mark.parametrize("change", ["value", "shape", "NaN"])
def test_another_answer_is_told(change: str) -> None:
    x = torch.randn(8, 16)
    other = {"value": x + 0.01, "shape": x[:4], "NaN": x / 0 * 0}[change]
    with pytest.raises(KernelError, match="nondeterministic"):
        repeats(given.problem(), x, other, x.double(), other.double())


def test_an_exact_problem_repeats_bit_for_bit() -> None:
    exact = find_problem("arg_max").at("ci")
    places = torch.arange(8)
    logits = torch.eye(8)
    check_repeats(exact, exact.cases[0], [logits], ([places], [places]), lambda: [places])


def drawn(case: Case, seed: int) -> list[Tensor]:
    return given.problem("silu", case).build_inputs(case, seed)


def test_an_input_that_counts_on_one_case_is_not_inert() -> None:
    def product(x: Tensor, y: Tensor, scalars: Sequence[float]) -> tuple[Tensor]:
        return (x * y,)

    normal, zeros = (
        TensorSpec(shape=(4,), dtype="float32", distribution=name) for name in ("normal", "zeros")
    )
    silent = Case(name="silent", inputs=(zeros, normal))
    aloud = Case(name="aloud", inputs=(normal, normal))
    assert inert_input(product, [silent, aloud], drawn) is None
    assert inert_input(product, [silent], drawn) == 1
    assert inert_input(left_out, [aloud], drawn) == 1
    written = dataclasses.replace(normal, in_place=True)
    assert inert_input(left_out, [Case(name="written", inputs=(normal, written))], drawn) is None


def test_a_suite_problem_for_a_gpu_does_not_fit_a_small_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(free_memory, "free_bytes", lambda: 8 << 30)
    large = find_problem("cross_entropy")
    check_fits(large.at("cpu"))
    with pytest.raises(KernelError, match=r"about 31\.3 GiB and 4\.0 GiB may .*tier ci"):
        check_fits(large.at("gpu"))
