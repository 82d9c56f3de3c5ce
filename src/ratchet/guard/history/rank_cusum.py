"""The statistic behind a change point: the maximally selected rank statistic, in rows at once.

A row's values are replaced by the normal scores of their ranks, so one threshold holds for
Gaussian, skewed, heavy-tailed and spiky noise alike. For each split the two sides' scores are
compared; the largest difference is the statistic, and its p-value includes the search over splits.
It is Miller and Siegmund's (Biometrics 38, 1982), as Hothorn and Lausen use it for ranks
(Computational Statistics & Data Analysis 43, 2003). Correlation from point to point inflates the
variance by (1 + phi) / (1 - phi), the long-run variance of an AR(1) process.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from ratchet.base.measure import FloatArray

IntArray = NDArray[np.int64]

LEAST_SEGMENT = 4
"""Points that a level must last: shorter bumps are spikes."""
_MARGIN = 0.5
"""Standard errors that are added to an estimated correlation, so that it is seldom too small."""
_MOST_PHI = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class RowSplits:
    """The best split of each row, with its z (before any inflation)."""

    split: IntArray
    z: FloatArray


def best_splits(rows: FloatArray) -> RowSplits:
    """Return the split of each row (values by row) at which its two sides differ the most."""
    z = split_scores(rows)
    least = LEAST_SEGMENT - 1
    inner = np.abs(z[:, least : z.shape[1] - least])
    best = np.argmax(inner, axis=1)
    return RowSplits(
        split=best + LEAST_SEGMENT, z=np.take_along_axis(inner, best[:, None], axis=1)[:, 0]
    )


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
