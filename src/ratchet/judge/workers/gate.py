"""Judge the problem first: trivial answers must fail, and the reference must repeat its own.

How rounding grows in the reference (how much each output sums, how far errors carry) is measured by
calling it, so it is known for any problem, also KernelBench's.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ratchet.base.errors import KernelError
from ratchet.judge.problems.problem import Case, Problem, Reference
from ratchet.judge.problems.tolerance import Loss, coded, loss_over, same_bits, widen

Outputs = list[Tensor]
SAMPLED = 1 << 16
"""Elements of a larger output that are compared first. A trivial answer mostly fails on
those; one that passes is compared as a whole."""
ZEROS, CONSTANT = "zeros", "a constant"
INPUT, OTHERS = "an input passed through", "the output for other inputs"

Draw = Callable[[Case, int], Outputs]


def gate(
    problem: Problem, reference: Reference, rng: random.Random, draw: Draw | None = None
) -> list[str]:
    """Return the trivial answers that pass every case of the problem; none for a good problem.

    A trivial answer must fail on one case, not on each (zeros are right for zero inputs). `draw`
    draws the inputs of a case from a seed, by default `problem.build_inputs`.
    """
    given = draw or problem.build_inputs
    alive: set[str] = {ZEROS, CONSTANT, INPUT, OTHERS}
    for case in sorted(problem.cases, key=elements):  # the cheap cases mostly settle it
        if not alive:
            break
        alive = set(_passing(alive, problem, reference, case, rng, given))
    return sorted(alive)


def elements(case: Case) -> int:
    return sum(math.prod(spec.shape) for spec in case.inputs)


def _passing(
    asked: set[str],
    problem: Problem,
    reference: Reference,
    case: Case,
    rng: random.Random,
    draw: Draw,
) -> Iterator[str]:
    """Yield the trivial answers that pass a case; compute nothing for the others."""
    inputs = draw(case, rng.getrandbits(48))
    own = _run(reference, inputs, case)
    oracle = _run(reference, [widen(tensor) for tensor in inputs], case)
    places = [_places(output, rng) for output in own]
    few_right = [_taken(each, places) for each in (own, oracle)]

    def passes(answers: Sequence[Tensor]) -> bool:
        if problem.check:
            checks = problem.check_outputs(case, inputs, answers, own, oracle)
            return all(check.passed for check in checks)
        few = _taken(answers, places)
        return _all_pass(problem, few, *few_right) and _all_pass(problem, answers, own, oracle)

    if ZEROS in asked and passes([torch.zeros_like(output) for output in own]):
        yield ZEROS
    if INPUT in asked and passes([_from_inputs(output, inputs) for output in own]):
        yield INPUT
    if asked.isdisjoint((CONSTANT, OTHERS)):
        return
    others = _run(reference, draw(case, rng.getrandbits(48)), case)
    # Constants come from other inputs: from these, a single number would be the answer itself.
    learned = _constants(others, _taken(others, places))
    if CONSTANT in asked and any(passes(answers) for answers in learned):
        yield CONSTANT
    if OTHERS in asked and passes(others):
        yield OTHERS


def _all_pass(
    problem: Problem, answers: Sequence[Tensor], own: Sequence[Tensor], oracle: Sequence[Tensor]
) -> bool:
    """Compare at the widest possible bound, which no trivial answer may meet."""
    for got, mine, exact in zip(answers, own, oracle, strict=True):
        widest = replace(loss_over([(mine, exact)]), terms=math.inf, condition=math.inf)
        if not problem.tolerance.check(got, mine, exact, widest).passed:
            return False
    return True


def _places(output: Tensor, rng: random.Random) -> Tensor | None:
    """Draw some elements of a large output; None for all of a small one."""
    if output.numel() <= SAMPLED:
        return None
    generator = torch.Generator().manual_seed(rng.getrandbits(48))
    return torch.randint(output.numel(), (SAMPLED,), generator=generator).to(output.device)


def _taken(outputs: Sequence[Tensor], places: Sequence[Tensor | None]) -> Outputs:
    """Return the elements at these places; an output of another form unchanged."""
    return [
        output if at is None or int(at.max()) >= output.numel() else output.reshape(-1)[at]
        for output, at in zip(outputs, places, strict=True)
    ]


def _run(reference: Reference, inputs: Sequence[Tensor], case: Case) -> Outputs:
    return list(reference(*owned(case, inputs), case.scalars))


def owned(case: Case, inputs: Sequence[Tensor]) -> Outputs:
    """Return the inputs of a call, with copies of those that it changes."""
    pairs = zip(case.inputs, inputs, strict=True)
    return [tensor.clone() if spec.in_place else tensor for spec, tensor in pairs]


def _constants(outputs: Sequence[Tensor], few: Sequence[Tensor]) -> Iterator[Outputs]:
    """Yield outputs filled with one number each, computed from a few of their elements."""
    statistics: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda output: torch.ones((), dtype=torch.float64),
        lambda output: output.double().mean(),
        lambda output: output.double().median(),
    )
    for statistic in statistics:
        yield [_filled(one, some, statistic) for one, some in zip(outputs, few, strict=True)]


def _filled(output: Tensor, few: Tensor, statistic: Callable[[Tensor], Tensor]) -> Tensor:
    if not output.numel():
        return output
    value = statistic(few)
    if not output.dtype.is_floating_point:
        value = value.round()
    return torch.full_like(output, value.item())


def _from_inputs(output: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    """Return the first input of the output's size in its form, or zeros."""
    for tensor in inputs:
        if tensor.numel() == output.numel():
            return tensor.reshape(output.shape).to(output.dtype)
    return torch.zeros_like(output)


def check_repeats(
    problem: Problem,
    case: Case,
    inputs: Sequence[Tensor],
    calls: tuple[Sequence[Tensor], Sequence[Tensor]],
    oracle: Callable[[], Sequence[Tensor]],
) -> None:
    """Raise KernelError if two calls of the reference on the same inputs gave different answers.

    Bits may differ, because threads add in any order: the second answer must pass the problem's own
    check against the first. Sums in half precision may differ by more. Then two answers of
    `oracle`, which computes in float64, must agree, because rounding hides the order there.
    """
    one, other = calls
    if len(one) == len(other) and all(map(same_bits, one, other)):
        return
    if not _agree(problem, case, inputs, other, one):
        wide, again = oracle(), oracle()
        if not _agree(problem, case, inputs, _like(again, other), _like(wide, one)):
            raise KernelError(
                f"its reference is nondeterministic: two calls on the same inputs of case "
                f"{case.name!r} differ; give it what it draws as an input"
            )


def _agree(
    problem: Problem,
    case: Case,
    inputs: Sequence[Tensor],
    got: Sequence[Tensor],
    own: Sequence[Tensor],
) -> bool:
    """Return True if one answer is right, taking the other as exact."""
    if len(got) != len(own):
        return False
    exact = [one.double() if one.is_floating_point() else one for one in own]
    if problem.check:
        checks = problem.check_outputs(case, inputs, got, own, exact)
    else:
        any_order = [Loss(terms=math.inf)] * len(own)
        checks = problem.tolerance.check_all(got, own, exact, any_order)
    return all(check.passed for check in checks)


def _like(wide: Sequence[Tensor], own: Sequence[Tensor]) -> list[Tensor]:
    return [one.to(two.dtype) for one, two in zip(wide, own, strict=False)]


def off(got: Sequence[Tensor], oracle: Sequence[Tensor]) -> float:
    """Return the largest error in norm of the outputs, relative to that of the right ones.

    0 if an output is not finite where it should be: that is no other computation.
    """
    found = [0.0]
    for one, right in zip(got, oracle, strict=True):
        if right.is_floating_point() and bool(torch.isfinite(one).all()):
            found.append(float((one.double() - right.double()).norm() / right.double().norm()))
    return max(found)


Call = Callable[[Sequence[Tensor]], list[Tensor]]
MOST_INPUTS, MOST_TRIES, ENOUGH_HITS = 8, 8, 3
"""The largest inputs are tried, several elements each: one of a table may not be looked up."""
NUDGE = 2.0**-20  # Far above the rounding of float64, far below where a function bends
NUDGES = 8
"""With three nudges the few rows of a small case, or the two elements of a row that carry errors
far, would all move the same way one time in eight."""


def terms(call: Call, inputs: Sequence[Tensor], rng: random.Random) -> list[float]:
    """Return how many elements of an input each element of an output depends on, on average.

    It makes one element NaN and counts the outputs that become NaN. softmax gives its row's length,
    a matrix product its inner length, and elementwise work 1, as does a reference that hides or
    refuses NaN. Returns the largest over the inputs.
    """
    before = [output.isnan() for output in call(inputs)]
    found = [1.0] * len(before)
    floats = [at for at, one in enumerate(inputs) if one.is_floating_point() and one.numel()]
    for at in sorted(floats, key=lambda at: -inputs[at].numel())[:MOST_INPUTS]:
        hits = 0
        for trial in range(MOST_TRIES):
            # The first element of a scan is in all of its sums.
            element = rng.randrange(inputs[at].numel()) if trial else 0
            reached = _reached(call, inputs, at, element, before)
            if reached is None:
                return [1.0] * len(before)
            found = [
                max(most, inputs[at].numel() * count / max(1, old.numel()))
                for most, count, old in zip(found, reached, before, strict=True)
            ]
            hits += any(reached)
            if hits == ENOUGH_HITS:
                break
    return found


def _reached(
    call: Call, inputs: Sequence[Tensor], at: int, element: int, before: Sequence[Tensor]
) -> list[int] | None:
    """Count the elements of each output that one input element makes NaN; None if it raises."""
    poisoned = inputs[at].clone()
    poisoned[_place(element, poisoned.shape)] = math.nan
    try:
        after = call([*inputs[:at], poisoned, *inputs[at + 1 :]])
    except Exception:  # the reference refuses NaN
        return None
    if any(new.shape != old.shape for new, old in zip(after, before, strict=True)):
        return None
    return [int((new.isnan() & ~old).sum()) for new, old in zip(after, before, strict=True)]


def _place(element: int, shape: Sequence[int]) -> tuple[int, ...]:
    place = []
    for extent in reversed(shape):
        element, index = divmod(element, extent)
        place.append(index)
    return tuple(reversed(place))


def conditions(
    call: Call, inputs: Sequence[Tensor], rng: random.Random
) -> list[tuple[float, float]]:
    """Return by how much each output's change exceeds a small change of all inputs.

    `inputs` are float64, and move up or down by the same share at random. Moving each element by
    itself shows cancellation (in the root mean square). Moving whole rows shows where sums of one
    sign go, into an exp for example (in the largest element). Changes are relative to the scale: 1
    for a sum, 2 for a matrix product, 8 for the subtraction of a mean of 8 spreads. The first
    number is the larger of the two; the second is the largest of all elements in both.
    """
    generator = torch.Generator().manual_seed(rng.getrandbits(48))
    before = call(inputs)
    found = [(1.0, 1.0)] * len(before)
    for _ in range(NUDGES):
        by_element, by_row = (
            call([_nudged(one, generator, rows=rows) for one in inputs]) for rows in (False, True)
        )
        four = zip(found, before, by_element, by_row, strict=True)
        found = [
            (max(one, old_one), max(single, old_single))
            for (old_one, old_single), *three in four
            for one, single in [_condition(*three)]
        ]
    return found


def _nudged(tensor: Tensor, generator: torch.Generator, *, rows: bool) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    shape = (*tensor.shape[:-1], 1) if rows and tensor.dim() else tensor.shape
    up = torch.randint(0, 2, shape, generator=generator).to(tensor.device)
    return tensor * (1 + NUDGE * (2 * up - 1))


def _condition(before: Tensor, by_element: Tensor, by_row: Tensor) -> tuple[float, float]:
    if coded(before.dtype):
        return 1.0, 1.0
    finite = torch.isfinite(before) & torch.isfinite(by_element) & torch.isfinite(by_row)
    old = before[finite].double()
    scale = float(old.square().mean().sqrt()) if old.numel() else 0.0
    if not scale:
        return 1.0, 1.0
    sizes = old.abs().clamp(min=scale)
    spread = float((by_element[finite] - old).square().mean().sqrt()) / scale
    moved, alone = (
        float(((new[finite] - old) / sizes).abs().max()) for new in (by_row, by_element)
    )
    condition = max(1.0, spread / NUDGE, moved / NUDGE)
    return condition, max(condition, alone / NUDGE)
