"""The cost of each choice of checkpointing for each block, in bytes and in time.

A step with one choice for all blocks is measured for each choice. In a step whose blocks differ in
their choice, the memory at any moment is what the blocks before the running one have saved, plus
what the running part needs by itself:

    peak = max over parts of (sum of saved[j, choice j] over the blocks j before it + own)

`own` is the part's peak in the measured step less what the blocks before it had saved there, so a
plan of equal choices predicts the measured peak exactly. Gradients of the blocks behind it, the
weights and the optimizer's state are in `own`: they are the same for every choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ratchet.train.memory.measured import MeasuredStep, Stretch


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockCosts:
    """Bytes and seconds by block and choice (a letter of `checkpointing.CHOICES`)."""

    saved: tuple[Mapping[str, float], ...]
    """Bytes that a block keeps from its forward pass to its backward pass, its output included."""
    own: tuple[Mapping[str, float], ...]
    """The peak while a block runs, without what the blocks before it have saved."""
    outside: Mapping[int, float]
    """The peak outside of the blocks, after so many of them, without what these have saved."""
    time_s: tuple[Mapping[str, float], ...]
    """Seconds that a choice adds to the step, by block."""
    mixes: bool
    """False if the blocks do not run one after the other: then all choose the same."""

    @property
    def choices(self) -> str:
        return "".join(self.saved[0])

    def peak_bytes(self, plan: str) -> int:
        """Return the predicted peak of a step whose blocks choose the plan's letters."""
        before, peak = 0.0, self.outside.get(0, 0.0)
        for place, choice in enumerate(plan):
            peak = max(peak, before + self.own[place].get(choice, 0.0))
            before += self.saved[place][choice]
            peak = max(peak, before + self.outside.get(place + 1, 0.0))
        return round(peak)

    def added_s(self, plan: str) -> float:
        """Return the time that the plan's choices add to the step."""
        return sum(times[choice] for times, choice in zip(self.time_s, plan, strict=True))


class _MeasuredWalk:
    """One measured step, its stretches taken in order."""

    def __init__(self, step: MeasuredStep, blocks: int) -> None:
        self.saved = [0] * blocks
        self.own = [0] * blocks
        self.time_s = [0.0] * blocks
        self.kept_s = [0.0] * blocks
        self.both_s = [0.0] * blocks
        self.outside: dict[int, int] = {}
        self.in_order = True
        self._open: list[int] = []
        for stretch in step.stretches:
            self._take(stretch)
        self.in_order = self.in_order and all(self.own) and not self._open

    def _take(self, stretch: Stretch) -> None:
        place = stretch.place
        if place is None:
            done = len(self._open)
            own = stretch.peak_bytes - sum(self._open)
            self.outside[done] = max(self.outside.get(done, 0), own)
            return
        if stretch.backward and self._open:
            self._open.pop()
        self.in_order = self.in_order and len(self._open) == place
        self.own[place] = max(self.own[place], stretch.peak_bytes - sum(self._open))
        self.both_s[place] += stretch.time_s
        if not stretch.backward:
            saved = stretch.end_bytes - stretch.start_bytes
            self._open.append(saved)
            self.saved[place] = max(self.saved[place], saved)
            self.time_s[place] += stretch.time_s
            self.kept_s[place] += stretch.kept_s


def costs_of(steps: Mapping[str, MeasuredStep], blocks: int) -> BlockCosts:
    """Return the costs from eager steps, one measured for each choice."""
    walks = {choice: _MeasuredWalk(step, blocks) for choice, step in steps.items()}
    first = next(iter(walks.values()))
    places = range(blocks)
    outside = {
        done: float(max(walk.outside.get(done, 0) for walk in walks.values()))
        for done in first.outside
    }
    return BlockCosts(
        saved=tuple({c: float(walk.saved[i]) for c, walk in walks.items()} for i in places),
        own=tuple({c: float(walk.own[i]) for c, walk in walks.items()} for i in places),
        outside=outside,
        time_s=tuple({c: _added_s(walks, c, _alike(first, i)) for c in walks} for i in places),
        mixes=all(walk.in_order for walk in walks.values()),
    )


def _alike(walk: _MeasuredWalk, place: int) -> list[int]:
    """Return the blocks that save as much as this one: their times differ only by noise."""
    return [i for i, saved in enumerate(walk.saved) if saved == walk.saved[place]]


def _added_s(walks: Mapping[str, _MeasuredWalk], choice: str, alike: Sequence[int]) -> float:
    """Return the forward time that is spent again; for an offload, the time of both passes more."""
    plain = walks.get("n") or walks["f"]
    if choice == "f":
        return median(plain.time_s[i] for i in alike)
    if choice == "s":
        return median(max(plain.time_s[i] - plain.kept_s[i], 0.0) for i in alike)
    if choice == "o":
        return max(median(walks["o"].both_s[i] - plain.both_s[i] for i in alike), 0.0)
    return 0.0
