"""A bisection: the answer, the commits that it may be, and what it rests on."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn

from ratchet.base.show import model as m
from ratchet.base.show.terminal import MovingLine
from ratchet.guard.bisect.bisection import BisectResult
from ratchet.guard.history.show import short_revision

SUSPECTS = (
    m.Column("commit", "revision", short_revision),
    m.number("probability", "probability", lambda share: f"{share:.1%}"),
    m.why("why", lambda one: one.skipped or one.subject),
)
_PHASES = {"ends": "of the endpoints", "search": "in the search", "confirm": "against the parent"}


def bisect_report(result: BisectResult) -> m.ResultReport:
    """Describe the answer, the credible set and what it rests on."""
    counts = ", ".join(f"{count} {_PHASES[name]}" for name, count in result.pairs.items() if count)
    change = ""
    if result.change is not None and result.answer != "not reproduced":
        change = (
            f"from GOOD to BAD the metric changes by {result.change:+.2%} "
            f"[{result.low:+.2%}, {result.high:+.2%}]"
        )
    several = len(result.suspects) > 1 or result.answer == "narrowed"
    earlier = f"{result.resumed_pairs} of these pairs are from an earlier run"
    notes = [f"note: {note}" for note in result.notes]
    header = m.blocks(
        m.Lines([_headline(result)], indent=0),
        change,
        m.ResultTable(SUSPECTS, result.suspects) if several else None,
        m.Words(f"pairs measured: {counts or 'none'}; commits: {result.commits}"),
        earlier if result.resumed_pairs else "",
        m.Lines(notes, indent=0) if notes else None,
    )
    return m.ResultReport(header=header)


def _headline(result: BisectResult) -> str:
    if result.found is not None:
        return (
            f"found: {short_revision(result.found.revision)} {result.found.subject} "
            f"({result.found.probability:.1%}, confirmed against its parent)"
        )
    if result.answer == "narrowed":
        return f"narrowed to {len(result.suspects)} commits: {result.reason}"
    return f"not reproduced: {result.reason}"


class PairProgress(MovingLine):
    """A progress line for a bisection; silent when piped."""

    def __init__(self, commits: int, *, console: Console | None = None) -> None:
        super().__init__(f"{commits} commits: the endpoints", 1.0, BarColumn(), console=console)

        self._so_far = f"{commits} commits"

    def measured(self, phase: str, pairs: int, best: float) -> None:
        """Show a measured pair, and how sure the search is."""
        self._so_far = f"{phase}: {pairs} pairs, the best commit {best:.0%}"
        self.move(self._so_far, best)

    def working(self, words: str) -> None:
        """Show which commit is built or run."""
        self.move(f"{self._so_far}; {words}")
