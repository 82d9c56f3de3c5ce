"""A verdict in words, the same on the terminal and on its page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.report.words import ABSENT, show_interval, show_ratio

RIGHT = ("proven", "correct")
MEANING = {
    "proven": "right on every case, and faster than the reference",
    "correct": "right on every case, but not proven to be faster",
    "wrong": "an answer is not right",
    "cheating": "it tried to get by without doing the work",
    "crashed": "its process died",
    "timed_out": "it was too slow",
    "refused": "the problem or the source cannot be judged",
    "unmeasured": "the judge could not do its work; this is no answer on the kernel",
    "unanswered": "no kernel answers this problem",
    "not_reached": "the run ended before it",
}
RIVALS = {"vs_reference": "the reference (eager)", "vs_compile": "torch.compile"}


def show_status(status: str) -> str:
    """A status as a person reads it."""
    return status.replace("_", " ")


def tone(status: str) -> str:
    """How a status is coloured: `yes`, `no`, or nothing where it is neither."""
    if status == "proven":
        return "yes"
    return "" if status in ("correct", "unanswered", "not_reached") else "no"


def show_speedup(ratio: Mapping[str, float] | None) -> str:
    """A ratio with its interval; a dash where it was not measured."""
    if ratio is None:
        return ABSENT
    return f"{show_ratio(ratio['ratio'])} ({show_interval(ratio['low'], ratio['high'])})"


def show_confidence(ratio: Mapping[str, float | None]) -> str:
    """`98.3 % interval`; `interval` in a verdict from before its confidence was kept."""
    confidence = ratio.get("confidence")
    return "interval" if confidence is None else f"{100 * confidence:.3g} % interval"


def measured_speedups(verdict: Mapping[str, Any]) -> list[tuple[str, Mapping[str, float]]]:
    """Each rival that the kernel was timed against, and the ratio."""
    speedup = verdict.get("speedup") or {}
    return [(title, speedup[key]) for key, title in RIVALS.items() if speedup.get(key)]


def short_hash(hash: str) -> str:
    """The first digits of a hash, enough to find it in the ledger."""
    return hash[:12]
