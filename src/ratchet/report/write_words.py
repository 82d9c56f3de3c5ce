"""Describe a writing run in words, the same on the terminal and on its page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ratchet.authors.author import Answer
from ratchet.authors.files import untimed
from ratchet.authors.result import WritingResult
from ratchet.report.verdict_words import show_status
from ratchet.report.words import show_interval, show_ratio, show_time

STOPPED: Final[Mapping[str, str]] = {
    "budget": "the search used its share of the budget",
    "floor": "the best kernel is as fast as this machine's memory and arithmetic allow",
    "no more proposals": "the authors had nothing more to propose",
    "candidates": "the number of candidates was reached",
    "recalled": "the ledger holds a kernel that an earlier run proved",
    "interrupted": "the run was interrupted; --resume continues it",
}
ESTIMATE: Final = (
    "Screened speed-ups are estimates. The best of many estimates is too high, so the kernel that "
    "was chosen is timed again by a verdict of its own, and only that figure is a result."
)

UNTIMED: Final = (
    "This kernel was not timed: there is no GPU here. Right kernels were ranked by their static "
    "profile for AMD, which is an estimate. Judge it on a GPU before you use it."
)


def headline(result: WritingResult) -> str:
    """Return the run in one sentence."""
    best = result.best
    if best is None:
        if result.running:
            return f"Writing kernels for {result.problem}"
        if result.stopped == "interrupted":
            return f"Interrupted before a verdict on a kernel for {result.problem}"
        return f"No right kernel for {result.problem}"
    ratio = (best.verdict.get("speedup") or {}).get("vs_reference")
    if result.status == "proven" and ratio:
        interval = show_interval(ratio["low"], ratio["high"])
        return (
            f"Proven: a kernel for {result.problem} runs {show_ratio(ratio['ratio'])} as fast as "
            f"the reference ({interval})"
        )
    said = f"{show_status(result.status).capitalize()}: {best.reason}"
    return said if untimed(best) else f"Not proven. {said}"


def stop_words(result: WritingResult) -> str:
    """Return why the search ended, and what it took."""
    taken = (
        f"{result.screened} kernel{'' if result.screened == 1 else 's'} screened in "
        f"{show_time(result.spent_s)} of {show_time(result.budget_s)}"
    )
    if result.stopped is None:
        return taken
    why = STOPPED[result.stopped]
    return why if result.stopped == "recalled" else f"{taken}; {why}"


def author_words(result: WritingResult) -> list[tuple[str, str, str, str]]:
    """Return each author's row: name, proposals, how many were right, and a remark."""
    return [
        (one.name, str(one.proposals), str(one.right), one.note or _nothing(one.proposals))
        for one in result.authors
    ]


def show_row_status(row: Answer) -> str:
    """Format a row's status: `screened`, or a verdict's."""
    return show_status(row.status)


def _nothing(proposals: int) -> str:
    return "" if proposals else "no proposals"
