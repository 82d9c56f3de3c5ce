"""Measure how rounding grows in a reference: how much each output sums, how far errors carry.

Both are measured by calling the reference, so they are known for any problem, also KernelBench's.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ratchet.judge.problems.tolerance import coded

Call = Callable[[Sequence[Tensor]], list[Tensor]]
MOST_INPUTS, MOST_TRIES, ENOUGH_HITS = 8, 8, 3
"""The largest inputs are tried, several elements each: one of a table may not be looked up."""
NUDGE = 2.0**-20
"""Far above the rounding of float64, far below where a function bends."""
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
