"""How far a step is from the machine's limit, in words."""

from __future__ import annotations

from typing import Any

import msgspec

from ratchet.train.turn.comparisons import limit_words
from ratchet.train.turn.optimize_result import StepLimit


def limit(**changes: Any) -> StepLimit:
    parts = [("attention", 0.16, 0.0), ("loss", 0.1, 0.1), ("norm", 0.002, 0.002)]
    categories = [
        {"category": name, "time_s": won, "least_s": 0.0, "unknown_s": unknown, "winnable_s": won}
        for name, won, unknown in parts
    ]
    found = {
        "arm": "ratchet",
        "title": "torch.compile, fp32",
        "step_time_s": 1.0,
        "least_s": 0.74,
        "share": 0.74,
        "most": 1 / 0.74,
        "categories": categories,
    }
    return msgspec.convert(found | changes, StepLimit)


def test_the_limit_says_what_holds_the_rest() -> None:
    said = limit_words(limit())
    assert "torch.compile, fp32 runs at 74% of what this machine can do" in said
    assert "at most 1.4x is left, 62% of it in attention, 38% of it in loss." in said
    assert "without a known bound take 10% of the step" in said
    assert "norm" not in said


def test_without_a_bound_it_says_so() -> None:
    assert "is unknown" in limit_words(limit(most=None))
