"""Rewards, schedules as text, and the share of replay, as formulas."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_bench import tasks

from ratchet.base.errors import LearnError, RatchetError
from ratchet.base.show.words import parse_share
from ratchet.judge.verdict import Screening
from ratchet.write.learn.bench import (
    RIGHT_ALONE,
    SCATTER,
    advantages,
    credits,
    is_jump,
    noise_of,
    reward_of,
    shared,
)
from ratchet.write.learn.config import LearnConfig
from ratchet.write.learn.languages import ScheduleLanguage, read_schedule, schedule_text
from ratchet.write.learn.tasks import split_names
from ratchet.write.learn.training import ReplayDebt

FAILED = ("invalid", "wrong", "crashed", "timed_out", "refused")


def outcome(status: Any, ratio: float | None = None) -> Screening:
    return Screening(kernel_hash="k", status=status, ratio=ratio)


@given(st.sampled_from(FAILED), st.floats(0.1, 100))
def test_nothing_is_earned_unless_the_kernel_is_right(status: str, ratio: float) -> None:
    assert reward_of(outcome(status, ratio), LearnConfig()) == 0


@given(st.floats(0.01, 100), st.floats(1.0, 10.0))
def test_a_faster_kernel_never_earns_less(ratio: float, factor: float) -> None:
    config = LearnConfig()
    low = reward_of(outcome("screened", ratio), config)
    high = reward_of(outcome("screened", ratio * factor), config)
    assert low is not None and high is not None
    assert RIGHT_ALONE <= low <= high <= 1


def test_cheating_costs_and_what_was_not_measured_does_not_count() -> None:
    config = LearnConfig(cheating=-2.0)
    assert reward_of(outcome("cheating", 9.0), config) == -2.0
    assert reward_of(outcome("unmeasured"), config) is None


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=16))
def test_the_advantages_of_a_group_cancel(rewards: list[float]) -> None:
    assert abs(sum(advantages(rewards))) < 1e-6


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=16), st.floats(0, 1))
def test_what_noise_explains_of_a_group_teaches_nothing(rewards: list[float], noise: float) -> None:
    plain = advantages(rewards)
    shrunk = advantages(rewards, [noise] * len(rewards))
    mean = sum(rewards) / len(rewards)
    variance = sum((one - mean) ** 2 for one in rewards) / len(rewards)
    if variance <= noise**2:
        assert not any(shrunk)
    else:
        share = 1 - noise**2 / variance
        assert shrunk == pytest.approx([share * one for one in plain], abs=1e-6)


@given(st.floats(0.3, 1.0), st.floats(1.01, 3.0))
def test_in_training_slow_and_very_fast_kernels_are_told_apart(slow: float, more: float) -> None:
    plain = LearnConfig(cap=4.0)
    wide = plain.in_training()
    pairs = ((slow / more, slow), (5.0, 5.0 * more))
    for lower, higher in pairs:
        first, second = (outcome("screened", one) for one in (lower, higher))
        assert reward_of(first, plain) == reward_of(second, plain)
        if lower > wide.floor:
            assert (reward_of(first, wide) or 0) < (reward_of(second, wide) or 0)
    emulated = LearnConfig(target="gfx942", language="triton")
    assert emulated.in_training() == emulated


def test_the_noise_of_a_reward_is_that_of_its_screening() -> None:
    log = LearnConfig(cap=4.0)
    assert noise_of(outcome("screened", 2.0), log) == pytest.approx(0.9 * SCATTER / math.log(4.0))
    assert noise_of(outcome("screened", 0.5), log) == 0.0  # no reward moves there
    assert noise_of(outcome("wrong"), log) == 0.0
    emulated = LearnConfig(target="gfx942", language="triton")
    assert noise_of(outcome("screened", 2.0), emulated) == 0.0


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=8), st.floats(0, 1))
def test_equal_kernels_split_a_share_of_their_reward(kernels: list[str], repeats: float) -> None:
    """Together they earn no less than one of them alone, and one alone keeps its reward."""
    found = shared([0.8] * len(kernels), kernels, repeats)
    for kernel in set(kernels):
        own = [one or 0.0 for one, name in zip(found, kernels, strict=True) if name == kernel]
        assert sum(own) == pytest.approx(0.8 * (repeats + (1 - repeats) * len(own)))
        assert len(own) > 1 or own == pytest.approx([0.8])


def test_a_kernel_that_most_gave_can_fall_behind_a_new_one() -> None:
    found = shared([0.55] * 7 + [0.5], ["a"] * 7 + ["b"], 0.25)
    assert found[7] == 0.5 and (found[0] or 0.0) < 0.5


def test_what_earned_nothing_is_not_split() -> None:
    assert shared([0.0, None, -1.0, -1.0], ["a", "a", "b", "b"], 0.5) == [0.0, None, -1.0, -1.0]
    assert shared([0.5, 0.5], [None, None], 0.5) == [0.5, 0.5]


def test_an_answer_earns_a_share_of_what_it_led_to() -> None:
    assert credits([1.0], 0.4) == [1.0]
    assert credits([0.0, 1.0, 0.5], 0.4) == pytest.approx([0.4 * (1.0 + 0.4 * 0.5), 1.2, 0.5])
    assert credits([None, 1.0], 0.4) == [None, 1.0]
    assert credits([0.5, None], 0.4) == [0.5, None]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"target": "gfx942"}, "needs kernels in Triton"),
        (
            {"target": "gfx942", "language": "triton", "rival": "compile"},
            "leave out --against-compile",
        ),
        ({"turns": 9}, "turns 9 is out of range: give 1 to 8"),
        ({"discount": 2.0}, "discount 2.0 is out of range: give 0 to 1"),
        ({"repeats": -0.5}, "repeats -0.5 is out of range: give 0 to 1"),
    ],
)
def test_settings_that_contradict_each_other_are_one_line(values: Any, words: str) -> None:
    with pytest.raises(LearnError, match=words):
        LearnConfig(**values)


def test_a_jump_is_far_above_what_was() -> None:
    calm = [0.30, 0.32, 0.29, 0.31, 0.30, 0.33, 0.30]
    assert not is_jump(calm, 0.4)
    assert is_jump(calm, 0.9)
    assert not is_jump(calm[:3], 0.9)


@given(st.integers(0, 2**31))
def test_a_schedule_is_read_as_it_was_written(seed: int) -> None:
    for task in tasks():
        schedule = task.space.draw(random.Random(seed))
        assert read_schedule(schedule_text(schedule), task.space.options) == schedule


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no list of choices"),
        ("grain=2048", "no list of choices"),
        ("grain=2048;grain=2048;", "a choice twice"),
        ("grain=2048;", "other choices than"),
        ("nonsense", "no list of choices"),
    ],
)
def test_anything_else_is_invalid(text: str, why: str) -> None:
    task = tasks()[0]
    found = ScheduleLanguage().read(task, text)
    assert isinstance(found, str) and why in found


def test_a_value_that_a_choice_lacks_is_invalid() -> None:
    task = tasks()[0]
    text = schedule_text(task.space.first()[0]).replace("grain=2048", "grain=4")
    found = ScheduleLanguage().read(task, text)
    assert isinstance(found, str) and "grain cannot be 4" in found


@given(st.floats(0.001, 0.5), st.lists(st.integers(1, 5000), min_size=1, max_size=80))
def test_replay_is_its_share_of_the_tokens_to_within_a_window(
    share: float, steps: list[int]
) -> None:
    debt = ReplayDebt(share, 64)
    replayed = 64 * sum(debt.due(tokens) for tokens in steps)
    wanted = share * (sum(steps) + replayed)
    assert abs(replayed - wanted) <= 64


@pytest.mark.parametrize(("text", "share"), [("1%", 0.01), ("0.05", 0.05), ("0", 0.0)])
def test_a_share_is_a_part_or_percent(text: str, share: float) -> None:
    assert parse_share(text, "replay") == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "1 %%", "nan", "95%", "-1%"])
def test_a_share_out_of_range_is_one_line(text: str) -> None:
    with pytest.raises(RatchetError, match=r"replay .* is no share"):
        parse_share(text, "replay", below=0.9)


def test_no_family_is_on_both_sides() -> None:
    train, unseen = split_names(["losses", "updates"], ["movement"], 3, 0)
    assert set(train) == {"losses", "updates"} and set(unseen) == {"movement"}
    assert (train, unseen) == split_names(["losses", "updates"], ["movement"], 3, 0)
    with pytest.raises(LearnError, match="both trained on and unseen"):
        split_names(["losses"], ["losses"], 3, 0)
    with pytest.raises(LearnError, match="unknown family 'gemm'"):
        split_names(["gemm"], ["losses"], 3, 0)
