"""Looking early, at a price: confidence levels for looks that were fixed in advance.

Each look spends part of the error budget, after the O'Brien-Fleming-like spending function of Lan
and DeMets ("Discrete sequential boundaries for clinical trials", Biometrika 70(3), 1983): almost
nothing early, almost all at the end. The boundaries come from the recursive integration of
Armitage, McPherson and Rowe ("Repeated significance tests on accumulating data", Journal of the
Royal Statistical Society A 132(2), 1969).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from scipy import optimize, special

from ratchet.errors import MeasureError
from ratchet.measure.samples import FloatArray

GRID_POINTS = 1201
WIDEST = 8.0
"""No boundary lies further out than this many standard errors (1e-15 of the budget)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Looks:
    """When a run may be looked at, and how sure each look must be.

    A look is `compare(..., confidence=looks.confidence_at(index))`; stopping at the first look that
    answers keeps the chance of a false answer over all looks at `alpha`.
    """

    planned: tuple[int, ...]
    """Rounds (or pairs) gathered by each look, rising; the last is the whole run."""
    alpha: float = 0.05

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.planned, self.planned[1:], strict=False))
        if not self.planned or self.planned[0] < 1 or not rising:
            raise MeasureError(f"looks {self.planned} must be whole numbers from 1 that rise")
        if not 0 < self.alpha < 1:
            raise MeasureError(f"alpha {self.alpha} is not between 0 and 1: 0.05 is usual")

    def confidence_at(self, look_index: int) -> float:
        """The two-sided confidence that look 0, 1, ... must use. MeasureError past the plan."""
        if not 0 <= look_index < len(self.planned):
            raise MeasureError(
                f"look {look_index} was not planned: {len(self.planned)} looks are, from 0"
            )
        bound = boundaries(self.planned, self.alpha)[look_index]
        return float(1 - 2 * special.ndtr(-bound))


def spent(fraction: float, alpha: float) -> float:
    """Error spent by this fraction of the run, both sides: 4 (1 - Phi(z(alpha/4) / sqrt t))."""
    return float(4 * special.ndtr(special.ndtri(alpha / 4) / np.sqrt(fraction)))


@functools.cache
def boundaries(planned: tuple[int, ...], alpha: float) -> tuple[float, ...]:
    """The |z| above which each look may answer."""
    fractions = [count / planned[-1] for count in planned]
    spending = np.diff([0.0, *(spent(fraction, alpha) for fraction in fractions)])
    bounds = [_first_boundary(float(spending[0]))]
    grid, mass = _weighted_normal(bounds[0] * np.sqrt(fractions[0]), np.sqrt(fractions[0]))
    for before, now, budget in zip(fractions, fractions[1:], spending[1:], strict=False):
        step, scale = float(np.sqrt(now - before)), float(np.sqrt(now))
        bounds.append(_next_boundary(grid, mass, step, scale, float(budget)))
        grid, mass = _carry(grid, mass, step, bounds[-1] * scale)
    return tuple(bounds)


def _first_boundary(budget: float) -> float:
    return min(float(-special.ndtri(budget / 2)), WIDEST)


def _next_boundary(
    grid: FloatArray, mass: FloatArray, step: float, scale: float, budget: float
) -> float:
    """The z whose crossing, by runs that had not crossed before, has the budget's chance."""

    def excess(bound: float) -> float:
        edge = bound * scale
        crossing = special.ndtr((grid - edge) / step) + special.ndtr((-grid - edge) / step)
        return float(crossing @ mass) - budget

    return float(optimize.brentq(excess, 0.0, WIDEST)) if excess(WIDEST) < 0 else WIDEST


def _carry(
    grid: FloatArray, mass: FloatArray, step: float, edge: float
) -> tuple[FloatArray, FloatArray]:
    """The sum's distribution at the next look among the runs that still go on."""
    points, weights = _simpson(edge)
    kernel = np.exp(-0.5 * ((points[:, None] - grid[None, :]) / step) ** 2)
    return points, (kernel @ mass) / (step * np.sqrt(2 * np.pi)) * weights


def _weighted_normal(edge: float, scale: float) -> tuple[FloatArray, FloatArray]:
    points, weights = _simpson(edge)
    density = np.exp(-0.5 * (points / scale) ** 2) / (scale * np.sqrt(2 * np.pi))
    return points, density * weights


def _simpson(edge: float) -> tuple[FloatArray, FloatArray]:
    points = np.linspace(-edge, edge, GRID_POINTS)
    weights = np.ones(GRID_POINTS)
    weights[1:-1:2], weights[2:-1:2] = 4, 2
    return points, weights * (points[1] - points[0]) / 3
