"""A hidden case with a long sum, for problems in half precision that state short ones.

A sum of two blocks in half precision is as good as one in float32. Over many blocks it is not. So a
dimension over which the reference sums is made longer: one whose growth in two inputs leaves every
output's shape as it was.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from ratchet.judge.problems.case import Case, TensorSpec
from ratchet.judge.problems.inputs import build
from ratchet.judge.problems.problem import Problem, Reference

LONG_SUM: Final = "long sum"
HALF: Final = ("float16", "bfloat16")
LENGTH: Final = 4096
MOST_ELEMENTS: Final = 2 << 20
"""Elements of the inputs of such a case: it may be emulated."""


def with_long_sum(problem: Problem) -> Problem:
    """Return the problem with such a case, if it has a sum in half precision that is shorter.

    Call it where the problem's file may run.
    """
    visible = [case for case in problem.cases if not case.hidden]
    halves = [case for case in visible if any(one.dtype in HALF for one in case.inputs)]
    if problem.check or not halves or any(one.in_place for one in halves[0].inputs):
        return problem
    smallest = min(halves, key=lambda case: sum(math.prod(one.shape) for one in case.inputs))
    found = _longer(problem.load_reference(), smallest)
    return problem if found is None else replace(problem, cases=(*problem.cases, found))


def _longer(reference: Reference, case: Case) -> Case | None:
    """Return the case with a longer sum; None if no dimension of two inputs is one."""
    shapes = _shapes(reference, case, case.inputs)
    places = [
        (at, dimension)
        for at, spec in enumerate(case.inputs)
        if spec.dtype in HALF
        for dimension in range(len(spec.shape))
    ]
    for one, other in itertools.combinations(places, 2):
        length = case.inputs[one[0]].shape[one[1]]
        same = case.inputs[other[0]].shape[other[1]] == length
        if one[0] == other[0] or not same or not 1 < length < LENGTH:
            continue
        inputs = list(case.inputs)
        for at, dimension in (one, other):
            inputs[at] = _with_length(inputs[at], dimension, length * -(-LENGTH // length))
        if sum(math.prod(one.shape) for one in inputs) > MOST_ELEMENTS:
            continue
        if shapes is not None and _shapes(reference, case, inputs) == shapes:
            return replace(
                case, name=LONG_SUM, inputs=tuple(inputs), timed=False, hidden=True, grown=True
            )
    return None


def _with_length(spec: TensorSpec, dimension: int, length: int) -> TensorSpec:
    shape = list(spec.shape)
    shape[dimension] = length
    return replace(spec, shape=tuple(shape))


def _shapes(
    reference: Reference, case: Case, inputs: Sequence[TensorSpec]
) -> list[tuple[int, ...]] | None:
    """Return the shapes of the reference's outputs; None if it rejects these inputs."""
    try:
        with torch.no_grad():
            outputs = reference(*build(tuple(inputs), 1, "cpu"), case.scalars)
    except Exception:  # whatever a file raises
        return None
    return [tuple(one.shape) for one in outputs if isinstance(one, Tensor)]
