"""The search: a posterior over the commits, each probe where it tells the most.

A pair times two commits side by side. Its difference is free of what both share, the machine's
level; its mean holds that level. With x = 1 for a commit from the first bad one on, else 0:

    difference = effect (x - x')               + noise of variance 2 v
    mean       = effect (x + x') / 2 + level   + noise of variance v / 2

The level is a random walk from pair to pair. Where it moves slowly, the means of neighbouring pairs
tell about the commits as well, by up to as much as the differences do; where it jumps, they tell
nothing. How fast it moves is unknown, so the answer is averaged over a grid of speeds, each with
its likelihood (for differences of the means, in which the level's start is gone).

One more hypothesis says that nothing changed; it has half of the prior. The effect has the Cauchy
prior of Rouder et al. (Psychonomic Bulletin & Review 16, 2009), v is Jeffreys'. Both are integrated
out, so an effect that luck made look large misleads nobody, and stopping at any time is allowed.
Pairs far from what either hypothesis says count with a larger variance.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from scipy.linalg import cho_solve_banded, cholesky_banded

from ratchet.base.measure import FloatArray

STOP = 0.95
"""A commit with this posterior probability is the answer, if its parent is seen to differ."""
GOOD = -1
SETTLED = 4  # Times that pairs of an earlier run are weighed
_CLIP = 4.0  # Standard deviations beyond which a difference says no more
_MOST_VARIANCE = 1e8
"""Most variance of a pair over the others': beyond it a pair says nothing but rounding."""
_ROBUST_FROM = 8  # Pairs from which the noise is known well enough to tell an outlier
_SPEEDS = np.asarray([0.0, 0.02, 0.1, 0.5, 2.0, 10.0, 100.0, 1e4])
"""Variance of the level's step from pair to pair, over that of one measurement."""
_SIZES: FloatArray = np.asarray(4.0 ** np.arange(-2, 9), dtype=np.float64)
"""Variance of the effect's prior over that of one measurement: a Cauchy is a mixture of them."""
_SIZE_PRIOR: FloatArray = _SIZES**-0.5 * np.exp(-0.5 / _SIZES)
_LEAST_NOISE = 1 / 50
"""Least noise as a share of the effect: a metric without noise is not believed to be exact."""


class CommitPair(msgspec.Struct, frozen=True, kw_only=True):
    """Two commits measured side by side, as logarithms of the metric; GOOD is the good endpoint."""

    commit: int
    against: int = GOOD
    value: float = 0.0
    reference: float = 0.0

    @property
    def difference(self) -> float:
        return self.value - self.reference


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """log(bad / good), as all pairs show it."""

    mean: float
    error: float  # Its standard deviation
    noise: float  # Standard deviation of one pair's difference


class CommitSearch:
    """The posterior of which commit, 0 to `count` - 1, is the first bad one, if any is.

    The last is the bad endpoint; GOOD stands before the first.
    """

    def __init__(self, count: int, pairs: Sequence[CommitPair] = ()) -> None:
        self._count = count
        self._pairs = list(pairs)
        self._prior = np.append(np.full(count, 0.5 / count), 0.5)
        self._joint: FloatArray = self._prior
        self.effect = Effect(mean=0.0, error=math.inf, noise=0.0)
        self._sizes: FloatArray = np.ones(count)
        """The effect that is expected if this commit is the first bad one."""
        for _ in range(SETTLED):  # outliers are told by the effect, which is told by the rest
            self._weigh()

    def add(self, pair: CommitPair) -> None:
        self._pairs.append(pair)
        self._weigh()

    @property
    def posterior(self) -> FloatArray:
        """Return each commit's probability of being the first bad one."""
        return np.asarray(self._joint[:-1])

    @property
    def unchanged(self) -> float:
        """Return the probability that no commit is bad; 1 with the posterior's sum."""
        return float(self._joint[-1])

    def next_probe(self, skipped: Collection[int] = ()) -> int | None:
        """Return the commit whose next pair tells the most; None if none is left.

        Of b (1 - b), b its probability to be bad, times the square of the effect expected if it is
        bad, that is the largest. Without the effect, as many pairs again would go to commits that
        are unclear only as the effect would be small.
        """
        bad = np.cumsum(self.posterior)
        expected = np.cumsum(self.posterior * self._sizes) / np.maximum(bad, 1e-300)
        worth = bad * (1 - bad) * np.square(expected / (self.effect.mean or 1.0))
        worth[[one for one in skipped if one < len(worth)]] = -1.0
        return int(np.argmax(worth)) if worth.max() >= 1e-6 else None

    def best(self) -> int:
        return int(np.argmax(self.posterior))

    def credible(self) -> list[int]:
        """Return the fewest commits that hold STOP of their probability, in their order."""
        share = self.posterior / self.posterior.sum()
        order = np.argsort(-share, kind="stable")
        needed = int(np.searchsorted(np.cumsum(share[order]), STOP - 1e-12)) + 1
        return sorted(int(one) for one in order[:needed])

    def _weigh(self) -> None:
        """Set the posterior and the effect from all pairs."""
        count = len(self._pairs)
        if count < 2:
            return
        commits, against, value, reference = (
            np.asarray([getattr(one, name) for one in self._pairs])
            for name in ("commit", "against", "value", "reference")
        )
        # First bad commits between the same two measured ones predict the same: one column each.
        measured = np.unique(np.concatenate([commits, against]))
        column = np.searchsorted(measured, np.arange(self._count + 1))
        columns = np.arange(len(measured) + 1)
        x, other = (
            (np.searchsorted(measured, one)[:, None] >= columns).astype(float)
            for one in (commits, against)
        )
        difference = value - reference
        variance = self._variances(difference, (x - other)[:, column] @ self._joint)
        least = max(_LEAST_NOISE * abs(float(np.median(difference[x[:, -2] > 0]))), 1e-9)
        scaled: FloatArray = (x - other) / (2 * variance)[:, None]
        of_difference = (
            float(np.sum(difference**2 / (2 * variance))),
            difference @ scaled,
            np.einsum("ij,ij->j", x - other, scaled),
        )
        rows = 2 * count - 1
        logs, means, spreads, noises = [], [], [], []
        size = _SIZES[:, None]
        for speed in _SPEEDS:
            yy, xy, xx, determinant = _of_means(
                np.diff((value + reference) / 2), np.diff((x + other) / 2, axis=0), variance, speed
            )
            energy = of_difference[0] + yy + rows * least**2 / 2
            told, weight = of_difference[1] + xy, of_difference[2] + xx
            shrunk = size / (1 + size * weight)
            rest = np.maximum(energy - shrunk * told**2, rows * least**2 / 2)
            logs.append(
                np.log(_SIZE_PRIOR)[:, None]
                - determinant / 2
                - np.log1p(size * weight) / 2
                - rows / 2 * np.log(rest)
            )
            means.append(shrunk * told)
            spreads.append(shrunk * rest / max(rows - 2, 1))
            noises.append(2 * rest / rows)
        shares = np.bincount(column, weights=self._prior, minlength=len(columns))
        weights = np.exp(np.asarray(logs) - np.max(logs)) * shares
        by_column = weights.sum(axis=(0, 1)) / weights.sum()
        each = np.divide(by_column, shares, out=np.zeros(len(shares)), where=shares > 0)
        self._joint = each[column] * self._prior
        sizes = (weights * np.asarray(means)).sum(axis=(0, 1)) / np.maximum(
            weights.sum(axis=(0, 1)), 1e-300
        )
        self._sizes = sizes[column[:-1]]
        if (changed := weights[..., : columns[-1]]).sum() > 0:
            self.effect = _effect(changed / changed.sum(), means, spreads, noises)

    def _variances(self, difference: FloatArray, expected: FloatArray) -> FloatArray:
        """Return the variance of each pair's measurements over that of most: outliers have more."""
        if len(difference) < _ROBUST_FROM:
            return np.ones(len(difference))
        mean = self.effect.mean
        # The median of absolute normal deviates is 1 / 1.4826.
        noise = 1.4826 * float(np.median(np.abs(difference - expected * mean)))
        limit = _CLIP * max(noise, _LEAST_NOISE * abs(mean), 1e-9)
        outside = difference - np.clip(difference, min(mean, 0.0), max(mean, 0.0))
        return np.asarray(np.clip(np.square(outside / limit), 1.0, _MOST_VARIANCE))


def evidence(differences: Sequence[float], effect: Effect) -> float:
    """Return the log likelihood ratio of the effect against no effect, over pairs."""
    low, high = min(0.0, effect.mean), max(0.0, effect.mean)
    reach = _CLIP * effect.noise
    values = np.clip(np.asarray(differences, dtype=np.float64), low - reach, high + reach)
    return float((effect.mean * (values - effect.mean / 2)).sum() / effect.noise**2)


def _of_means(
    steps: FloatArray, bad: FloatArray, variance: FloatArray, speed: float
) -> tuple[float, FloatArray, FloatArray, float]:
    """Return y'Vy, x'Vy and x'Vx for the steps between pairs' means, and log of V's determinant.

    V is the inverse of the steps' covariance, a band: neighbours share the noise of one mean.
    """
    band = np.zeros((2, len(steps)))
    band[1] = speed + (variance[1:] + variance[:-1]) / 2
    band[0, 1:] = -variance[1:-1] / 2
    factor = cholesky_banded(band)
    solved = cho_solve_banded((factor, False), np.column_stack([steps, bad]))
    return (
        float(steps @ solved[:, 0]),
        np.asarray(bad.T @ solved[:, 0]),
        np.einsum("ij,ij->j", bad, solved[:, 1:]),
        2 * float(np.log(factor[1]).sum()),
    )


def _effect(
    weights: FloatArray,
    means: Sequence[FloatArray],
    spreads: Sequence[FloatArray],
    noises: Sequence[FloatArray],
) -> Effect:
    """Return the mean over speeds, sizes and commits that changed."""
    last = weights.shape[-1]
    mean, spread, noise = (np.asarray(one)[..., :last] for one in (means, spreads, noises))
    centre = float((weights * mean).sum())
    variance = float((weights * (spread + np.square(mean - centre))).sum())
    return Effect(
        mean=centre, error=math.sqrt(variance), noise=math.sqrt(float((weights * noise).sum()))
    )
