"""Change points of a series, found in intervals of fixed places so that appending is cheap.

Intervals of 32 to 1024 points, each half-way over the next (seeded intervals: Kovacs et al.,
Biometrika 110, 2023), are tested for one split each. The narrowest that passes wins (Baranowski et
al., JRSS B 81, 2019), then each point is placed and tested again between its neighbours.

What an interval says depends only on its own chunk of 1024 points, so that of a full chunk never
changes: a longer series needs only the tail, and gets the answer it would get from scratch. The
level is spent over the chunks as 1 / (k + 1)^2, so it holds for a series of any length.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from ratchet.base.measure import FloatArray

# The statistic behind a change point: the maximally selected rank statistic, in rows at once.
#
# A row's values are replaced by the normal scores of their ranks, so one threshold holds for
# Gaussian, skewed, heavy-tailed and spiky noise alike. For each split the two sides' scores are
# compared; the largest difference is the statistic, and its p-value includes the search over
# splits. It is Miller and Siegmund's (Biometrics 38, 1982), as Hothorn and Lausen use it for ranks
# (Computational Statistics & Data Analysis 43, 2003). Correlation from point to point inflates the
# variance by (1 + phi) / (1 - phi), the long-run variance of an AR(1) process.

IntArray = NDArray[np.int64]

LEAST_SEGMENT = 4  # Points that a level must last: shorter bumps are spikes
_MARGIN = 0.5
"""Standard errors that are added to an estimated correlation, so that it is seldom too small."""
_MOST_PHI = 0.95


def best_splits(rows: FloatArray) -> tuple[IntArray, FloatArray]:
    """Return where the sides of each row differ the most, and z there before any inflation."""
    z = split_scores(rows)
    least = LEAST_SEGMENT - 1
    inner = np.abs(z[:, least : z.shape[1] - least])
    best = np.argmax(inner, axis=1)
    return best + LEAST_SEGMENT, np.take_along_axis(inner, best[:, None], axis=1)[:, 0]


def split_scores(rows: FloatArray) -> FloatArray:
    """Return z of each split of each row: column i is the split before value i + 1."""
    scores = normal_scores(rows)
    length = rows.shape[1]
    spread = np.sqrt(np.einsum("ij,ij->i", scores, scores))
    spread[spread < 1e-9] = np.inf  # constants have no split
    sums = np.cumsum(scores, axis=1)[:, :-1]
    sums *= _weights(length)
    sums /= spread[:, None]
    return sums


def normal_scores(rows: FloatArray) -> FloatArray:
    """Return the normal scores of each row's ranks; ties share the mean of their scores."""
    order = np.argsort(rows, axis=1)
    ordered = np.take_along_axis(rows, order, axis=1)
    fresh = ordered[:, 1:] != ordered[:, :-1]
    values = np.broadcast_to(_score_table(rows.shape[1]), rows.shape)
    tied = ~fresh.all(axis=1)
    if tied.any():
        values = values.copy()
        values[tied] = _shared(values[tied], fresh[tied])
    scores = np.empty_like(rows)
    np.put_along_axis(scores, order, values, axis=1)
    return scores


def correlation(scores: FloatArray) -> FloatArray:
    """Return an estimate, seldom too small, of each row's correlation from point to point.

    Taken from first differences, of which a step spoils one, and from the residuals of the best
    split; the smaller counts. A row in which most neighbours are equal has a level, not noise: 0.
    """
    count = scores.shape[1]
    steps = np.diff(scores, axis=1)
    energy = np.einsum("ij,ij->i", steps, steps)
    ratio = np.divide(
        np.einsum("ij,ij->i", steps[:, 1:], steps[:, :-1]),
        energy,
        out=np.full(len(scores), -0.5),
        where=energy > 0,
    )
    by_differences = 1 + 2 * ratio
    found = np.minimum(by_differences, _by_residuals(scores))
    found = np.clip(found + _MARGIN / math.sqrt(count), 0.0, _MOST_PHI)
    found[np.median(np.abs(steps), axis=1) == 0] = 0.0
    return np.asarray(found, dtype=np.float64)


def inflation(phi: FloatArray) -> FloatArray:
    """Return the factor by which correlation lowers z."""
    return np.asarray(np.sqrt((1 + phi) / (1 - phi)), dtype=np.float64)


def p_value(z: FloatArray, length: int) -> FloatArray:
    """Return the chance that the best split of a row without a change reaches z."""
    edge = LEAST_SEGMENT / length
    span = 2 * math.log((1 - edge) / edge)
    z = np.maximum(z, 1.0)
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return np.asarray(np.minimum(1.0, density * (4 / z + (z - 1 / z) * span)), dtype=np.float64)


def _by_residuals(scores: FloatArray) -> FloatArray:
    """Return the lag-1 correlation of what the best split leaves, with its bias removed."""
    count = scores.shape[1]
    sums = np.cumsum(scores, axis=1)
    z = sums[:, :-1] * _weights(count)
    least = LEAST_SEGMENT - 1
    at = np.argmax(np.abs(z[:, least : count - 1 - least]), axis=1) + least
    left = np.take_along_axis(sums, at[:, None], axis=1)
    size = (at + 1)[:, None]
    right = (sums[:, -1:] - left) / (count - size)
    rest = scores - np.where(np.arange(count) < size, left / size, right)
    energy = np.einsum("ij,ij->i", rest, rest)
    phi = np.divide(
        np.einsum("ij,ij->i", rest[:, 1:], rest[:, :-1]),
        energy,
        out=np.zeros(len(scores)),
        where=energy > 1e-12,
    )
    # Two fitted means and the searched split take about twice Kendall's bias, (1 + 3 phi) / n.
    return np.asarray(phi + 2 * (1 + 3 * phi) / count, dtype=np.float64)


@functools.lru_cache(maxsize=4096)
def _score_table(length: int) -> FloatArray:
    return np.asarray(special.ndtri((np.arange(length) + 0.5) / length), dtype=np.float64)


@functools.lru_cache(maxsize=4096)
def _weights(length: int) -> FloatArray:
    """Return 1 / sqrt of the permutation variance of each partial sum, over the scores' norm."""
    left = np.arange(1, length, dtype=np.float64)
    return np.asarray(np.sqrt(length * (length - 1) / (left * (length - left))))


def _shared(values: FloatArray, fresh: NDArray[np.bool_]) -> FloatArray:
    starts = np.ones(values.shape, dtype=bool)
    starts[:, 1:] = fresh
    begin = np.flatnonzero(starts.ravel())
    sizes = np.diff(np.append(begin, values.size))
    means = np.add.reduceat(values.ravel(), begin) / sizes
    return np.repeat(means, sizes).reshape(values.shape)


CHUNK, STRIDE = 1024, 512
LENGTHS = (32, 64, 128, 256, 512, 1024)
ALPHA = 0.3
"""Sum of the levels of all tests of one series. The tests overlap and their bound is conservative:
1.7 to 2.3 % of series of 200 points without a change get a point 
(`benchmarks/guard/guard_changepoints.py` measures it)."""
_ROWS = 256  # Chunks that are tested in one go: what bounds the memory
_DROP = 6.0
"""A place whose doubled log likelihood is lower by less than this may be the place as well."""
_TAILS: FloatArray = np.asarray([1.5, 3.0, 6.0, 30.0])
"""Degrees of freedom of noise, from heavy tails to hardly any."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangePoint:
    """A change of level before the value `index` of a series."""

    index: int
    first: int  # The change is at `first` to `last`, and most likely at `index`
    last: int
    p: float  # The chance of a change as clear as this in a stretch without one


@dataclass(frozen=True, slots=True)
class _Interval:
    start: int
    end: int
    split: int
    p: float


class ChangePointFinder:
    """A series that grows: each `append` tests the tail alone."""

    def __init__(self) -> None:
        self._values: FloatArray = np.empty(0)
        self._frozen: list[_Interval] = []
        self._phis: list[float] = []  # One for each full chunk
        self._placed: dict[tuple[int, int, float], ChangePoint] = {}

    def append(self, values: FloatArray) -> None:
        """Add values at the end; they must be finite."""
        self._values = np.concatenate([self._values, np.asarray(values, dtype=np.float64)])
        full = max(0, (len(self._values) - CHUNK) // STRIDE + 1)
        for first in range(len(self._phis), full, _ROWS):
            self._freeze(first, min(full, first + _ROWS))

    def points(self) -> list[ChangePoint]:
        """Return the change points of all values so far."""
        count, start = len(self._values), len(self._phis) * STRIDE
        if count < 2 * LEAST_SEGMENT:
            return []
        tail_phi = 0.0
        found = list(self._frozen)
        if count - start >= 2 * LEAST_SEGMENT:
            tail_phi = float(correlation(normal_scores(self._values[None, start:]))[0])
            found += self._in_tail(start, tail_phi)
        kept = _narrowest(found)
        return self._settle(kept, [*self._phis, tail_phi])

    def _freeze(self, first: int, end: int) -> None:
        """Test the intervals that start in the chunks `first` to `end`, which are full."""
        data = self._values[first * STRIDE : (end + 1) * STRIDE]
        chunks = np.lib.stride_tricks.sliding_window_view(data, CHUNK)[::STRIDE]
        phi = correlation(normal_scores(chunks))
        self._phis += [float(one) for one in phi]
        levels = self._level(np.arange(first, end)) / len(LENGTHS)
        for length in LENGTHS:
            step, each = length // 2, CHUNK // length
            rows = np.lib.stride_tricks.sliding_window_view(data, length)[::step]
            rows = rows[: (end - first) * each]
            splits, z = best_splits(rows)
            p = p_value(np.asarray(z / np.repeat(inflation(phi), each)), length)
            for row in np.flatnonzero(p < np.repeat(levels, each) / each):
                start = first * STRIDE + int(row) * step
                self._frozen.append(
                    _Interval(start, start + length, start + int(splits[row]), float(p[row]))
                )

    def _in_tail(self, start: int, phi: float) -> list[_Interval]:
        count = len(self._values) - start
        tail, level = self._values[start:], float(self._level(np.asarray([start // STRIDE]))[0])
        by_length = {
            length: sorted({*range(0, count - length + 1, length // 2), count - length})
            for length in LENGTHS
            if length < count
        }
        by_length[count] = [0]
        found = []
        for length, starts in by_length.items():
            rows = np.stack([tail[at : at + length] for at in starts])
            splits, z = best_splits(rows)
            p = p_value(np.asarray(z / inflation(np.full(1, phi))), length)
            for row in np.flatnonzero(p < level / len(by_length) / len(starts)):
                at = start + starts[int(row)]
                split = at + int(splits[row])
                found.append(_Interval(at, at + length, split, float(p[row])))
        return found

    def _level(self, chunk: IntArray) -> FloatArray:
        return np.asarray(ALPHA * 6 / math.pi**2 / (chunk + 1.0) ** 2)

    def _settle(self, splits: list[int], phis: Sequence[float]) -> list[ChangePoint]:
        """Place each point between its neighbours; drop the least clear one until all pass."""
        for _ in range(2):
            splits = sorted({one.index for one in self._place_all(splits, phis)})
        while placed := self._place_all(splits, phis):
            chunks = np.minimum([one // STRIDE for one in splits], len(phis) - 1)
            excess = [one.p / level for one, level in zip(placed, self._level(chunks), strict=True)]
            worst = int(np.argmax(excess))
            if excess[worst] < 1:
                break
            del splits[worst]
        return placed

    def _place_all(self, splits: list[int], phis: Sequence[float]) -> list[ChangePoint]:
        ends = [0, *splits, len(self._values)]
        found = []
        for before, at, after in zip(ends, ends[1:], ends[2:], strict=False):
            low, high = max(before, at - STRIDE), min(after, at + STRIDE)
            phi = phis[min(at // STRIDE, len(phis) - 1)]
            key = (low, high, phi)
            if key not in self._placed:
                self._placed[key] = _place(self._values[low:high], low, at, phi)
            found.append(self._placed[key])
        return found


def change_points(values: FloatArray) -> list[ChangePoint]:
    finder = ChangePointFinder()
    finder.append(values)
    return finder.points()


def step_at(values: FloatArray, split: int) -> float:
    """Return the p-value of a change at a place that is known in advance, such as an upgrade."""
    if min(split, len(values) - split) < LEAST_SEGMENT:
        return 1.0
    factor = float(inflation(correlation(normal_scores(values[None])))[0])
    z = abs(float(split_scores(values[None])[0, split - 1])) / factor
    return 2 * float(special.ndtr(-z))


def _place(values: FloatArray, low: int, at: int, phi: float) -> ChangePoint:
    """Return the best split of a stretch; a stretch too short to hold one fails."""
    if len(values) < 2 * LEAST_SEGMENT:
        return ChangePoint(index=at, first=at, last=at, p=1.0)
    z = np.abs(split_scores(values[None])[0])
    least = LEAST_SEGMENT - 1
    inner = z[least : len(z) - least]
    best = int(np.argmax(inner))
    factor = float(inflation(np.full(1, phi))[0])
    # Twice the log likelihood of normal scores with two levels, their spread fitted.
    rest = np.maximum(1 - inner**2 / (len(values) - 1), 1e-9)
    near = np.flatnonzero(np.log(rest / rest[best]) * len(values) / factor**2 < _DROP)
    p = float(p_value(np.asarray([inner[best] / factor]), len(values))[0])
    for _ in range(2):
        best = _likeliest(values, best + LEAST_SEGMENT, near + LEAST_SEGMENT) - LEAST_SEGMENT
    base = low + LEAST_SEGMENT
    return ChangePoint(index=base + best, first=base + int(near[0]), last=base + int(near[-1]), p=p)


def _likeliest(values: FloatArray, split: int, splits: IntArray) -> int:
    """Return which of the splits is the likeliest under Student's t about two levels.

    Ranks find a step whatever the noise is, and place it less well where tails are heavy. The
    levels are the medians about `split`, the tails those of `_TAILS` that fit best.
    """
    off = [np.abs(values - np.median(side)) for side in (values[:split], values[split:])]
    rest = np.concatenate([off[0][:split], off[1][split:]])
    middle = float(np.median(rest))
    if middle == 0:
        return split  # most values are their level's: there is no noise to speak of
    scales = middle / special.stdtrit(_TAILS, 0.75)
    starts = special.gammaln((_TAILS + 1) / 2) - special.gammaln(_TAILS / 2)
    starts -= np.log(_TAILS) / 2 + np.log(scales)

    def logs(off: FloatArray, tail: int) -> FloatArray:
        squares = np.square(off / scales[tail]) / _TAILS[tail]
        return np.asarray(starts[tail] - (_TAILS[tail] + 1) / 2 * np.log1p(squares))

    fits = int(np.argmax([logs(rest, tail).sum() for tail in range(len(_TAILS))]))
    sums = np.cumsum(logs(off[0], fits) - logs(off[1], fits))
    best = float(sums[splits - 1].max())
    if split in splits and sums[split - 1] >= best:
        return split  # of places that are equally likely, the one that ranks find
    return int(splits[np.argmax(sums[splits - 1])])


def _narrowest(intervals: Sequence[_Interval]) -> list[int]:
    """Return the splits of the narrowest intervals, none of which holds another's split."""
    kept: list[int] = []
    waiting = sorted(intervals, key=lambda one: (one.end - one.start, one.p, one.start))
    taken: IntArray = np.empty(0, dtype=np.int64)
    for one in waiting:
        place = int(np.searchsorted(taken, one.start, side="right"))
        if place < len(taken) and taken[place] < one.end:
            continue
        taken = np.insert(taken, int(np.searchsorted(taken, one.split)), one.split)
        kept.append(one.split)
    return sorted(set(kept))
