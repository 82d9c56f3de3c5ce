"""A comparison: the answer first, then each metric, then what to do next."""

from __future__ import annotations

from collections.abc import Mapping

from ratchet.base import Json
from ratchet.base.measure.contest import CompareOutcome
from ratchet.base.measure.metrics import MetricAnswer
from ratchet.base.show import model as m
from ratchet.base.show.words import show_bytes, show_rate, show_time

SHORT_ID = 12
LONG_TITLE = 72
METRICS = (
    m.Column("metric", lambda one: _metric(one)),
    m.number("A", lambda one: _figure(one, one.baseline)),
    m.number("B", lambda one: _figure(one, one.new)),
    m.number("A / B", lambda one: f"{one.ratio:.3f}"),
    m.number("interval", lambda one: f"{one.low:.3f} to {one.high:.3f}"),
    m.number("A/A floor", lambda one: f"{one.floor.low:.3f} to {one.floor.high:.3f}"),
    m.number("answer", lambda one: one.answer if one.metric.decides else f"({one.answer})"),
)
WHERE = (
    m.Column("module", lambda row: row["module"] or "-"),
    m.Column("op"),
    m.number("A", "baseline_s", show_time),
    m.number("B", "new_s", show_time),
    m.number("more", lambda row: row["new_s"] - row["baseline_s"], show_time),
)


def comparison_report(outcome: CompareOutcome) -> m.ResultReport:
    """Describe the answer, each metric, and what to do next."""
    answers = outcome.answers
    again = f"raw samples in the ledger; next: ratchet repro {short(outcome.turn or '')}"
    return m.ResultReport(
        headline=headline(outcome),
        header=m.blocks(
            f"A (baseline): {_title(outcome.titles[0])}",
            f"B (new):      {_title(outcome.titles[1])}",
        ),
        sections=m.blocks(
            m.section("Metrics", m.ResultTable(METRICS, answers), _timed(outcome))
            if answers
            else None,
            *notes(outcome),
            _traces(outcome.details.get("traces")),
            m.Lines([again], indent=0) if outcome.turn else None,
        ),
    )


def _timed(outcome: CompareOutcome) -> str:
    first = outcome.answers[0]
    return (
        f"{first.pairs} pairs in {first.launches} launches, {show_time(outcome.spent_s)}; "
        f"intervals of {first.confidence:.1%}. Above 1, B is better."
    )


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


def _traces(traces: Mapping[str, Json] | None) -> m.ReportSection | str:
    if traces is None:
        return ""
    if "failed" in traces:
        return f"No trace shows where: {traces['failed']}"
    title = f"Where: {show_time(abs(traces['window_change_s']))} a step in the traces"
    return m.section(title, m.ResultTable(WHERE, traces["slower"]))


def _figure(one: MetricAnswer, value: float) -> str:
    show = {"s": show_time, "bytes": show_bytes}.get(one.metric.unit, show_rate)
    return show(value)


def _metric(one: MetricAnswer) -> str:
    better = " (higher is better)" if one.metric.higher_is_better else ""
    return f"{one.metric.name.replace('_', ' ')}{better}"


def _change(one: MetricAnswer) -> float:
    """Return by how much B is slower (above 0) or faster, as a share of A."""
    return 1 / one.ratio - 1


def _duration(seconds: float) -> str:
    if seconds < 600:
        return f"{max(30, round(seconds)):d}s"
    return f"{seconds / 60:.0f}m" if seconds < 7200 else f"{seconds / 3600:.1f}h"


def _title(title: str) -> str:
    return title if len(title) <= LONG_TITLE else f"{title[:LONG_TITLE]}..."
