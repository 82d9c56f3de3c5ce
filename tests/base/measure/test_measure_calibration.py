"""How often the answers are wrong on a simulated noisy machine, and how often they come at all.

Seeds are fixed, so these rates do not vary from run to run. docs/design/measure.md has the wider
table.
"""

from __future__ import annotations

import os
from collections import Counter

import numpy as np
import pytest
from simulated_machine import Machine, simulate, to_samples

from ratchet.base.measure.estimate import aa_floor, bootstrap_medians, compare

EXPERIMENTS = 400 if os.environ.get("RATCHET_TEST") == "all" else 200
RESAMPLES = 300
ARMS = ("a", "b", "twin")


def answers(
    speedup: float, *, launches: int, rounds: int, machine: Machine, floor: bool, seed: int = 5
) -> Counter[str]:
    times_s = simulate(
        np.random.default_rng(seed),
        machine,
        experiments=EXPERIMENTS,
        launches=launches,
        rounds=rounds,
        speedups=(1.0, speedup, 1.0)[: 3 if floor else 2],
    )
    counted: Counter[str] = Counter()
    for index, one in enumerate(times_s):
        samples = to_samples(one, ARMS)
        found = compare(
            samples,
            baseline="a",
            new="b",
            floor=aa_floor(samples, "a", "twin", resamples=RESAMPLES) if floor else None,
            resamples=RESAMPLES,
            seed=index,
        )
        counted[found.answer] += 1
    return counted


@pytest.mark.parametrize("launch_effect", [0.0, 0.01, 0.03])
def test_three_launches_rarely_answer_falsely(launch_effect: float) -> None:
    found = answers(1.0, launches=3, rounds=20, machine=Machine(launch=launch_effect), floor=False)
    assert found["faster"] + found["slower"] <= 0.08 * EXPERIMENTS
    assert abs(found["faster"] - found["slower"]) <= 0.04 * EXPERIMENTS


def test_plain_percentiles_would_not_do() -> None:
    """The machine is nasty enough to show why the interval is not the bootstrap's own."""
    times_s = simulate(
        np.random.default_rng(5), Machine(launch=0.03), experiments=200, launches=3, rounds=20
    )
    log_ratios = np.log(times_s[:, 0] / times_s[:, 1])
    wrong = 0
    for index, launches in enumerate(log_ratios):
        low, high = np.quantile(bootstrap_medians(list(launches), 300, index), [0.025, 0.975])
        wrong += not low <= 0 <= high
    assert wrong > 0.15 * 200


def test_five_launches_rarely_answer_falsely() -> None:
    found = answers(1.0, launches=5, rounds=10, machine=Machine(launch=0.02), floor=False)
    assert found["faster"] + found["slower"] <= 0.08 * EXPERIMENTS


def test_two_launches_rarely_answer_falsely() -> None:
    found = answers(1.0, launches=2, rounds=20, machine=Machine(launch=0.03), floor=False)
    assert found["faster"] + found["slower"] <= 0.08 * EXPERIMENTS


def test_one_launch_is_right_about_that_launch() -> None:
    found = answers(1.0, launches=1, rounds=20, machine=Machine(launch=0.0), floor=False)
    assert found["faster"] + found["slower"] <= 0.08 * EXPERIMENTS


def test_the_floor_makes_false_answers_rarer_still() -> None:
    found = answers(1.0, launches=3, rounds=20, machine=Machine(launch=0.02), floor=True)
    assert found["faster"] + found["slower"] <= 0.05 * EXPERIMENTS


def test_a_gain_of_five_percent_is_found_most_of_the_time() -> None:
    machine = Machine(launch=0.005)
    found = answers(1.05, launches=3, rounds=20, machine=machine, floor=True)
    assert found["faster"] >= 0.8 * EXPERIMENTS
    assert found["slower"] == 0


def test_a_loss_of_five_percent_is_found_most_of_the_time() -> None:
    machine = Machine(launch=0.005)
    found = answers(1 / 1.05, launches=3, rounds=20, machine=machine, floor=True)
    assert found["slower"] >= 0.8 * EXPERIMENTS
    assert found["faster"] == 0
