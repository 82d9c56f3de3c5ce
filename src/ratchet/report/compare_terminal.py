"""A comparison on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rich.progress import SpinnerColumn
from rich.text import Text

from ratchet.measure.contest import CompareOutcome
from ratchet.measure.metrics import MetricAnswer
from ratchet.report.console import heading, make_console, table, verbatim
from ratchet.report.progress import MovingLine
from ratchet.report.words import show_bytes, show_rate, show_time

SHORT_ID = 12
LONG_TITLE = 72


class CompareProgress(MovingLine):
    """A moving line on a terminal, and silence in a pipe."""

    def __init__(self) -> None:
        super().__init__("starting", 1, SpinnerColumn(), console=None)


def print_comparison(outcome: CompareOutcome) -> None:
    """Print the answer first, then each metric, then what to do next."""
    console = make_console()
    console.print(Text(headline(outcome), style="bold"))
    console.print(f"A (baseline): {_short(outcome.titles[0])}")
    console.print(f"B (new):      {_short(outcome.titles[1])}")
    if outcome.answers:
        console.print()
        columns = ("metric", "A", "B", "A / B", "interval", "A/A floor", "answer")
        console.print(table(columns, (_row(one) for one in outcome.answers)))
        first = outcome.answers[0]
        console.print()
        console.print(
            f"{first.pairs} pairs in {first.launches} launches, {show_time(outcome.spent_s)}; "
            f"intervals of {first.confidence:.1%}. Above 1, B is better."
        )
    for line in notes(outcome):
        console.print(line)
    _print_traces(outcome.details.get("traces"))
    if outcome.turn:
        verbatim(console, [f"raw samples in the ledger; next: ratchet repro {short(outcome.turn)}"])
    for warning in outcome.warnings:
        print(f"ratchet: {warning}", file=sys.stderr)


def short(turn: str) -> str:
    """Return the part of an identity that is enough to name it."""
    return turn[:SHORT_ID]


def headline(outcome: CompareOutcome) -> str:
    """Say the answer in one line."""
    if not outcome.answers:
        return "undecided: the budget has no room for six pairs"
    deciding = [one for one in outcome.answers if one.metric.decides]
    worst = min(deciding, key=lambda one: one.ratio)
    answer = {1: "slower", 3: "undecided"}.get(outcome.exit_code, worst.answer)
    what = "" if worst.metric.name == "time" else f" in {worst.metric.name}"
    percent = abs(_change(worst))
    if answer == "undecided":
        limit = f" by more than {100 * outcome.allowed:.3g}%" if outcome.allowed else ""
        text = f"undecided{what}: B may or may not be slower{limit}"
        cause = f": {worst.why}" if worst.why else ""
        return f"{text} (between {worst.low:.3f} and {worst.high:.3f} times A's speed){cause}"
    if answer == "equivalent":
        return f"equivalent{what}: B differs from A by less than the noise or the budget"
    return f"{answer}{what}: B is {percent:.1%} {'worse' if worst.ratio < 1 else 'better'} than A"


def notes(outcome: CompareOutcome) -> list[str]:
    """Return lines on the budget, the batches, and instructions."""
    found = []
    more = [one.more_pairs for one in outcome.answers if one.metric.decides and one.more_pairs]
    if outcome.needed_s is not None and outcome.exit_code == 3:
        pairs = f"about {max(more):,} more pairs" if more else "a longer run"
        budget = _duration(outcome.needed_s)
        found.append(f"To decide it takes {pairs}: --budget {budget}")
    elif outcome.exit_code == 3:
        found.append(
            "The difference is too small to be decided here. To accept small ones, give a "
            "regression budget: --fail-if-slower 2%"
        )
    batches = outcome.details.get("batches") or []
    sizes = [f"{one['per_batch']:,} {one['unit']}" for one in batches if one.get("per_batch")]
    if len(set(sizes)) == 2:
        found.append(f"A step is not the same work: A has {sizes[0]} in a batch, B {sizes[1]}.")
    counts = outcome.details.get("instructions")
    if counts:
        found.append(
            f"instructions of {counts['of']} (no time): A {counts['baseline']:,}, "
            f"B {counts['new']:,}, A / B {counts['ratio']:.4f}"
        )
    return found


def _print_traces(traces: Mapping[str, Any] | None) -> None:
    if traces is None:
        return
    console = make_console()
    if "failed" in traces:
        console.print(f"No trace shows where: {traces['failed']}")
        return
    heading(console, f"Where: {show_time(abs(traces['window_change_s']))} a step in the traces")
    rows = [
        (row["module"] or "-", row["op"], show_time(row["baseline_s"]), show_time(row["new_s"]),
         show_time(row["new_s"] - row["baseline_s"]))
        for row in traces["slower"]
    ]  # fmt: skip
    console.print(table(("module", "op", "A", "B", "more"), rows, left=2))


def _row(one: MetricAnswer) -> tuple[str, ...]:
    show = {"s": show_time, "bytes": show_bytes}.get(one.metric.unit, show_rate)
    interval = f"{one.low:.3f} to {one.high:.3f}"
    floor = f"{one.floor.low:.3f} to {one.floor.high:.3f}"
    answer = one.answer if one.metric.decides else f"({one.answer})"
    name = one.metric.name.replace("_", " ")
    name = f"{name} (higher is better)" if one.metric.higher_is_better else name
    return name, show(one.baseline), show(one.new), f"{one.ratio:.3f}", interval, floor, answer


def _change(one: MetricAnswer) -> float:
    """Return by how much B is slower (above 0) or faster, as a share of A."""
    return 1 / one.ratio - 1


def _duration(seconds: float) -> str:
    if seconds < 600:
        return f"{max(30, round(seconds)):d}s"
    return f"{seconds / 60:.0f}m" if seconds < 7200 else f"{seconds / 3600:.1f}h"


def _short(title: str) -> str:
    return title if len(title) <= LONG_TITLE else f"{title[:LONG_TITLE]}..."
