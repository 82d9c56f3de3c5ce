"""Inputs that repeat an earlier call's, but for a few elements on which the answer depends.

A kernel that looks results up by a part of its inputs repeats an old answer on them, whether that
part is a sample, a row, a sum, the values of each row in any order, their signs or absolute values,
or all values rounded. New elements come from another draw, at their own places, or lie between the
two draws, so they keep the ranges and zeros of the problem's inputs. Inputs whose elements belong
together stay as they are: symmetric and normalised ones, masks and labels, integers of a problem's
file.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from torch import Tensor

from ratchet.judge.problems.inputs import structure_of
from ratchet.judge.problems.problem import Case
from ratchet.judge.problems.tolerance import same_bits
from ratchet.judge.sandbox.shared_memory import span

CLEARLY: Final = 8.0
"""An old answer must be off by this many times the bound, which a check may widen."""
LEAST_TRIES, MOST_TRIES, TRIED_S = 2, 8, 0.25
LOOKED_AT: Final = 8  # Places of which the one whose element changes most is taken
NUDGES: Final = range(3, 19)
"""An element moves by one part in two to the power of one of these: rounding may hide that."""

Change = Callable[[Tensor, Tensor, random.Random], None]
"""Changes a tensor in place, given another draw of it."""


def movable(
    case: Case, one: Sequence[Tensor], other: Sequence[Tensor], known: dict[int, bool]
) -> list[int]:
    """Return the inputs that may differ in a few elements, given two draws of a case.

    `known` keeps which of them have elements that do not belong together, by their places.
    """
    places = []
    for place, (spec, *drawn) in enumerate(zip(case.inputs, one, other, strict=True)):
        if same_bits(*drawn):
            continue
        if not drawn[0].is_floating_point():
            if spec.distribution == "integers":
                places.append(place)
            continue
        if place not in known:
            kept = structure_of(drawn)
            sums = (kept.normalised, kept.log_normalised)
            bound = kept.codes or kept.symmetric or any(one is not None for one in sums)
            known[place] = not bound
        places += [place] if known[place] else []
    return places


def alike(
    base: Sequence[Tensor],
    other: Sequence[Tensor],
    places: Sequence[int],
    rng: random.Random,
    shows: Callable[[Sequence[Tensor]], bool],
    first: Change | None = None,
) -> list[Tensor] | None:
    """Return a copy of `base` with a few elements changed, as the answer `shows`; None if none is.

    The `first` kind of change is tried before others. Tensors with equal values, such as tied
    weights, are changed together.
    """
    began = time.perf_counter()
    changes = [first or _element, *[_element] * 4, *[_row] * MOST_TRIES]
    for tried, change in enumerate(changes[:MOST_TRIES] if places else ()):
        if tried >= LEAST_TRIES and time.perf_counter() - began > TRIED_S:
            break
        place = rng.choice(places)
        moved = _copied(base[place])
        change(moved, other[place], rng)
        found = [moved if _equal(one, base[place]) else one for one in base]
        if not same_bits(moved, base[place]) and shows(found):
            return found
    return None


def in_turn(rng: random.Random) -> Iterator[Change]:
    """Yield kinds of changes for ever, each as often as the others, in random order."""
    while True:
        yield from rng.sample(KINDS, len(KINDS))


def _element(moved: Tensor, other: Tensor, rng: random.Random) -> None:
    """Take the element that changes most, of a few random ones, from the other draw."""
    seen = [_anywhere(moved, rng) for _ in range(LOOKED_AT)]
    where = max(seen, key=lambda one: _difference(moved[one], other[one]))
    moved[where] = other[where]


def _swap(moved: Tensor, other: Tensor, rng: random.Random) -> None:
    """Swap two elements, neither of which is the same in every draw."""
    seen = [_anywhere(moved, rng) for _ in range(LOOKED_AT)]
    free = [one for one in seen if _difference(moved[one], other[one])]
    if free:
        last = max(free, key=lambda one: _difference(moved[one], moved[free[0]]))
        moved[last], moved[free[0]] = moved[free[0]].clone(), moved[last].clone()


def _row(moved: Tensor, other: Tensor, rng: random.Random) -> None:
    """Take a row from the other draw."""
    where = _anywhere(moved, rng)[:-1]
    moved[where] = other[where]


def _swap_in_line(moved: Tensor, other: Tensor, rng: random.Random) -> None:
    """Swap two elements that differ in one index, neither of which is the same in every draw."""
    where = _anywhere(moved, rng)
    lines = [place for place, size in enumerate(moved.shape) if size > 1]
    if not lines or not _difference(moved[where], other[where]):
        return
    line = rng.choice(lines)
    seen = [
        (*where[:line], rng.randrange(moved.shape[line]), *where[line + 1 :])
        for _ in range(LOOKED_AT)
    ]
    free = [one for one in seen if _difference(moved[one], other[one])]
    if free:
        last = max(free, key=lambda one: _difference(moved[one], moved[where]))
        moved[last], moved[where] = moved[where].clone(), moved[last].clone()


def _nudge(moved: Tensor, other: Tensor, rng: random.Random) -> None:
    """Move an element a little towards the other draw; a whole number by a power of two."""
    seen = [_anywhere(moved, rng) for _ in range(LOOKED_AT)]
    where = max(seen, key=lambda one: _difference(moved[one], other[one]))
    old, new = float(moved[where]), float(other[where])
    if moved.is_floating_point():
        moved[where] = old + (new - old) / 2 ** max(rng.choices(NUDGES, k=2))
    elif old != new:
        step = 2 ** rng.randrange(int(abs(new - old)).bit_length())
        moved[where] = int(moved[where]) + (step if new > old else -step)


def _sign(moved: Tensor, other: Tensor, rng: random.Random) -> None:
    """Turn the sign of an element, if its tensor has such values."""
    seen = [_anywhere(moved, rng) for _ in range(LOOKED_AT)]
    where = max(seen, key=lambda one: abs(float(moved[one])))
    turned, held = -float(moved[where]), moved.float()  # torch cannot compare fp8
    if moved.is_floating_point() and float(held.min()) <= turned <= float(held.max()):
        moved[where] = turned


def _zero(moved: Tensor, other: Tensor, rng: random.Random) -> None:
    """Make an element zero, if its tensor has values on both sides: hardly any draw has one."""
    seen = [_anywhere(moved, rng) for _ in range(LOOKED_AT)]
    where = max(seen, key=lambda one: abs(float(moved[one])))
    held = moved.float()
    if moved.is_floating_point() and float(held.min()) <= 0 <= float(held.max()):
        moved[where] = 0


KINDS: Final[tuple[Change, ...]] = (
    _element,
    _swap,
    _swap_in_line,
    _row,
    _nudge,
    _nudge,
    _sign,
    _zero,
)


def _anywhere(tensor: Tensor, rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.randrange(size) for size in tensor.shape)


def _difference(one: Tensor, other: Tensor) -> float:
    return abs(float(one) - float(other))


def _equal(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.shape == other.shape and same_bits(one, other))


def _copied(tensor: Tensor) -> Tensor:
    """Return a copy with the same strides, gaps and repetitions included."""
    held = tensor.as_strided((span(tensor.shape, tensor.stride()),), (1,)).clone()
    return held.as_strided(tensor.shape, tensor.stride())
