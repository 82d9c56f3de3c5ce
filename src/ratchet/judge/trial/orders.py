"""The orders in which programs call a kernel, dealt to the calls of a batch.

A training loop refills one input buffer, or two in turn, hands over views of a larger one, swaps a
parameter's memory, and calls with gradients and without. A kernel that remembers an old result by
its inputs' address, identity or version is right as long as each call has memory of its own. So
calls come in runs of one way (`Handing`), and a later call of a run is compared: mostly one whose
values differ from those before it in few elements.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ratchet.judge.sandbox.shared_memory import Handing
from ratchet.judge.trial.candidate import CandidateProcess
from ratchet.judge.trial.open_problem import OpenProblem

LONGEST_RUN, SHORTEST_RUN = 4, 2
COMPILED: Final = (Handing.OWN, Handing.UNTOLD, Handing.IN_TURN)
"""The ways that differ for a kernel which knows addresses only."""
IN_PYTHON: Final = (
    *COMPILED,
    Handing.REFILLED,
    Handing.PART,
    Handing.SWAPPED,
    Handing.GRADIENT,
)
BY_TURNS: Final = (Handing.GRADIENT, Handing.OTHER_MODE)  # Every second call of their runs is plain


@dataclass(frozen=True, kw_only=True, slots=True)
class Dealt:
    """The ways in which the calls of a batch get their inputs, and the pairs that are compared."""

    handing: Sequence[Handing]
    pairs: Sequence[tuple[int, int]]
    """A call of each compared run, with an earlier one. A call with itself means that of the case's
    last batch, which lay at the same addresses."""
    kinds: Sequence[Handing]  # The compared runs' ways, in no order


class Orders:
    """Deals ways of handing over, each as often as the others."""

    def __init__(self, candidate: CandidateProcess, opened: OpenProblem) -> None:
        self._rng = opened.rng
        self.kinds = ways_of(candidate, opened)
        self._is_same = opened.is_same_in_modes
        self._deck = _in_turn(self._rng, self.kinds)

    def next(self, count: int) -> list[Handing]:
        """Return so many ways, those first that were not returned for longest."""
        return [next(self._deck) for _ in range(count)]

    def deal(self, calls: int, wanted: Sequence[Handing]) -> Dealt:
        """Deal runs to at least two calls; a call of each way that is wanted is compared, if its
        run fits."""
        rng = self._rng
        length = max(SHORTEST_RUN, min(LONGEST_RUN, calls // len(self.kinds)))
        number = max(1, calls // length)
        wanted = list(wanted[:number])
        others = _in_turn(rng, [one for one in self.kinds if one not in wanted] or self.kinds)
        runs = [(one, True) for one in wanted]
        runs += [(next(others), False) for _ in range(number - len(wanted))]
        rng.shuffle(runs)
        handing: list[Handing] = []
        pairs: list[tuple[int, int]] = []
        for at, (kind, is_compared) in enumerate(runs):
            first, last = at * length, calls if at == number - 1 else (at + 1) * length
            if is_compared:
                pairs.append(self._pair(kind, first, last - first))
            by_turns = kind in BY_TURNS
            handing += [
                Handing.UNTOLD if by_turns and call % 2 == 0 else kind
                for call in range(last - first)
            ]
        return Dealt(handing=handing, pairs=pairs, kinds=wanted)

    def comparable(self, handing: Sequence[Handing]) -> list[int]:
        """Return the calls that have a right answer: not those of a mode with another one."""
        other = Handing.OTHER_MODE
        return [at for at, how in enumerate(handing) if how is not other or self._is_same]

    def _pair(self, kind: Handing, first: int, calls: int) -> tuple[int, int]:
        """Return a call of a run and an earlier one, whose answer the kernel may remember."""
        rng = self._rng
        match kind:
            case Handing.OWN:
                call = first + rng.randrange(1, calls)
                return call, rng.choice((call, rng.randrange(call)))
            case Handing.IN_TURN if calls > 2:
                return first + 2, first
            case Handing.OTHER_MODE if not self._is_same:
                call = first + 2 if calls > 2 else first
                return call, call - 1 if calls > 2 else call
            case Handing.GRADIENT | Handing.OTHER_MODE:
                call = first + (3 if calls > 3 else 1)
                return call, call - 1
        call = first + rng.randrange(1, calls)
        return call, call - 1


def ways_of(candidate: CandidateProcess, opened: OpenProblem) -> Sequence[Handing]:
    if not candidate.returns_outputs:
        return COMPILED
    return (*IN_PYTHON, *([Handing.OTHER_MODE] if opened.problem.model is not None else []))


def _in_turn(rng: random.Random, kinds: Iterable[Handing]) -> Iterator[Handing]:
    found = list(kinds)
    while True:
        yield from rng.sample(found, len(found))
