"""Check that a problem's reference gives its answer again: without that nobody can be right."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor

from ratchet.base.errors import KernelError
from ratchet.problems.problem import Case, Problem
from ratchet.problems.tolerance import Loss, same_bits

Outputs = Sequence[Tensor]


def check_repeats(
    problem: Problem,
    case: Case,
    inputs: Outputs,
    calls: tuple[Outputs, Outputs],
    oracle: Callable[[], Outputs],
) -> None:
    """KernelError where the reference's two calls on the same inputs gave different answers.

    Bits may differ, as threads add up in any order: the second answer must pass the problem's own
    check against the first. Sums in half precision may differ by more than that allows; then two
    answers of `oracle`, which computes in float64, must agree, where the order is lost in rounding.
    """
    one, other = calls
    if len(one) == len(other) and all(map(same_bits, one, other)):
        return
    if not _passes(problem, case, inputs, other, one):
        wide, again = oracle(), oracle()
        if not _passes(problem, case, inputs, _like(again, other), _like(wide, one)):
            raise KernelError(
                f"its reference is nondeterministic: two calls on the same inputs of case "
                f"{case.name!r} differ; give it what it draws as an input"
            )


def _passes(problem: Problem, case: Case, inputs: Outputs, got: Outputs, own: Outputs) -> bool:
    """Return True if an answer would be right if the other were the exact one."""
    if len(got) != len(own):
        return False
    exact = [one.double() if one.is_floating_point() else one for one in own]
    if problem.check:
        checks = problem.check_outputs(case, inputs, got, own, exact)
    else:
        any_order = [Loss(terms=math.inf)] * len(own)
        checks = problem.tolerance.check_all(got, own, exact, any_order)
    return all(check.passed for check in checks)


def _like(wide: Outputs, own: Outputs) -> list[Tensor]:
    return [one.to(two.dtype) for one, two in zip(wide, own, strict=False)]
