"""A small cost model: features of problem and schedule to the logarithm of a time.

Ridge regression gives the effects that problems share; the nearest neighbours give what is left,
since choices of a schedule hang together. Times are centred problem by problem: the model ranks
schedules of one problem, and does not need to know how large the problem is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ratchet.base.measure import FloatArray

FEWEST: Final = 12
"""Examples below which there is no model."""
NEIGHBOURS: Final = 8
RIDGE: Final = 1.0
MOST: Final = 4000
"""Examples that are used, the newest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """A schedule that was timed on a problem."""

    problem: str
    """The problem's hash."""
    features: tuple[float, ...]
    time_s: float


class CostModel:
    """Predicts how a schedule's time compares with others of the same problem."""

    def __init__(self, features: FloatArray, values: FloatArray) -> None:
        self._mean, spread = features.mean(axis=0), features.std(axis=0)
        self._spread = np.where(spread > 0, spread, 1.0)
        self._known = self._scaled(features)
        gram = self._known.T @ self._known + RIDGE * np.eye(self._known.shape[1])
        self._weights = np.linalg.solve(gram, self._known.T @ values)
        self._left = values - self._known @ self._weights

    @staticmethod
    def fit(examples: Sequence[Example]) -> CostModel | None:
        """Return a model of the newest examples; None if too few have features of one length."""
        if not examples:
            return None
        length = len(examples[-1].features)
        kept = [
            one
            for one in examples
            if len(one.features) == length
            and one.time_s > 0
            and all(map(math.isfinite, one.features))
        ][-MOST:]
        if len(kept) < FEWEST or length == 0:
            return None
        times = np.log([one.time_s for one in kept])
        return CostModel(np.asarray([one.features for one in kept]), _centred(kept, times))

    def predict(self, features: Sequence[Sequence[float]]) -> FloatArray:
        """Return log time of each schedule, relative to its problem's mean: lower is faster."""
        scaled = self._scaled(np.asarray(features, dtype=np.float64))
        distances = np.linalg.norm(scaled[:, None, :] - self._known[None, :, :], axis=-1)
        near = np.argsort(distances, axis=1)[:, :NEIGHBOURS]
        weights = 1.0 / (0.1 + np.take_along_axis(distances, near, axis=1))
        left = (weights * self._left[near]).sum(axis=1) / weights.sum(axis=1)
        found: FloatArray = scaled @ self._weights + left
        return found

    def _scaled(self, features: FloatArray) -> FloatArray:
        scaled: FloatArray = (features - self._mean) / self._spread
        return scaled


def _centred(examples: Sequence[Example], times: FloatArray) -> FloatArray:
    """Return each log time less the mean of its problem's."""
    by_problem: dict[str, list[int]] = {}
    for index, one in enumerate(examples):
        by_problem.setdefault(one.problem, []).append(index)
    found = np.array(times)
    for places in by_problem.values():
        found[places] -= times[places].mean()
    return found
