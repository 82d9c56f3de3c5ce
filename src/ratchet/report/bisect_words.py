"""The terminal's words of `ratchet bisect`."""

from __future__ import annotations

from ratchet.guard.bisect.bisection import BisectResult
from ratchet.report.console import make_console, table
from ratchet.report.history_words import short_revision


def print_bisect(result: BisectResult) -> None:
    """Print the answer, the credible set and what it rests on."""
    console = make_console()
    console.print(_headline(result), soft_wrap=True)
    if result.change is not None and result.answer != "not reproduced":
        console.print(
            f"from GOOD to BAD the metric changes by {result.change:+.2%} "
            f"[{result.low:+.2%}, {result.high:+.2%}]"
        )
    if len(result.suspects) > 1 or result.answer == "narrowed":
        rows = [
            (short_revision(one.revision), f"{one.probability:.1%}", one.skipped or one.subject)
            for one in result.suspects
        ]
        console.print(table(("commit", "probability", "why"), rows))
    counts = ", ".join(f"{count} {_PHASES[name]}" for name, count in result.pairs.items() if count)
    console.print(f"pairs measured: {counts or 'none'}; commits: {result.commits}")
    if result.resumed_pairs:
        console.print(f"{result.resumed_pairs} of these pairs are from an earlier run")
    for note in result.notes:
        console.print(f"note: {note}", soft_wrap=True)


_PHASES = {"ends": "of the endpoints", "search": "in the search", "confirm": "against the parent"}


def _headline(result: BisectResult) -> str:
    if result.found is not None:
        return (
            f"found: {short_revision(result.found.revision)} {result.found.subject} "
            f"({result.found.probability:.1%}, confirmed against its parent)"
        )
    if result.answer == "narrowed":
        return f"narrowed to {len(result.suspects)} commits: {result.reason}"
    return f"not reproduced: {result.reason}"
