"""A shared, noisy machine, simulated: the times of two arms in paired rounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ratchet.base.measure import Sample


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """How the machine misbehaves; all effects are relative to the step's time."""

    noise: float = 0.02
    """Standard deviation from one run to the next."""
    spikes: float = 0.03
    """Share of runs that take 30 % longer on average."""
    drift: float = 0.1
    """Standard deviation of the slope over a launch; a random walk of a tenth of it is added."""
    bursts: float = 0.05
    """Chance per run that another job starts (1.2 to 2 times slower, four runs on average)."""
    launch: float = 0.01
    """How much the same arm differs from one start of its process to the next."""


def simulate(
    rng: np.random.Generator,
    machine: Machine,
    *,
    experiments: int,
    launches: int,
    rounds: int,
    speedups: tuple[float, ...] = (1.0, 1.0),
) -> NDArray[np.float64]:
    """Times [experiment, arm, launch, round] in seconds, in the order that real rounds have."""
    arms, slots = len(speedups), rounds * len(speedups)
    shape = (experiments, launches, slots)
    log_time = _drift(rng, machine, shape) + _bursts(rng, machine, shape)
    log_time += rng.normal(0, machine.noise, shape)
    log_time += (rng.random(shape) < machine.spikes) * rng.exponential(0.3, shape)
    by_position = log_time.reshape(experiments, launches, rounds, arms)
    by_arm = np.take_along_axis(by_position, _positions(rng, by_position.shape), axis=-1)
    by_arm += rng.normal(0, machine.launch, (experiments, launches, 1, arms))
    by_arm -= np.log(speedups)
    return np.exp(np.moveaxis(by_arm, -1, 1))


def to_samples(
    times_s: NDArray[np.float64],
    names: tuple[str, ...],
    *,
    first_launch: int = 0,
    first_round: int = 0,
) -> list[Sample]:
    """The samples of one experiment from its times [arm, launch, round]."""
    return [
        Sample(
            arm=names[arm],
            launch=first_launch + launch,
            round=first_round + index,
            position=0,
            iterations=1,
            wall_time_s=float(time_s),
            cpu_time_s=float(time_s),
        )
        for (arm, launch, index), time_s in np.ndenumerate(times_s)
    ]


def _drift(
    rng: np.random.Generator, machine: Machine, shape: tuple[int, int, int]
) -> NDArray[np.float64]:
    slope = rng.normal(0, machine.drift, (*shape[:2], 1)) * np.linspace(0, 1, shape[2])
    return slope + np.cumsum(rng.normal(0, machine.drift / 10, shape), axis=-1)


def _bursts(
    rng: np.random.Generator, machine: Machine, shape: tuple[int, int, int]
) -> NDArray[np.float64]:
    height = np.log(rng.uniform(1.2, 2.0, shape[:2]))
    busy, result = np.zeros(shape[:2], dtype=bool), np.zeros(shape)
    for slot in range(shape[2]):
        draw = rng.random(shape[:2])
        busy = np.where(busy, draw > 0.25, draw < machine.bursts)
        result[..., slot] = busy * height
    return result


def _positions(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.intp]:
    """Where each arm ran in each round: a random order, then the same reversed."""
    orders = np.argsort(rng.random(shape), axis=-1)
    count = shape[-2] // 2
    orders[..., 1 : 2 * count : 2, :] = shape[-1] - 1 - orders[..., 0 : 2 * count : 2, :]
    return orders
