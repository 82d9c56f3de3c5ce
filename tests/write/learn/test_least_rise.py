"""A policy is better only if its reward rose on enough of the problems."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ratchet.write.learn.evaluate import Evaluation, ProblemScore, least_rise


def evaluation(rewards: list[float]) -> Evaluation:
    """Return an evaluation of problems with these rewards."""
    problems = tuple(
        ProblemScore(
            problem=f"p{number}",
            family="f",
            answers=6,
            valid=1.0,
            right=1.0,
            fast=0.5,
            reward=reward,
            best=None,
        )
        for number, reward in enumerate(rewards)
    )
    mean = sum(rewards) / len(rewards)
    return Evaluation(
        answers=6 * len(rewards),
        valid=1.0,
        right=1.0,
        fast=0.5,
        reward=mean,
        reward_low=mean,
        reward_high=mean,
        fast_low=0.5,
        fast_high=0.5,
        judged=0,
        problems=problems,
    )


@given(st.lists(st.floats(0, 1), min_size=2, max_size=12), st.floats(0.01, 0.5))
def test_an_equal_rise_on_each_problem_is_sure(rewards: list[float], rise: float) -> None:
    after = evaluation([one + rise for one in rewards])
    assert abs(least_rise(evaluation(rewards), after) - rise) < 1e-9


def test_a_rise_on_one_problem_alone_is_not_sure() -> None:
    before, after = [0.5] * 6, [0.9, 0.45, 0.48, 0.5, 0.49, 0.5]
    assert least_rise(evaluation(before), evaluation(after)) <= 0.0


def test_one_problem_is_never_sure() -> None:
    assert least_rise(evaluation([0.1]), evaluation([0.9])) == 0.0


def test_a_rise_on_all_problems_of_different_size_is_sure() -> None:
    before, after = [0.13, 0.91, 0.64], [0.15, 0.97, 0.70]
    assert least_rise(evaluation(before), evaluation(after)) > 0.0


def test_the_same_rewards_are_no_rise() -> None:
    assert least_rise(evaluation([0.2, 0.7]), evaluation([0.2, 0.7])) == 0.0
