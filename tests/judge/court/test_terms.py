"""A verdict of the ledger answers only what it was asked with."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import msgspec
import pytest

import ratchet
from ratchet.judge.terms import Options, Terms, answers, trial_of
from ratchet.judge.verdict import Verdict

ASKED = Terms(target="gfx942", compared=True)


def said(status: Any, before: Terms, asked: Terms, **changes: Any) -> bool:
    verdict = Verdict(status=status, reason="", isolation="none", kernel_hash="k", problem_hash="p")
    return answers(msgspec.structs.replace(verdict, **changes), trial_of(before, ""), asked)


@pytest.mark.parametrize(
    ("before", "known"),
    [
        (ASKED, True),
        (replace(ASKED, compared=False), False),  # an author's, without the estimate
        (replace(ASKED, target="gfx950"), False),
        (replace(ASKED, against_compile=True), True),
        (replace(ASKED, among=20), True),
    ],
)
def test_a_verdict_under_other_terms_is_given_again(before: Terms, known: bool) -> None:
    assert said("correct", before, ASKED) is known


def test_a_verdict_with_more_than_was_asked_answers() -> None:
    assert said("correct", ASKED, replace(ASKED, compared=False))
    assert said("proven", Terms(compared=False), Terms())
    assert said("proven", Terms(against_compile=True), Terms())
    assert not said("proven", Terms(), Terms(against_compile=True))
    assert not said("proven", Terms(), Terms(among=3))


def test_auto_and_cpu_are_one_device_and_a_gpu_is_another() -> None:
    assert said("proven", Terms(device="cpu"), Terms())
    assert not said("refused", Terms(device="cuda"), Terms())


def test_a_longer_limit_asks_again_only_after_a_timeout() -> None:
    short, long = Terms(time_limit_s=5), Terms(time_limit_s=60)
    assert not said("timed_out", short, long)
    assert said("timed_out", long, short)
    assert said("correct", short, long)


def test_what_was_left_open_is_asked_again() -> None:
    assert not said("unmeasured", Terms(), Terms())
    assert not said("correct", Terms(), Terms(), not_timed="the machine was too noisy")


def test_the_call_shows_every_option() -> None:
    shown = inspect.signature(ratchet.judge).parameters
    assert [*shown] == ["kernel", "problem", "threads", *Options.__annotations__]
    defaults = {name: shown[name].default for name in Options.__annotations__}
    assert Terms.of(**defaults) == Terms()
    assert shown["time_limit_s"].annotation == "float | str"
