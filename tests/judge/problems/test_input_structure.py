"""What the draws of an input have in common, and variations that keep it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ratchet.base.errors import KernelError
from ratchet.judge.problems.case import Structure
from ratchet.judge.problems.inputs import PLAIN, structure_of
from ratchet.judge.problems.model_file import vary
from ratchet.judge.problems.model_problem import VARIATIONS, model_problem
from ratchet.judge.problems.problem import TensorSpec

N = 48
Draw = Callable[[], Tensor]


def square() -> Tensor:
    return torch.rand(N, N)


def covariance() -> Tensor:
    drawn = torch.randn(N, 2 * N)
    return drawn @ drawn.T / N


STRUCTURED: dict[str, tuple[Draw, Structure]] = {
    "an upper triangle": (lambda: square().triu(), Structure(zeros=True)),
    "lower triangles, a batch of them": (
        lambda: torch.randn(3, N, N).tril(),
        Structure(zeros=True),
    ),
    "a diagonal": (lambda: torch.diag(torch.randn(N)), Structure(zeros=True, symmetric=True)),
    "a sum with its transpose": (
        lambda: (lambda a: (a + a.T) / 2)(torch.randn(N, N)),
        Structure(symmetric=True),
    ),
    "a covariance": (covariance, Structure(symmetric=True, definite=True)),
    "a mask": (lambda: (square() > 0.5).float(), Structure(codes=True)),
    "labels of one sign or the other": (
        lambda: torch.randint(0, 2, (N,)).float() * 2 - 1,
        Structure(codes=True),
    ),
    "one hundred labels": (lambda: torch.randint(0, 100, (N,)).float(), Structure(codes=True)),
    "weights of a mask": (lambda: torch.where(square() > 0.1, 1 / 0.9, 0.0), Structure(codes=True)),
    "probabilities": (lambda: square().softmax(-1), Structure(normalised=-1)),
    "probabilities over channels": (
        lambda: torch.randn(4, 10, 6).softmax(1),
        Structure(normalised=-2),
    ),
    "their logarithms": (
        lambda: torch.randn(N, 9).log_softmax(-1),
        Structure(log_normalised=-1),
    ),
    "negative values": (lambda: -square(), Structure(sign=-1)),
    "scales": (lambda: torch.rand(N) * 0.5 + 0.5, Structure(sign=1)),
}
DENSE: dict[str, Draw] = {
    "rand": square,
    "randn": lambda: torch.randn(N, N),
    "rand in bfloat16": lambda: square().bfloat16(),
    "rand in float16": lambda: torch.rand(N, N, dtype=torch.float16),
    "rand in fp8": lambda: square().to(torch.float8_e4m3fn),
    "a few of rand": lambda: torch.rand(4),
    "one value": lambda: torch.rand(()),
    "zeros": lambda: torch.zeros(N, N),
    "ones": lambda: torch.ones(N),
    "large": lambda: torch.randn(N, N) * 1e9,
    "absolute values": lambda: torch.randn(N, N).abs(),
    "a sum of two": lambda: square() + square(),
    "infinite in places": lambda: torch.where(square() > 0.5, torch.inf, 1.0),
}


def drawn(draw: Draw, seeds: tuple[int, ...] = (1, 2, 3)) -> list[Tensor]:
    found = []
    for seed in seeds:
        torch.manual_seed(seed)
        found.append(draw())
    return found


def varied(tensor: Tensor, structure: Structure, variation: str) -> Tensor:
    dtype = str(tensor.dtype).removeprefix("torch.")
    distribution = f"from_file_{variation}"
    spec = TensorSpec(shape=tuple(tensor.shape), dtype=dtype, distribution=distribution)
    return vary(tensor, spec, structure, torch.Generator().manual_seed(5))


@pytest.mark.parametrize("what", STRUCTURED)
def test_the_structure_of_draws_is_seen_and_kept(what: str) -> None:
    draw, wanted = STRUCTURED[what]
    draws = drawn(draw)
    found = structure_of(draws)
    assert found == wanted
    if found.codes or found.definite:
        return  # not varied so
    for variation in VARIATIONS[:-1]:  # the last has zeros of its own
        others = [varied(one, found, variation) for one in draws]
        kept = structure_of(others)
        for name in ("zeros", "symmetric", "normalised", "log_normalised"):
            assert getattr(kept, name) == getattr(found, name), (variation, name)
        if found.sign:
            assert all(bool((one.sign() == found.sign).all()) for one in others)


@pytest.mark.parametrize("what", DENSE)
def test_plain_values_have_no_structure(what: str) -> None:
    if what == "rand in bfloat16":  # one in 500 is zero: those stay, by chance, where all are
        assert structure_of(drawn(DENSE[what])) in (PLAIN, Structure(zeros=True))
    else:
        assert structure_of(drawn(DENSE[what])) == PLAIN


def test_a_dense_input_is_varied_everywhere_and_in_sign() -> None:
    (first, *_), found = drawn(square), structure_of(drawn(square))
    assert (varied(first, found, "signed") < 0).float().mean() > 0.3
    assert torch.equal(varied(first, found, "shifted"), first + 2)


def test_draws_of_other_shapes_have_nothing_in_common() -> None:
    assert structure_of([torch.rand(3, 3).triu(), torch.rand(4, 4).triu()]) == PLAIN


PRODUCT = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, a, b):
        return {answer}

def get_inputs():
    a, b = torch.rand(32, 32), torch.rand(32, 32)
    return [{inputs}]

def get_init_inputs():
    return []
"""


def test_the_problem_says_what_its_variations_keep() -> None:
    text = PRODUCT.format(answer="a @ b", inputs="a.triu(), (b + b.T) / 2")
    problem = model_problem(text, "triangle", scale=None, threads=1)
    assert problem.notes == ("its hidden variations keep input 0's zeros; input 1's symmetry",)
    assert {case.name for case in problem.cases} == {"given", *VARIATIONS}  # no fewer rows
    again = type(problem).from_json(problem.as_json())
    assert again == problem
    for case in problem.cases:
        a, b = problem.build_inputs(case, 3)
        assert not a.tril(-1).any() and torch.equal(b, b.T)


def test_codes_and_definite_matrices_are_varied_as_far_as_they_can_be() -> None:
    masked = PRODUCT.format(answer="a * b", inputs="(a > 0.5).float(), (b > 0.5).float()")
    names = [case.name for case in model_problem(masked, "mask", scale=None, threads=1).cases]
    assert names == ["given", "fewer rows"]
    solved = PRODUCT.format(answer="torch.linalg.solve(a, b)", inputs="a @ a.T + torch.eye(32), b")
    problem = model_problem(solved, "solve", scale=None, threads=1)
    assert {case.name for case in problem.cases} >= {"given", "signed", "large"}
    for case in problem.cases:
        a, _ = problem.build_inputs(case, 3)
        assert int(torch.linalg.cholesky_ex(a).info) == 0, case.name


def test_a_tiny_input_is_drawn_until_its_sign_is_known() -> None:
    """Three draws of two temperatures from 0.5 to 1.5 could be positive by chance; 65 are not."""
    tiny = PRODUCT.format(answer="(a / b).softmax(-1)", inputs="a, torch.rand(2, 16) + 0.5")
    tiny = tiny.replace("torch.rand(32, 32)", "torch.randn(2, 16)").replace(
        "(2, 16) + 0.5", "(2, 1) + 0.5"
    )
    problem = model_problem(tiny, "temperature", scale=None, threads=1)
    assert "input 1's sign" in " ".join(problem.notes)
    for case in problem.cases:
        assert bool((problem.build_inputs(case, 3)[1] > 0).all()), case.name


def test_some_rows_and_columns_are_small_enough_for_an_epsilon() -> None:
    (first, *_), found = drawn(square), structure_of(drawn(square))
    factor = varied(first, found, "uneven") / first
    rows, columns = (factor.mean(dimension) for dimension in (1, 0))
    assert factor.max() == 1 and factor.min() == 2.0**-20
    for one in (rows, columns):
        assert 0.05 < float((one < 2.0**-9).float().mean()) < 0.6


@pytest.mark.parametrize(
    ("answer", "zeroed"),
    [
        ("nn.functional.normalize(a) + b", True),
        ("torch.sign(a) + b", True),
        ("a / a.norm(dim=1, keepdim=True) + b", False),  # no number
        ("a.argmax(1, keepdim=True) + b", True),  # the first of equal ones
        ("a.median(1, keepdim=True).indices + b", False),
        ("nn.functional.max_pool1d(a, 2) + b[:, :16]", True),  # whichever it takes
    ],
)
def test_zeros_come_where_they_leave_one_answer(answer: str, zeroed: bool) -> None:
    text = PRODUCT.format(answer=answer, inputs="torch.randn(32, 32), b")
    problem = model_problem(text, "zeros", scale=None, threads=1)
    found = [case for case in problem.cases if case.name == "zero_rows"]
    assert bool(found) == zeroed
    for case in found:
        a, b = (problem.build_inputs(case, seed) for seed in (1, 2))
        assert torch.equal(a[0] == 0, b[1] == 0) and bool((a[0][1] == 0).all())
        assert bool((a[0][0, ::2] != 0).all())


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("torch.unique((a * 9).int(), return_counts=True)", True),
        ("a[a > 0.5]", True),
        ("a[a > 0.5].sum() + b", False),
        ("a[:int(lengths.max())] * b[:4]", False),
    ],
)
def test_a_problem_whose_shapes_depend_on_values_is_refused(answer: str, told: bool) -> None:
    text = PRODUCT.replace("def forward(self, a, b)", "def forward(self, a, b, lengths)")
    text = text.format(answer=answer, inputs="a, b, torch.tensor([1, 4, 2])")
    with pytest.raises(KernelError) as error:
        model_problem(text, "shapes", scale=None, threads=1)
        raise KernelError("judged")
    assert ("shapes of its outputs depend" in str(error.value)) == told, error.value
