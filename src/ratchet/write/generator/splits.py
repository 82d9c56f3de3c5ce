"""Loops cut where a condition turns, so that each piece is free of it.

The compiler turns a load under a condition into a masked one, or gives the loop up. A condition
that is linear in the loop's variable holds on one side of a cut, so the loop runs in pieces: one
where every such condition holds, and what is left before and after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ratchet.write.form.extent import ONE, ZERO, Extent
from ratchet.write.generator.conditions import negated

LEAST: Final = 16
"""Steps below which a loop stays whole: the compiler unrolls it."""
_MINUS: Final = ONE * -1


@dataclass(frozen=True, kw_only=True)
class LoopPiece:
    """A part of a loop: where it starts and ends, and the lines that open its body."""

    first: str
    end: str
    opening: tuple[str, ...] = ()
    failed: tuple[Extent, ...] = ()
    """Conditions that hold nowhere in it."""


@dataclass(kw_only=True)
class LoopSplits:
    """Conditions that turn along one loop, with the names of their truth in its body."""

    variable: str
    depth: int
    """The loop's scope; conditions are cut only on names from outside of it."""
    tag: str
    steps: int = LEAST
    found: dict[Extent, str] = field(default_factory=dict)

    def name_of(self, condition: Extent) -> str | None:
        """Return the name of `condition >= 0`; None if the loop is not cut there."""
        if self.steps < LEAST or condition.factor_of(self.variable) not in (ONE, _MINUS):
            return None
        return self.found.setdefault(condition, f"{self.tag}_{len(self.found)}")

    def pieces(self, first: str, end: str) -> tuple[list[str], list[LoopPiece]]:
        """Return lines before the loop, and the loop's pieces in order."""
        if not self.found:
            return [], [LoopPiece(first=first, end=end)]
        lows: dict[Extent, str] = {}
        highs: dict[Extent, str] = {}
        for condition in self.found:
            rest = condition.replace({self.variable: ZERO})
            if condition.factor_of(self.variable) == ONE:
                lows[condition] = (rest * -1).text
            else:
                highs[condition] = (rest + 1).text
        low, high = f"{self.tag}_from", f"{self.tag}_upto"
        lines = [
            f"const int64_t {low} = {_clamped('max', list(lows.values()), first, end)};",
            f"const int64_t {high} = {_clamped('min', list(highs.values()), low, end)};",
        ]
        alone = len(self.found) == 1
        outside = tuple(
            f"{'constexpr' if alone else 'const'} bool {name} = "
            f"{'false' if alone else f'{condition.text} >= 0'};"
            for condition, name in self.found.items()
        )
        within = tuple(f"constexpr bool {name} = true;" for name in self.found.values())
        never = tuple(negated(one) for one in self.found)
        pieces = [LoopPiece(first=low, end=high, opening=within, failed=never)]
        if lows:
            one = tuple(lows) if len(lows) == 1 else ()
            pieces.insert(0, LoopPiece(first=first, end=low, opening=outside, failed=one))
        if highs:
            one = tuple(highs) if len(highs) == 1 else ()
            pieces.append(LoopPiece(first=high, end=end, opening=outside, failed=one))
        return lines, pieces


def _clamped(which: str, bounds: Sequence[str], least: str, most: str) -> str:
    """Write the largest (or least) of bounds, not outside of a range."""
    if not bounds:
        return least if which == "max" else most
    found = bounds[0]
    for one in bounds[1:]:
        found = f"whole_{which}({found}, {one})"
    return f"whole_min(whole_max({found}, (int64_t){least}), (int64_t){most})"
