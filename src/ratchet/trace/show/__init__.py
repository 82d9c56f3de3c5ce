"""Traces in words, tables and figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from ratchet.base.show import model as m
from ratchet.base.show.words import milliseconds, sentence, share_of, show_bytes, show_ns
from ratchet.trace.advice import advise
from ratchet.trace.answers.report import Report, report
from ratchet.trace.ranks import Ranks
from ratchet.trace.show import figures, tables, words

if TYPE_CHECKING:
    from ratchet.trace.advice import Advice
    from ratchet.trace.analysis import Identity
    from ratchet.trace.answers.kernels import OpRow
    from ratchet.trace.answers.memory import MemoryUse
    from ratchet.trace.read.columns import Trace

STEPS = 60  # Number of steps drawn: the first
Traced = Ranks | Report
_BRIEF_STEPS = 8
_ROOFLINES = 5
_PATH_ROWS = 5
_SUMMED = ("device", "cpu_own", "count")


STEP = (
    m.Column("step", "label"),
    m.number("window, ms", "window", milliseconds),
    *(m.number(title, part, milliseconds) for part, title in words.PARTS.items()),
    m.number("overlap", "overlap", "{:.2%}".format, on="page"),
)


def whole_report(trace: Trace) -> m.ResultReport:
    """Describe a trace that has no report yet, for a notebook."""
    return trace_report(report(trace))


def trace_report(document: Traced, top: int = 10) -> m.ResultReport:
    """Describe a trace, or several ranks; `top` is the number of rows on the terminal."""
    several = isinstance(document, Ranks)
    ranks = document.reports if isinstance(document, Ranks) else (document,)
    first = ranks[0]
    title = f"{len(ranks)} ranks" if several else first.name
    advice = _advice(ranks)
    faults = [*document.faults]
    if several:
        faults += [f"{one.name}: {fault}" for one in ranks for fault in one.faults]
    return m.ResultReport(
        title=f"trace of {title}",
        heading=f"trace of {title}",
        headline=words.headline(document),
        header=m.blocks(
            m.Words(words.ranks_words(ranks) if several else words.source_words(first), "soft"),
            *(m.Words(fault, "warning") for fault in faults),
            m.Tiles(_tiles(document.identity, first)),
        ),
        sections=m.blocks(
            _time(document.identity, ranks, several),
            replace(advice, on="page"),
            _across(document) if isinstance(document, Ranks) else None,
            _lanes(ranks),
            _path(ranks, top),
            _series(ranks),
            _idle(document.identity.idle, ranks),
            *tables.page_tables(ranks),
            _memory(ranks),
            *_brief(first, top, several),
            _also(ranks),
            replace(advice, on="terminal"),
        ),
    )


def _tiles(found: Identity, first: Report) -> list[m.Tile]:
    times, means = found.times, words.part_means(first)
    return [
        m.Tile(
            (m.Span("", f"key {part}"), share_of(times[part], found.window)),
            title,
            f"{show_ns(times[part])}; {means[part]}",
        )
        for part, title in words.PARTS.items()
    ]


def _time(found: Identity, ranks: Sequence[Report], several: bool) -> m.ReportSection:
    first = ranks[0]
    title = "all ranks" if several else "whole window"
    whole = figures.window_bar(title, words.PARTS, found.times, found.window)
    steps = figures.step_bars(first) if len(first.steps) > 1 and not several else []
    stacks = figures.rank_bars(ranks) if several else steps[:STEPS]
    goes = f" A step goes {first.steps_are}." if first.steps and not several else ""
    return m.section(
        "Where the time goes",
        m.note("The four parts sum to the window to the nanosecond."),
        f"The window is {first.window_is}{', of each rank' if several else ''}.{goes}",
        words.overlap_words(found),
        m.Figure(
            "tracks", [whole], "The whole window by part; the tiles above have the numbers", "stack"
        ),
        m.Figure("tracks", stacks, "Each step or rank by part; the table has the numbers", "stack")
        if stacks
        else None,
        m.note(f"{len(steps) - STEPS} more steps are in --json.") if len(steps) > STEPS else None,
        parts_legend(words.part_means(first)),
        *(
            m.section(
                f"steps of rank {one.rank}",
                m.Figure("tracks", figures.step_bars(one)[:STEPS], "Each step by part", "stack"),
                closed=True,
                on="page",
            )
            for one in ranks
            if several and len(one.steps) > 1
        ),
        *(_steps(first.steps) if steps else ()),
    )


def parts_legend(means: Mapping[str, str]) -> m.Figure:
    """Return the colours of a window's parts, and what they mean."""
    return m.Figure("legend", [(part, said, means[part]) for part, said in words.PARTS.items()])


def _steps(steps: Sequence[Identity]) -> list[m.ReportSection]:
    left = len(steps) - _BRIEF_STEPS
    shown = [*steps[: _BRIEF_STEPS - 1], steps[-1]] if left > 0 else steps
    more = f"{left} more steps are in --json and on the page."
    return [
        m.section("Steps", m.ResultTable(STEP, shown), more if left > 0 else "", on="terminal"),
        m.section("in numbers", m.ResultTable(STEP, steps), closed=True, on="page"),
    ]


def _advice(ranks: Sequence[Report]) -> m.ReportSection:
    having: dict[str, list[str]] = defaultdict(list)
    largest: dict[str, tuple[Advice, int]] = {}
    for one in ranks:
        for finding in advise(one):
            having[finding.name].append(str(one.rank))
            known = largest.get(finding.name)
            if known is None or finding.gain >= known[0].gain:
                largest[finding.name] = finding, one.identity.window
    found: list[m.ReportSection] = []
    for finding, window in sorted(largest.values(), key=lambda one: -one[0].gain):
        gain, own = finding.gain, having[finding.name]
        title = f"{len(found) + 1}. {finding.name}: up to {show_ns(gain)}"
        title += f" ({share_of(gain, window)} of the window)"
        if len(ranks) > 1:
            title += f", on rank{'s' if len(own) > 1 else ''} {', '.join(own)}"
        said = f"{sentence(finding.evidence)}. {sentence(finding.remedy)}."
        lever = m.Lines(words.lever_lines(finding)) if finding.levers else None
        found.append(m.section(title, said, lever))
    return m.section(
        "What could be won",
        m.note("Each gain is an upper bound, and gains overlap: they do not add up."),
        *found,
        "" if found else words.nothing_found(ranks),
    )


def _across(found: Ranks) -> m.ReportSection:
    columns = (
        m.Column("rank"),
        *(replace(one, of=attrgetter(f"identity.{one.key}")) for one in STEP[1:]),
        m.number("waited for others, ms", lambda one: found.waiting[one.rank], milliseconds),
        m.Column("trace", "name", on="page"),
    )
    return m.section(
        "Between the ranks",
        m.note(
            "Runs that overlap in time on all ranks are one collective. Its wire time is the "
            "shortest of its runs; the rest of each rank's run is waiting for the last rank to "
            "arrive."
        ),
        *words.across_words(found),
        m.ResultTable(columns, found.reports),
        m.section(
            tables.SHARED.title,
            *tables.sorting(
                tables.SHARED.title,
                tables.SHARED.columns,
                sorted(found.collectives, key=lambda row: -row.skew),
            ),
            closed=True,
            on="page",
        )
        if found.collectives
        else None,
    )


def _lanes(ranks: Sequence[Report]) -> m.ReportSection | None:
    lanes = figures.lanes(ranks)
    if lanes is None:
        return None
    first, several = ranks[0], len(ranks) > 1
    said = [
        f"The height of a lane is its busy share of each of {first.timeline.bins} bins.",
        "" if several else "Streams that hold less than 0.05% of the window are not drawn.",
    ]
    if len(lanes.steps) > 1:
        whose = f" of rank {first.rank}" if several else ""
        said.append(f"Lines are the borders of the steps{whose}.")
    if several:
        said.append(
            "All ranks stand on one clock."
            if lanes.aligned
            else "The ranks' clocks do not overlap: each begins at its own window."
        )
    figure = m.Figure("lanes", lanes, "Busy time of each lane over the window")
    return m.section("When", m.note(" ".join(filter(None, said))), figure, on="page")


def _path(ranks: Sequence[Report], top: int) -> m.ReportSection | None:
    times = figures.path_times(ranks)
    total = sum(times.values())
    if not total:
        return None
    colour = figures.COLOURS.get
    kinds = (
        m.Column("kind", lambda kind: (m.Span("", f"key {colour(kind, kind)}"), words.PATH[kind])),
        m.number("ms", times.__getitem__, milliseconds),
        m.number("share", lambda kind: share_of(times[kind], total)),
        m.Column("which is", words.PATH_MEANS.__getitem__, on="page"),
    )
    several = len(ranks) > 1
    own = " Each rank has its own path; waiting for another rank counts as part of a collective."
    named = [row for row in ranks[0].critical_path.rows if row.name]
    return m.section(
        "The critical path: what the window's length follows from",
        m.note(
            "The chain of CPU work, launches, device work and waits: each stretch waited for the "
            "one before it. Its kinds sum to the window to the nanosecond. Only work on this path "
            f"can shorten the window.{own if several else ''}"
        ),
        m.Figure(
            "tracks",
            figures.path_bars(ranks, STEPS),
            "The critical path by kind; the table has the numbers",
            "stack",
        ),
        m.ResultTable(kinds, [kind for kind, time in times.items() if time], look="compact"),
        m.section(
            "Longest on the path",
            tables.brief_table(tables.PATH, named[: min(top, _PATH_ROWS)]),
            on="terminal",
        )
        if named
        else None,
        on="page" if several else "both",
    )


def _series(ranks: Sequence[Report]) -> m.ReportSection | None:
    first = ranks[0]
    lanes = figures.series_lanes(first)
    if lanes is None:
        return None
    of_rank = f", of rank {first.rank}" if len(ranks) > 1 else ""
    said = (
        "How many pieces of work each stream had waiting, the most in each bin, and how fast each "
        f"sort of copy moved{of_rank}. Each lane has its own scale."
    )
    if first.queues and first.queues[0].limit:
        limit = first.queues[0].limit
        said += f" A queue that is full ({limit:,} pieces) holds the launching thread up."
    figure = m.Figure("lanes", lanes, "Queue lengths and copy rates over the window")
    return m.section("Queues and copies over time", m.note(said), figure, on="page")


def _idle(total: int, ranks: Sequence[Report]) -> m.ReportSection | None:
    first, several = ranks[0], len(ranks) > 1
    if not total or not first.on_device:
        return None

    def share(one: Report, cause: str) -> str:
        return share_of(getattr(one.idle, cause), one.identity.idle)

    columns = [m.Column("cause", words.IDLE.__getitem__)]
    for one in ranks:
        whose = f"rank {one.rank}, " if several else ""
        columns += [
            m.number(f"{whose}ms", partial(getattr, one.idle), milliseconds),
            m.number(f"{whose}share", partial(share, one)),
        ]
    columns.append(m.Column("which means", words.IDLE_MEANS.__getitem__))
    return m.section(
        "Why the device was idle",
        "" if first.launches.count else words.NO_LAUNCHES,
        m.ResultTable(columns, list(words.IDLE), look="compact"),
        on="page" if several else "both",
    )


def _memory(ranks: Sequence[Report]) -> m.ReportSection | None:
    plot = figures.memory_plot(ranks)
    if plot is None:
        return None
    label = "Allocated memory over the recording; the legend has the peaks"
    return m.section(
        "Memory",
        m.note("Memory that the allocator had handed out, with the highest point of each stretch."),
        m.Figure("plot", plot, label, "curves"),
        *(
            m.note(_at_peak(one.memory, f" of rank {one.rank}" if len(ranks) > 1 else ""))
            for one in ranks
            if one.memory
        ),
        on="page",
    )


def _at_peak(memory: MemoryUse, of_rank: str) -> str:
    amounts = ", ".join(
        f"{show_bytes(amount)} from {category}"
        for category, amount in memory.at_peak.items()
        if amount
    )
    churn = f"{show_bytes(memory.churn_bytes)} were allocated and freed again in the recording."
    return f"At the peak{of_rank}: {amounts}. {churn}"


def _brief(first: Report, top: int, several: bool) -> list[m.ReportSection | m.Words | None]:
    """Return the first rows of the tables that the terminal shows; of several ranks, the first."""
    kernels = tables.brief(tables.KERNELS.title, tables.KERNELS, first.kernels, top)
    rows = words.communication_rows(first.collectives)
    communication = tables.brief("Communication", tables.COMMUNICATION, rows, top)
    if several:
        said = f"These are of rank {first.rank}; --rank N shows another."
        return [kernels, communication, m.Words(said, on="terminal")]
    known = [row for row in first.roofline if row.least]
    title = f"Against the ceilings of {known[0].ceiling}" if known else ""
    ops = tables.brief("Ops", tables.OPS, _ops_by_name(first), top, first.on_device)
    least = tables.brief(title, tables.ROOFLINE, known, min(top, _ROOFLINES))
    of_all = [row for row in first.categories if not (row.step or row.module)]
    phases = [one for one in tables.CATEGORIES.columns if one.on == tables.BRIEF]
    kinds = m.section(
        tables.CATEGORIES.title, m.ResultTable(phases, of_all) if of_all else None, on="terminal"
    )
    return [kinds, kernels, ops, communication, least]


def _ops_by_name(found: Report) -> list[OpRow]:
    """Sum the ops of all shapes."""
    sums: dict[str, OpRow] = {}
    for row in found.ops:
        if known := sums.get(row.name):
            row = replace(row, **{of: getattr(known, of) + getattr(row, of) for of in _SUMMED})
        sums[row.name] = row
    return sorted(sums.values(), key=lambda row: (-row.device, -row.cpu_own))


def _also(ranks: Sequence[Report]) -> m.ReportSection | None:
    if len(ranks) > 1:
        parts = [
            m.section(f"rank {one.rank}", m.Facts([*words.facts(one), *words.reasons(one)]))
            for one in ranks
        ]
        return m.section("Also", *parts, on="page")
    found, reasons = words.facts(ranks[0]), words.reasons(ranks[0])
    facts = m.Facts(found) if found else None
    why = m.Facts(reasons, on="page") if reasons else None
    return m.section("Also", facts, why) if found or reasons else None
