"""Describe a verdict in words, the same on the terminal and on its page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.report.words import ABSENT, show_interval, show_moment, show_ratio

MEANING = {
    "proven": "right on every case, and faster than the reference",
    "correct": "right on every case, but not proven to be faster",
    "wrong": "an answer is wrong",
    "cheating": "it tried to pass without doing the work",
    "crashed": "its process died",
    "timed_out": "it was too slow",
    "refused": "the problem or the source cannot be judged",
    "unmeasured": "the judge could not finish; this says nothing about the kernel",
    "unanswered": "there is no kernel for this problem",
    "not_reached": "the run ended before this problem",
}
RIVALS = {"vs_reference": "the reference (eager)", "vs_compile": "torch.compile"}


def show_status(status: str) -> str:
    """Format a status for people."""
    return status.replace("_", " ")


def tone(status: str) -> str:
    """Return a status's tone for colouring: `yes`, `no`, or empty for neither."""
    if status == "proven":
        return "yes"
    return "" if status in ("correct", "unanswered", "not_reached") else "no"


def show_speedup(ratio: Mapping[str, float] | None) -> str:
    """Format a ratio with its interval; a dash if it was not measured."""
    if ratio is None:
        return ABSENT
    return f"{show_ratio(ratio['ratio'])} ({show_interval(ratio['low'], ratio['high'])})"


def show_confidence(ratio: Mapping[str, float | None]) -> str:
    """Format the confidence as `98.3 % interval`; old verdicts without one give `interval`."""
    confidence = ratio.get("confidence")
    return "interval" if confidence is None else f"{100 * confidence:.3g} % interval"


def measured_speedups(verdict: Mapping[str, Any]) -> list[tuple[str, Mapping[str, float]]]:
    """Return each rival that the kernel was timed against, with the ratio."""
    speedup = verdict.get("speedup") or {}
    return [(title, speedup[key]) for key, title in RIVALS.items() if speedup.get(key)]


def recalled_words(judged_at: str) -> str:
    """Say that a verdict is not of this run."""
    return f"from the ledger, judged {show_moment(judged_at)}; not judged again"


def short_hash(hash: str) -> str:
    """Return a hash's first digits, enough to find it in the ledger."""
    return hash[:12]
