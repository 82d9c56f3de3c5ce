"""The table of ops: each is found in a graph, and right in both languages."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
import torch
import torch._inductor.inductor_prims  # defines prims.fma
from answers import assert_right
from torch import Tensor

from ratchet.amd.targets import interpreted
from ratchet.judge.problems.case import Case, TensorSpec
from ratchet.judge.problems.problem import Problem
from ratchet.judge.trial.kernel_trial import KernelJudge
from ratchet.write.form import Fold, Map, Scan
from ratchet.write.form.forms import forms_of
from ratchet.write.form.op_table import FOLD_OPS, FOLDS, MAP_OPS, MAPS, MapOp, filled
from ratchet.write.generator import space_for
from ratchet.write.generator.source import prelude as cpp_prelude
from ratchet.write.generator.triton.source import prelude as triton_prelude

Function = Callable[..., Tensor]
BY_CODE: Final[dict[str, tuple[Function, ...]]] = {
    "cast": (lambda x: x.to(torch.float16),),
    "where": (lambda x, y, z: torch.where(x > 0, y, z),),
    "add": (torch.add,),
    "sub": (torch.sub,),
    "div": (torch.div,),
    "floor_div": (lambda x, y: torch.div(x, y, rounding_mode="floor"),),
    "trunc_div": (lambda x, y: torch.div(x, y, rounding_mode="trunc"),),
    "pow": (torch.pow,),
    "square": (torch.square,),
}
"""What makes the ops that no ATen name stands for alone; the generator itself makes copies."""


def functions_of(op: MapOp) -> tuple[Function, ...]:
    """Return torch's functions of reals or whole numbers that an op stands for."""
    return BY_CODE.get(op.name) or tuple(map(function_of, op.aten_names))


def function_of(name: str) -> Function:
    """Return torch's function of a name in the table."""
    packet: Any = getattr(
        torch.ops.aten if hasattr(torch.ops.aten, name) else torch.ops.prims, name
    )
    return packet  # type: ignore[no-any-return]


def takes(function: Function, *args: Tensor) -> bool:
    """Return whether torch computes the function in the arguments' own dtype."""
    try:
        found = function(*args)
    except RuntimeError:
        return False
    return found.dtype in (args[0].dtype, torch.bool, torch.float16)


REAL: Final = (torch.ones(2), torch.ones(2), torch.ones(2))
WHOLE: Final = tuple(one.long() for one in REAL)
OF_REALS: Final = [
    (op, one)
    for op in MAP_OPS
    if op.name != "copy"
    for one in functions_of(op)
    if takes(one, *REAL[: op.arity])
]
OF_WHOLE: Final = [
    (op, one)
    for op in MAP_OPS
    if op.name != "copy" and op.of_whole != "unsupported"
    for one in functions_of(op)
    if takes(one, *WHOLE[: op.arity])
]


def within(x: Tensor, domain: tuple[float, float]) -> Tensor:
    """Return values of a domain that follow x."""
    low, high = domain
    if math.isinf(high):
        return x if math.isinf(low) else x.abs() + (low + 0.1)
    return (low + high) / 2 + 0.4 * (high - low) * torch.sin(x)


def every_op(x: Tensor, y: Tensor, i: Tensor, j: Tensor, scalars: object) -> tuple[Tensor, ...]:
    """Return each op of x, y (reals) and i, j (whole numbers); y and j are above 0."""
    inside = {op.domain: within(x, op.domain) for op in MAP_OPS}
    truths = x > 0, y > 1
    return (
        *(one(*(inside[op.domain], y, x)[: op.arity]) for op, one in OF_REALS),
        *(one(*(i, j, i)[: op.arity]) for op, one in OF_WHOLE),
        *(function_of(one)(*truths[: op.arity]) for op in MAP_OPS for one in op.logical),
    )


def every_fold(x: Tensor, y: Tensor, i: Tensor, j: Tensor, scalars: object) -> tuple[Tensor, ...]:
    """Return each reduction over rows and over columns, and each scan."""
    found = [x + y, i + j]
    for op in FOLD_OPS:
        for name in op.aten:
            given = x > 1.5 if op.of_truths else y if op.name == "prod" else x
            fold = function_of(name)
            over = (lambda one: [one]) if name != "prod" else (lambda one: one)
            found += [fold(given, over(1)), fold(given, over(0))]
            if op.name in ("sum", "max", "min"):
                found += [fold(i, over(1)), fold(i.int(), over(0))]
        found += [function_of(name)(y, 1) for name in op.scans]
    return tuple(found)


def problem_of(function: Callable[..., tuple[Tensor, ...]], dtype: str = "float32") -> Problem:
    """Return the problem of a function above; a hidden case has another size."""

    def case(name: str, *shape: int) -> Case:
        reals = TensorSpec(shape=shape, dtype=dtype)
        above = replace(reals, distribution="uniform", low=0.5, high=2.0)
        whole = replace(reals, dtype="int64", distribution="integers", low=-9.0, high=9.0)
        count = replace(whole, low=1.0, high=7.0)
        seen = name == "seen"
        inputs = (reals, above, whole, count)
        return Case(name=name, inputs=inputs, timed=seen, hidden=not seen)

    return Problem(
        name=function.__name__,
        reference=f"{__name__}:{function.__name__}",
        cases=(case("seen", 6, 20), case("other", 5, 33)),
        task="any",
    ).untimed()


def test_every_op_is_found_in_a_graph() -> None:
    (maps,), (folds,) = (forms_of(problem_of(one)) for one in (every_op, every_fold))
    found = {node.op for node in maps.nodes() if isinstance(node, Map)}
    assert found == MAPS.keys() - {"copy"}
    found = {node.op for node in folds.nodes() if isinstance(node, Fold | Scan)}
    assert found == FOLDS.keys()


def test_every_op_has_a_text_in_both_languages() -> None:
    """The functions that a text calls are in the language's prelude, else UnsupportedOp says so."""
    texts = [one.cpp_text for one in MAP_OPS]
    tiles = [one.triton_text(whole=whole) for one in MAP_OPS for whole in (False, True)]
    tiles += [text for one in FOLD_OPS for text in (one.along, one.along_whole, one.scan)]
    for given, prelude in ((texts, cpp_prelude), (tiles, triton_prelude)):
        used: set[str] = set()
        for text in given:
            filled(text, ("x", "1", "z"), used, kind="float", type="tl.float32")
        source = prelude(frozenset(used))
        assert all(f"r_{name}" in source for name in used)


@pytest.mark.compiler
@pytest.mark.parametrize("function", [every_op, every_fold])
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.thorough)])
def test_every_op_is_right_in_cpp(
    judge: KernelJudge, function: Callable[..., tuple[Tensor, ...]], dtype: str
) -> None:
    problem = problem_of(function, dtype)
    space = space_for(problem)
    assert_right(judge.judge(space.kernel(space.first()[0]), problem))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (every_op, "float32"),
        pytest.param(every_op, "float64", marks=pytest.mark.thorough),
        pytest.param(every_fold, "float32", marks=pytest.mark.thorough),
        pytest.param(every_fold, "float64", marks=pytest.mark.thorough),
    ],
)
def test_every_op_is_right_in_triton(
    judge: KernelJudge, function: Callable[..., tuple[Tensor, ...]], dtype: str
) -> None:
    pytest.importorskip("triton")
    problem = problem_of(function, dtype)
    space = space_for(problem, device="cuda")
    kernel = interpreted(space.kernel(space.first()[0]))
    assert_right(judge.judge(kernel, problem))
