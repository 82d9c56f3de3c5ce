"""A page for each series, with its plot and changes, and one for each incident."""

from __future__ import annotations

import math
from typing import Final

from ratchet.base.show import model as m
from ratchet.base.show.words import show_value
from ratchet.guard.history import AnalysedSeries, HistorySeries, Shift
from ratchet.guard.history.incidents import Incident
from ratchet.guard.history.plot import MOST_POINTS, series_plot, shift_words, whole_plot
from ratchet.guard.history.segments import LEAST_SEGMENT
from ratchet.guard.history.show import LEGEND, among_words, state_cell, tone_of
from ratchet.guard.site.facts import SiteFacts, left_out
from ratchet.guard.site.links import clipped, moment

MOST_RESULTS: Final = 300  # Rows of a series' table
MOST_AT_ONCE: Final = 300  # Results that one look takes in: more are also drawn squeezed
MOST_KEYS: Final = 300  # Series in an incident's table


def series_page(facts: SiteFacts, one: AnalysedSeries) -> m.ResultReport:
    """Describe a series: where its level is, what moved it, and its newest results."""
    series, count = one.series, len(one.series.values)
    plots = left_out("results", min(count, MOST_POINTS), count, "; they are the newest")
    label = clipped(series.key).text
    plot = series_plot(one, facts.names) if count else None
    drawn = m.Figure("plot", plot, label, "points")
    wide = plot is not None and count > MOST_AT_ONCE
    whole = m.Figure("plot", whole_plot(plot), label, "points dense") if plot and wide else None
    return m.ResultReport(
        title=clipped(series.title).text,
        heading="series",
        headline=(clipped(series.title), ": ", _state(one)),
        header=m.blocks(
            m.Facts(
                [
                    ("measured on", facts.device(series.device)),
                    ("level now", show_value(one.level, series.unit)),
                    ("better is", f"{series.better}"),
                    ("results", f"{count:,}{_not_finite(series)}"),
                    ("commits", f"{len(set(series.revisions)):,}"),
                ]
            )
        ),
        sections=m.blocks(
            m.section("Results", m.Figure("legend", LEGEND), whole, drawn, plots) if plot else None,
            _changes(facts, one),
            _results(facts, series),
        ),
    )


def _not_finite(series: HistorySeries) -> str:
    return f", and {series.left_out:,} that are no finite number" if series.left_out else ""


def _state(one: AnalysedSeries) -> m.Span:
    if not one.shifts:
        count = len(one.series.values)
        few = "too few results to tell" if count else "no finite result"
        return m.Span(few if count < 2 * LEAST_SEGMENT else "no change")
    last = one.shifts[-1]
    kind = "regressed" if one.regressed else last.kind
    return m.Span(f"{kind}, last change {shift_words(last)}", f"ink-{tone_of(one)}")


def _changes(facts: SiteFacts, one: AnalysedSeries) -> m.ReportSection:
    series = one.series

    def incident(shift: Shift) -> m.Span:
        id = facts.names.get((series.key, shift.index), "")
        return facts.links.to("incident", id, id)

    def between(shift: Shift) -> m.Inline:
        ends = dict.fromkeys(series.revisions[at] for at in (shift.first, shift.last))
        if len(ends) < 2:
            return ""
        first, last = (facts.links.commit(end) for end in ends)
        return (first, " to ", last)

    columns = (
        m.Column("change", lambda s: m.Span(s.kind, f"chip {s.kind}")),
        m.number("by", shift_words),
        m.Column("commit", lambda s: facts.links.commit(series.revisions[s.index])),
        m.Column("may be any of", between),
        m.Column("date (UTC)", lambda s: moment(series.times[s.index])),
        m.number("before", lambda s: show_value(s.before, series.unit)),
        m.number("after", lambda s: show_value(s.after, series.unit)),
        m.Column("incident", incident),
    )
    table = m.ResultTable(columns, list(reversed(one.shifts)))
    few = f"A change of a level needs {LEAST_SEGMENT} results on each side."
    none = "No change was found." if len(series.values) >= 2 * LEAST_SEGMENT else few
    return m.section("What changed", table if one.shifts else none)


def _results(facts: SiteFacts, series: HistorySeries) -> m.ReportSection | None:
    count = len(series.values)
    rows = list(range(count - 1, -1, -1))[:MOST_RESULTS]
    if not rows:
        return None

    def interval(at: int) -> str:
        low, high = float(series.lows[at]), float(series.highs[at])
        if not (math.isfinite(low) and math.isfinite(high)):
            return ""
        return f"{show_value(low, series.unit)} to {show_value(high, series.unit)}"

    columns = (
        m.Column("commit", lambda at: facts.links.commit(series.revisions[at])),
        m.Column("date (UTC)", lambda at: moment(series.times[at])),
        m.number("value", lambda at: show_value(float(series.values[at]), series.unit)),
        m.number("interval", interval),
        m.Column("environment", lambda at: environment(facts, series.environments[at])),
    )
    more = left_out(
        "results", len(rows), count, "; ratchet history export writes all of them to a file"
    )
    table = m.ResultTable(columns, rows, look="compact")
    return m.section("Newest results", table, more)


def environment(facts: SiteFacts, software: str) -> m.Span:
    """Return the versions behind a fingerprint, or the name that a file gave."""
    known = facts.software.get(software, {})
    said = ", ".join(f"{name} {known[name]}" for name in ("torch", "python") if known.get(name))
    return clipped(said or software, full=software if said else "")


def incident_page(facts: SiteFacts, one: Incident) -> m.ResultReport:
    """Describe an incident: its commit, every series that regressed with it, and its life."""
    near = among_words(one)
    steps = [step for step in facts.events if step.incident == one.id]
    columns = (
        m.name("series", lambda each: facts.series_link(each.key)),
        m.number("change", lambda each: shift_words(each.shift)),
        m.Column("level now", lambda each: "back near the one before" if each.back else "not back"),
    )
    life = (
        m.Column("when", lambda step: moment(step.at)),
        m.Column("what", lambda step: step.event.replace("_", " ")),
        m.why("note", lambda step: clipped(step.note)),
    )
    table = m.ResultTable(columns, one.series[:MOST_KEYS])
    nothing = "Later results show no change at this commit."
    return m.ResultReport(
        title=f"incident {one.id}",
        heading="incident",
        headline=(f"Incident {one.id[:40]} is ", state_cell(one.state)),
        header=m.blocks(
            m.Facts(
                [
                    ("commit", (facts.links.commit(one.revision), f" {near}" if near else "")),
                    ("committed", moment(one.committed_at)),
                    ("note", clipped(one.note) if one.note else "none"),
                ]
            )
        ),
        sections=m.blocks(
            m.section(
                "What got slower",
                table if one.series else nothing,
                left_out("series", len(table.rows), len(one.series)),
            ),
            m.section(
                "What became of it",
                m.ResultTable(life, steps) if steps else "",
                m.note(
                    f"ratchet history acknowledge {one.id[:40]} and ratchet history resolve "
                    f"{one.id[:40]} change its state."
                ),
            ),
        ),
    )
