"""Traces beside each other: two runs, a trace's calls on this machine, ranks in one file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.base.show import model as m
from ratchet.base.show.figures import from_zero
from ratchet.base.show.words import change_ms, milliseconds, show_bytes, show_ns
from ratchet.trace.show import figures, parts_legend, tables, words

if TYPE_CHECKING:
    from ratchet.trace.compare import Diff
    from ratchet.trace.merge import Merged

RANKS = (
    m.Column("rank"),
    m.number("events", "events", "{:,}".format),
    m.number("moved, ms", "shift", change_ms),
    m.why("trace", "file"),
)


def diff_report(document: Diff, top: int = 10) -> m.ResultReport:
    """Describe what makes the difference of two runs; `top` is of the terminal's rows."""
    before, after = document.before.name, document.after.name
    ranks = len(document.before.ranks)
    return m.ResultReport(
        title=f"{after} against {before}",
        heading=f"{after} against {before}",
        headline=words.diff_headline(document),
        header=m.blocks(
            m.Words(f"Times are summed over {ranks} ranks.", "soft") if ranks > 1 else None,
            m.Words(
                f"Times are of a mean step: {before} holds {document.before.steps} steps and "
                f"{after} {document.after.steps}.",
                "soft",
            )
            if document.before.is_per_step
            else None,
            *(m.Words(fault, "warning") for fault in document.faults),
            m.Tiles(_tiles(document)),
        ),
        sections=m.blocks(
            _change(document),
            _time(document),
            _categories(document),
            _rows(document),
            *_states(document, top),
        ),
    )


def _tiles(document: Diff) -> list[m.Tile]:
    sides = [
        m.Tile(show_ns(side.window), word, "; ".join(filter(None, (side.name, side.device))))
        for word, side in document.sides.items()
    ]
    change = f"{change_ms(document.window_change)} ms"
    return [*sides, m.Tile(change, "change of the window", "the parts below sum to it exactly")]


def _change(document: Diff) -> m.ReportSection:
    work = "Device work" if document.before.on_device else "CPU ops' own time"
    total = ("total", "together", document.window_change)
    parts = [*words.reconciliation(document), total]
    sums = [(title, change_ms(time)) for _, title, time in parts]
    return m.section(
        "What makes the change",
        m.note(
            f"{work} by module and op; bars to the right of zero cost time. Work that overlaps "
            "other work takes no time of the window, so its change counts with the opposite sign."
        ),
        m.Figure(
            "tracks",
            figures.change_bars(parts),
            "Each part of the change; the values stand beside the bars",
            "changes-bars",
        ),
        m.grid(("", "ms"), sums, on="terminal"),
    )


def _time(document: Diff) -> m.ReportSection:
    scale = from_zero([side.window for side in document.sides.values()])
    stacks = [
        figures.window_bar(f"{word}: {side.name}", words.PARTS, side.parts, side.window, scale)
        for word, side in document.sides.items()
    ]
    change = document.parts_change | {"window": document.window_change}
    columns = (
        m.Column("ms", _part),
        *(
            m.number(word, (side.parts | {"window": side.window}).__getitem__, milliseconds)
            for word, side in document.sides.items()
        ),
        m.number("change", change.__getitem__, change_ms),
    )
    table = m.ResultTable(
        columns,
        [*words.PARTS, "window"],
        look="compact",
        marked=lambda part: "ours" if part == "window" else "",
    )
    means = words.PART_MEANS if document.before.on_device else words.ON_CPU_MEANS
    label = "Both windows by part, on one scale; the table has the numbers"
    return m.section(
        "Where the time goes",
        m.Figure("tracks", stacks, label, "stack"),
        parts_legend(means),
        table,
    )


def _part(part: str) -> tuple[m.Span, str] | str:
    return part if part == "window" else (m.Span("", f"key {part}"), words.PARTS[part])


def _categories(document: Diff) -> m.ReportSection | None:
    rows = document.categories
    if not rows:
        return None
    said = "Summed over streams; the changes sum to those of the rows below."
    return m.section(
        "By category", m.note(said), m.ResultTable(tables.CATEGORY_CHANGES, rows, look="compact")
    )


def _rows(document: Diff) -> m.ReportSection | None:
    rows = document.groups
    if not rows:
        return None
    said = m.note(
        "Repeated layers are summed; --json lists each one. Filter for slower, new, gone or "
        "faster. Kernels that both sides ran are not named."
    )
    table = tables.sorting(tables.DIFF.title, tables.DIFF.columns, rows)
    return m.section(tables.DIFF.title, said, *table, on="page")


def _states(document: Diff, top: int) -> list[m.ReportSection | None]:
    found = []
    for state in ("slower", "new", "gone", "faster"):
        rows = [row for row in document.groups if row.state == state]
        found.append(tables.brief(state.capitalize(), tables.DIFF, rows, top))
    return found


def merged_report(document: Merged) -> m.ResultReport:
    """Describe where the merged trace is, and how its ranks were put on one clock."""
    clocks = (
        "The ranks' clocks meet: their times are as recorded."
        if document.aligned
        else "The ranks' clocks do not meet: each begins with the first one's window."
    )
    place = f"written: {document.path} ({show_bytes(document.path.stat().st_size)})"
    header = m.blocks(
        *(m.Words(fault, "warning") for fault in document.faults),
        m.ResultTable(RANKS, document.ranks),
        clocks,
        m.Lines([place], indent=0),
    )
    return m.ResultReport(header=header)
