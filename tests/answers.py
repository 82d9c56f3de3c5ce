"""What tests ask of a verdict where they ask only whether the answers were right."""

from __future__ import annotations

from typing import Final

from ratchet.judge.verdict import Verdict

RIGHT: Final = ("proven", "correct")


def is_right_answer(status: str, reason: str) -> bool:
    """Whether every output was found right; a busy machine's clock may be doubted all the same.

    That a right kernel is also proven or found slower is asked where launches are enough for it.
    """
    return status in RIGHT or (status == "unmeasured" and reason.startswith("right, but"))


def is_right(verdict: Verdict) -> bool:
    return is_right_answer(verdict.status, verdict.reason)


def assert_right(verdict: Verdict) -> None:
    assert is_right(verdict), (verdict.status, verdict.reason)
