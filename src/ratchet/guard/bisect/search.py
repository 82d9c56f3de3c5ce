"""The search: a posterior over the commits, each probe where it tells the most.

A probe times a commit and the good endpoint side by side, which takes out what both share: the
machine's drift. Where little is shared, a pair's difference has twice the variance of one arm, and
the mean of several measurements of the good endpoint is the better reference. How many of them, the
nearest in time, is what leaves the least noise in the pairs of this very search.

The effect is uncertain as well, so the posterior is over (commit, effect), with the effect's prior
from the endpoints. Outliers are clipped.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from ratchet.measure.samples import FloatArray

STOP = 0.95
"""The search ends when one commit has this posterior probability."""
_GRID = 11
_CLIP = 4.0
"""Standard deviations beyond which a value says no more."""
_WINDOWS = (2, 4, 8, 16, 32, 64)
"""Measurements of the good endpoint before and after a pair that may be its reference."""
_GAIN = 0.85
"""A wider reference must leave this share of the variance, or the pair's own is kept."""
GOOD = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitPair:
    """Two commits measured side by side; GOOD is the good endpoint."""

    commit: int
    against: int
    value: float
    """Logarithm of the commit's metric."""
    reference: float
    """Logarithm of the other's."""

    @property
    def difference(self) -> float:
        return self.value - self.reference


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """log(bad / good) of one pair, as the endpoints show it."""

    mean: float
    error: float
    """Standard error of the mean."""
    noise: float
    """Standard deviation of one difference."""


class CommitSearch:
    """The posterior of which commit, 0 to `count` - 1, is the first bad one.

    The last is the bad endpoint; GOOD stands before the first.
    """

    def __init__(self, count: int, pairs: Sequence[CommitPair]) -> None:
        """Start from the pairs of the two endpoints."""
        self._count = count
        self._pairs = list(pairs)
        self._ends = len(pairs)
        self._posterior: FloatArray = np.full(count, 1 / count)
        self._effect = effect_of([one.difference for one in pairs])

    def add(self, pair: CommitPair) -> None:
        """Take in one pair."""
        self._pairs.append(pair)
        self._posterior = self._weigh()

    @property
    def posterior(self) -> FloatArray:
        """Return each commit's probability of being the first bad one."""
        return self._posterior

    @property
    def effect(self) -> Effect:
        """Return the effect on a difference, as all pairs so far show it."""
        return self._effect

    def next_probe(self, skipped: Collection[int] = ()) -> int | None:
        """Return the commit whose next pair tells the most; None if none is left.

        That is the one for which bad and good are the most alike in probability.
        """
        bad = np.cumsum(self._posterior)[:-1]
        worth = bad * (1 - bad)
        worth[[one for one in skipped if one < len(worth)]] = -1.0
        if not len(worth) or worth.max() < 1e-6:
            return None
        return int(np.argmax(worth))

    def best(self) -> int:
        """Return the most probable commit."""
        return int(np.argmax(self._posterior))

    def credible(self, mass: float = STOP) -> list[int]:
        """Return the fewest commits that hold this much probability, in their order."""
        order = np.argsort(-self._posterior, kind="stable")
        needed = int(np.searchsorted(np.cumsum(self._posterior[order]), mass - 1e-12)) + 1
        return sorted(int(one) for one in order[:needed])

    def _weigh(self) -> FloatArray:
        pairs = self._pairs
        with_good = [one for one in pairs if one.against == GOOD]
        cumulative = np.cumsum(self._posterior)
        bad: FloatArray = np.asarray(
            [cumulative[min(one.commit, self._count - 1)] for one in with_good]
        )
        values: FloatArray = np.asarray([one.value for one in with_good])
        good: FloatArray = np.asarray([one.reference for one in with_good])
        start = effect_of([one.difference for one in pairs[: self._ends]])
        reference, width = _reference(np.asarray(values - bad * start.mean), good)
        controlled: FloatArray = np.asarray(values - reference)
        mean = float(controlled[: self._ends].mean())
        noise = _spread(np.asarray(controlled - bad * mean), mean)
        sizes, levels, prior = _grid(mean, noise, self._ends, width)
        commits = np.asarray([one.commit for one in with_good[self._ends :]], dtype=np.int64)
        probes: FloatArray = np.asarray(controlled[self._ends :, None] - levels)
        logs: FloatArray = np.zeros((self._count, len(sizes)))
        np.add.at(logs, commits, _gains(probes, sizes, noise))
        # A probe of a commit speaks for every first bad commit at or before it.
        logs = np.asarray(np.cumsum(logs[::-1], axis=0)[::-1] + prior)
        logs -= np.square(np.clip(probes / noise, -_CLIP, _CLIP)).sum(axis=0) / 2
        for one in pairs:
            if one.against != GOOD:  # child against parent: speaks for the child alone
                logs[one.commit] += _gains(np.full((1, 1), one.difference), sizes, start.noise)[0]
        weights = np.exp(logs - logs.max())
        weights /= weights.sum()
        size = float((weights * sizes).sum())
        spread = math.sqrt(float((weights * (sizes - size) ** 2).sum()))
        noise = _spread(np.asarray(values - good - bad * size), size)
        error = max(spread, noise / math.sqrt(float(bad.sum())))
        self._effect = Effect(mean=size, error=error, noise=noise)
        return np.asarray(weights.sum(axis=1))


def effect_of(differences: Sequence[float]) -> Effect:
    """Return the effect that pairs show; a noise of 0 is kept computable."""
    values = np.asarray(differences, dtype=np.float64)
    mean = float(values.mean())
    noise = _spread(np.asarray(values - mean), mean)
    return Effect(mean=mean, error=noise / math.sqrt(len(values)), noise=noise)


def evidence(differences: Sequence[float], effect: Effect) -> float:
    """Return the log likelihood ratio of the effect against no effect, over pairs."""
    values = np.asarray(differences, dtype=np.float64)
    return float(_gains(values[:, None], np.asarray([effect.mean]), effect.noise).sum())


def _grid(
    mean: float, noise: float, ends: int, width: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return effects, levels of a good commit, and their log prior.

    The level is 0 but for what a mean of `width` good measurements is off by.
    """
    reach = np.linspace(-2.5, 2.5, _GRID)
    off = noise / math.sqrt(width) * (np.linspace(-2.5, 2.5, _GRID) if width > 1 else np.zeros(1))
    size = mean + reach[:, None] * noise / math.sqrt(ends) - off[None]
    prior = -np.square(reach)[:, None] / 2 - np.square(off * math.sqrt(width) / noise)[None] / 2
    levels = np.broadcast_to(off, size.shape)
    # An effect of the other sign was ruled out when the endpoints were confirmed.
    kept = size * np.sign(mean) > abs(mean) / 10
    return size[kept], levels[kept], prior[kept]


def _gains(values: FloatArray, sizes: FloatArray, noise: float) -> FloatArray:
    """Return log(likelihood with the effect / without) by value and size of the effect."""
    low, high = min(0.0, float(sizes.min())), max(0.0, float(sizes.max()))
    values = np.clip(values, low - _CLIP * noise, high + _CLIP * noise)
    return np.asarray(sizes * (values - sizes / 2) / noise**2)


def _reference(rest: FloatArray, good: FloatArray) -> tuple[FloatArray, int]:
    """Return the reference of each pair, and how many measurements all of them share.

    A mean of neighbours is off by noise of its own, which over all pairs does not average out below
    that of all good measurements.
    """
    best, width, least = good, 1, _GAIN * float(np.var(rest - good))
    sums, places = np.concatenate([[0.0], np.cumsum(good)]), np.arange(len(good))
    for window in _WINDOWS:
        low, high = np.maximum(places - window, 0), np.minimum(places + window + 1, len(good))
        mean = (sums[high] - sums[low]) / (high - low)
        if (left := float(np.var(rest - mean))) < least:
            best, width, least = mean, len(good), left
    return best, width


def _spread(rest: FloatArray, mean: float) -> float:
    found = float(np.std(rest, ddof=1)) if len(rest) > 1 else 0.0
    return max(found, abs(mean) / 50, 1e-9)
