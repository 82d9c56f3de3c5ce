"""A verdict of the ledger answers only what it was asked with."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from ratchet import __version__
from ratchet.ledger.verdicts import Terms, _answers

ASKED = Terms(target="gfx942", compared=True)


def trial(terms: Terms) -> dict[str, Any]:
    return {"ratchet": __version__, **asdict(terms)}


@pytest.mark.parametrize(
    ("before", "answers"),
    [
        (ASKED, True),
        (replace(ASKED, compared=False), False),  # an author's, without the estimate
        (replace(ASKED, target="gfx950"), False),
        (replace(ASKED, against_compile=True), False),
        (replace(ASKED, among=20), True),
    ],
)
def test_a_verdict_under_other_terms_is_given_again(before: Terms, answers: bool) -> None:
    assert _answers("correct", trial(before), ASKED) is answers


def test_a_verdict_with_more_than_was_asked_answers() -> None:
    assert _answers("correct", trial(ASKED), replace(ASKED, compared=False))
    on_the_clock = Terms(compared=False)
    assert _answers("proven", trial(on_the_clock), Terms())


def test_a_longer_limit_asks_again_only_after_a_timeout() -> None:
    short, long = Terms(time_limit_s=5), Terms(time_limit_s=60)
    assert not _answers("timed_out", trial(short), long)
    assert _answers("timed_out", trial(long), short)
    assert _answers("correct", trial(short), long)
    assert not _answers("unmeasured", trial(long), long)
