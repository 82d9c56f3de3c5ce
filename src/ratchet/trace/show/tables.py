"""The tables of a trace: each described once, for the page and, in brief, for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ratchet.base.show import model as m
from ratchet.base.show.words import (
    ABSENT,
    change_ms,
    milliseconds,
    share_of,
    show_bandwidth,
    show_bytes,
)
from ratchet.trace.show import words
from ratchet.trace.show.figures import roofline_plot
from ratchet.trace.show.names import (
    last_modules,
    short_kernel,
    short_kernels,
    short_line,
    short_shapes,
)

if TYPE_CHECKING:
    from ratchet.trace.answers.report import Report

ROWS = 400  # Rows of a table on the page. `--json` and `--parquet` have all.
NAME, BRIEF_NAME = 90, 44
"""Letters of a kernel's name on the page; on the terminal, where a table must fit 80 columns."""
FITS = 34  # Letters of a name that its column shows; the tooltip has the full name
BRIEF: m.On = "both"
Row = m.TableRow


@dataclass(frozen=True, slots=True)
class _Shown:
    """A row with its rank, and the short names of its table."""

    row: Row
    rank: int | None = None
    names: Mapping[str, str] = field(default_factory=dict)

    def __getattr__(self, name: str) -> object:
        return getattr(self.row, name)


def _named(
    title: str, of: str, show: Callable[[Any, Row], m.Inline], on: m.On = "page"
) -> m.Column:
    """Make a column of names, which the row may tell more of."""
    return m.Column(
        title, lambda row: row, lambda row: show(getattr(row, of), row), look="name", on=on
    )


def _of_kernel(name: str, row: Row) -> m.Inline:
    shown = getattr(row, "names", {}).get(name) or short_kernel(name, NAME)
    return m.Span(shown or ABSENT, full=name if len(shown) > FITS or shown != name else "")


def _of_module(path: str, row: Row) -> m.Inline:
    shown = last_modules(path)
    full = path if shown != path or len(shown) > FITS else ""
    if shown and getattr(row, "modules", 1) > 1:
        shown = f"{shown} ×{row.modules:,}"
    return m.Span(shown or ABSENT, full=full)


def _of_run(names: Sequence[str], row: Row) -> m.Inline:
    shown = ", ".join(short_kernel(name, 28) for name in names[:3])
    more = row.length - min(len(names), 3)
    rest = [f"and {row.length - len(names)} more"] if row.length > len(names) else []
    return m.Span(f"{shown} and {more} more" if more else shown, full="\n".join([*names, *rest]))


def _of_kernels(names: Sequence[str], _: Row) -> m.Inline:
    shown = list(short_kernels(names, 44).values())
    text = ", ".join(shown[:2]) + (f" and {len(shown) - 2} more" if len(shown) > 2 else "")
    return m.Span(text or ABSENT, full="\n".join(names))


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:,.3g}"


kernel = partial(_named, show=_of_kernel)
module = partial(_named, show=_of_module)
shapes = partial(_named, show=lambda text, _: m.Span(short_shapes(text) or ABSENT, full=text))
text = partial(m.Column, show=lambda value: value or ABSENT, on="page")
count = partial(m.Column, show="{:,}".format, look="number", on="page")
decimal = partial(m.Column, show="{:,.1f}".format, look="number", on="page")
figure = partial(m.Column, show=_figure, look="number", on="page")
share = partial(m.Column, show=partial(share_of, whole=1), look="number", on="page")
size = partial(m.Column, show=show_bytes, look="number", on="page")
rate = partial(m.Column, show=show_bandwidth, look="number", on="page")
ms = partial(m.Column, show=milliseconds, look="number", on="page")
sum_ms = partial(m.Column, show=milliseconds, look="sum", on="page")
"""Columns by what they hold, for the page if nothing else is said. The page sums each `sum_ms`."""


def _rate(value: float) -> str:
    return f"{value / 1e12:,.{2 if value < 1e13 else 0}f}" if value else ABSENT


def _extremes(of: str) -> m.Column:
    """Describe the rates of the slowest and the fastest call of a roofline's row."""

    def shown(row: Row) -> str | None:
        each = getattr(row, of) / row.count * 1e9
        if row.count < 2 or not each or not row.shortest:
            return None
        return f"{_rate(each / row.longest)} to {_rate(each / row.shortest)}"

    return m.Column("its calls", shown, on="page", note="the slowest and the fastest call")


@dataclass(frozen=True, slots=True)
class Described:
    """The description of a table: its rows' key, their order, and the columns."""

    key: str
    title: str
    order: str
    columns: Sequence[m.Column]
    on_cpu: Sequence[m.Column] | None = field(default=None)
    """The columns for a trace without device work, if they differ."""
    note: str = ""
    cpu_title: str = ""
    cpu_order: str = ""
    only: str = ""  # A field that must not be 0 for a row to be on the page

    def rows(self, found: Report) -> Sequence[Row]:
        if self.key == "critical_path":
            return found.critical_path.rows
        rows: Sequence[Row] = getattr(found, self.key)
        return rows

    def columns_of(self, on_device: bool) -> Sequence[m.Column]:
        """Return the columns of a trace with device work, or of one without."""
        return self.columns if on_device or self.on_cpu is None else self.on_cpu


# fmt: off
PATH = Described("critical_path", "On the critical path", "time", (
    text("kind", "kind", show=lambda kind: words.PATH[kind]),
    kernel("name", "name", on=BRIEF),
    sum_ms("on the path, ms", "time", on=BRIEF),
    share("share", note="of the window"),
    ms("would give, ms", "gain", on=BRIEF,
       note="the time the window loses if this takes none"),
    count("stretches", "count"),
))
KERNELS = Described("kernels", "Kernels, copies and fills", "total", (
    kernel("name", "name", on=BRIEF),
    text("sort"),
    sum_ms("ms", "total", on=BRIEF),
    share("share", note="of all device work's summed time", on=BRIEF),
    count("count", on=BRIEF),
    ms("mean, ms", "mean"),
    ms("longest, ms", "longest"),
    kernel("launched by", "op"),
    shapes("its shapes", "shapes"),
    module("module", "module"),
    count("unlinked", note="runs that no CPU op in the trace launched"),
))
_OP = (kernel("op", "name", on=BRIEF), shapes("shapes", "shapes"))
_PASS = text("pass", "backward", show=lambda is_backward: "backward" if is_backward else ABSENT)
OPS = Described("ops", "Ops by shapes", "device", (
    *_OP,
    sum_ms("device, ms", "device", on=BRIEF),
    ms("own CPU, ms", "cpu_own", on=BRIEF),
    ms("CPU, ms", "cpu"),
    count("calls", "count", on=BRIEF),
    count("launches"),
    _PASS,
), on_cpu=(
        *_OP,
        sum_ms("own CPU, ms", "cpu_own", on=BRIEF),
        ms("CPU, ms", "cpu"),
        count("calls", "count", on=BRIEF),
        _PASS,
    ),
    cpu_order="cpu_own",
)
_PASSES = (
    ms("forward, ms", "forward"),
    ms("backward, ms", "backward"),
    ms("recompute, ms", "recompute"),
    count("calls"),
)
MODULES = Described(
    "modules",
    "Modules",
    "total",
    (module("module", "path"), ms("device, ms", "total"), *_PASSES),
    on_cpu=(module("module", "path"), ms("own CPU, ms", "total"), *_PASSES),
    note="Callees included.",
)
ROOFLINE = Described("roofline", "Ops against the ceilings", "could_win", (
    kernel("op", "name", on=BRIEF),
    shapes("shapes", "shapes", on=BRIEF),
    text("type", "dtype"),
    text("category"),
    sum_ms("ms", "time", on=BRIEF),
    sum_ms("could win, ms", "could_win", on=BRIEF),
    # Above 1 if the op was faster than its ceiling.
    share("of ceiling", lambda row: row.least / row.time if row.least and row.time else None,
          note="the ceiling's time over the op's"),
    share("of paper", lambda row: row.paper / row.time if row.paper and row.time else None,
          note="the time at the maker's peaks over the op's"),
    text("bound", on=BRIEF),
    figure("TFLOP/s", "flops_per_s", show=_rate),
    _extremes("flops"),
    figure("TB/s", "bytes_per_s", show=_rate),
    _extremes("size_bytes"),
    decimal("FLOP a byte", "intensity"),
    count("calls", "count"),
    share("spread", lambda row: row.spread * row.count / row.time if row.time else None,
          note="standard deviation of the calls' times, over their mean"),
    text("FLOPs, bytes from", lambda row: ", ".join({row.flops_from: 0, row.bytes_from: 0})),
    kernel("kernel", "kernel"),
    text("tile", note="the kernel's tile, instruction set and split, by its name"),
    text("fused", show=lambda ops: ", ".join(ops) or ABSENT, note="ops that Inductor fused"),
    module("module", "module"),
    _named("source", "source", lambda line, row: m.Span(short_line(line) or row.region or ABSENT,
                                                        full=f"{line} {row.region}".strip())),
))
_BY_PHASE = (
    text("category", on=BRIEF),
    ms("ms", "time", on=BRIEF),
    share("share", on=BRIEF),
    ms("forward, ms", "forward", on=BRIEF),
    ms("backward, ms", "backward", on=BRIEF),
    ms("recompute, ms", "recompute"),
    ms("not linked, ms", "unlinked"),
)
CATEGORIES = Described(
    "categories",
    "Work by category",
    "",
    (_BY_PHASE[0], module("module", "module"), text("step"), *_BY_PHASE[1:]),
    note="Summed over streams: of the whole window, then of each step, then of each module with "
    "its callees. A category is that of the op, or else of its kernel.",
)
SEQUENCES = Described("sequences", "Runs of kernels", "could_win", (
    text("under"),
    module("where", "name"),
    _named("kernels", "kernels", _of_run),
    count("length"),
    count("count"),
    sum_ms("ms", "time"),
    ms("could win, ms", "could_win", note="if each run were one kernel"),
    ms("longest, ms", "longest", note="the longest kernel of each run"),
    ms("gaps, ms", "gaps"),
    kernel("mostly", "op"),
), cpu_title="Runs of ops",
    note="Kernels that keep running one after another: under the calls of one op, anywhere on a "
    "stream, or between two products, copies or collectives, where one kernel could replace the "
    "whole run. The three count the same kernels.",
)
COLLECTIVES = Described("collectives", "Collectives", "exposed", (
    text("operation"),
    text("group"),
    count("ranks", lambda row: row.ranks or None),
    size("size", "size_bytes"),
    ms("ms", "duration"),
    sum_ms("exposed, ms", "exposed"),
    rate("algorithm", "algorithm_bandwidth"),
    rate("bus", "bus_bandwidth"),
    kernel("kernel", "kernel"),
))
SHARED = Described("collectives", "Collectives over the ranks", "skew", (
    text("operation"),
    text("group"),
    count("number", "index", note="among the group's, in order of time"),
    size("size", "size_bytes"),
    sum_ms("wire, ms", "wire"),
    rate("bus", "bus_bandwidth", note="over the wire time"),
    sum_ms("skew, ms", "skew", note="from the first rank's beginning to the last one's"),
    ms("end skew, ms", "end_skew"),
    sum_ms("waited, ms", lambda row: sum(row.waiting.values()), note="summed over the ranks"),
    count("last rank", "late"),
))
COMMUNICATION = Described("communication", "Communication", "exposed", (
    _named("collective", "operation", lambda name, row: f"{name} {row.group}".strip(), on=BRIEF),
    count("count", on=BRIEF),
    size("bytes", "size_bytes", on=BRIEF),
    ms("ms", "duration", on=BRIEF),
    ms("exposed", on=BRIEF),
    rate("bus", "bus_bandwidth", on=BRIEF),
))
"""The collectives of an operation and group together, on the terminal."""
MATMULS = Described("matmuls", "Precision of matrix multiplies", "time", (
    kernel("op", "op"),
    text("inputs"),
    text("kernel ran in", "kernel"),
    sum_ms("ms", "time"),
    count("count"),
    kernel("for example", "example"),
))
_MARK = (kernel("mark", "name"), ms("CPU, ms", "cpu"), count("count"))
ANNOTATIONS = Described(
    "annotations",
    "Marks of the code (record_function)",
    "cpu",
    (*_MARK, sum_ms("device, ms", "device"), count("launches")),
    on_cpu=_MARK,
)
COPIES = Described("copies", "Copies and fills by sort", "time", (
    kernel("sort", "name"),
    sum_ms("ms", "time"),
    count("count"),
    size("size", "size_bytes"),
    rate("rate", "bytes_per_s"),
))
STREAMS = Described("streams", "Streams", "busy", (
    count("device"),
    count("stream"),
    sum_ms("busy, ms", "busy"),
    count("pieces of work", "count"),
    count("longest queue", "longest_queue"),
    decimal("mean queue", "mean_queue"),
))
QUEUES = Described("queues", "Full launch queues", "full", (
    count("device"),
    count("stream"),
    count("longest"),
    count("full at", "limit"),
    sum_ms("full, ms", "full"),
    ms("blocked, ms", "blocked", note="a thread was in a launching call"),
), only="full",
    note="Work that was launched and has not started; a captured graph is one piece.",
)
COUNTERS = Described("counters", "Performance counters", "total", (
    kernel("kernel", "kernel"),
    kernel("counter", "counter"),
    kernel("op", "op"),
    count("runs", "count"),
    figure("mean"),
    figure("total"),
))
PAGE = (
    *(PATH, CATEGORIES, KERNELS, OPS, MODULES, ROOFLINE, SEQUENCES, COLLECTIVES, MATMULS),
    *(ANNOTATIONS, COPIES, STREAMS, QUEUES, COUNTERS),
)
CATEGORY_CHANGES = (
    m.Column("category"),
    m.number("before, ms", "before", milliseconds),
    m.number("after, ms", "after", milliseconds),
    m.number("change, ms", "change", change_ms),
)
DIFF = Described("rows", "Ops by module", "", (
    kernel("op", "op", on=BRIEF),
    module("module", "module", on=BRIEF),
    count("modules"),
    ms("before, ms", "before", on=BRIEF),
    ms("after, ms", "after", on=BRIEF),
    sum_ms("change, ms", "change", show=change_ms, on=BRIEF),
    text("state"),
    count("count before", "count_before"),
    count("count after", "count_after"),
    _named("kernels only before", "kernels_before", _of_kernels),
    _named("kernels only after", "kernels_after", _of_kernels),
))
# fmt: on
RANK = count("rank")


def page_tables(ranks: Sequence[Report]) -> list[m.ReportSection]:
    """Return every table of one report, or of several ranks with a column that says which."""
    on_device = any(one.on_device for one in ranks)
    return list(filter(None, (_of_ranks(described, ranks, on_device) for described in PAGE)))


def _of_ranks(
    described: Described, ranks: Sequence[Report], on_device: bool
) -> m.ReportSection | None:
    rows = [_Shown(row, one.rank) for one in ranks for row in described.rows(one)]
    rows = [row for row in rows if not described.only or getattr(row, described.only)]
    if not rows:
        return None
    order = described.order if on_device else described.cpu_order or described.order
    if order:
        rows.sort(key=lambda row: -getattr(row, order))
    several = len(ranks) > 1
    columns = [*([RANK] if several else []), *described.columns_of(on_device)]
    said = described.note
    if described is KERNELS:
        rows = [*_short_names(rows[:ROWS], "name", NAME), *rows[ROWS:]]
    drawn: list[m.ReportBlock | None] = []
    if described is ROOFLINE:
        said = words.ceiling_words(row for one in ranks for row in one.roofline)
        label = "Rate of each op over its intensity, under the ceilings; the table has the numbers"
        if plot := roofline_plot(ranks):
            drawn = [
                m.note(f"The figure shows rank {ranks[0].rank}.") if several else None,
                m.Figure("plot", plot, label, "roofline dots"),
            ]
    title = described.title if on_device else described.cpu_title or described.title
    return m.section(
        title, m.note(said) if said else None, *drawn, *sorting(title, columns, rows), on="page"
    )


def sorting(
    title: str, columns: Sequence[m.Column], rows: Sequence[Row]
) -> tuple[m.ReportBlock, ...]:
    """Return the first rows of a table that sorts and filters, and how many there are more."""
    more = f"{len(rows) - ROWS:,} more rows are in --json and --parquet."
    table = m.ResultTable(columns, rows[:ROWS], label=title, sorts=True)
    return m.blocks(table, m.note(more) if len(rows) > ROWS else None)


def brief(
    title: str, described: Described, rows: Sequence[Row], top: int, on_device: bool = True
) -> m.ReportSection | None:
    """Return the first rows for the terminal, under a title that counts them all."""
    if not rows:
        return None
    counted = f"the first {top} of {len(rows):,}" if len(rows) > top else f"{len(rows):,}"
    return m.section(
        f"{title}: {counted}", brief_table(described, rows[:top], on_device), on="terminal"
    )


def brief_table(described: Described, rows: Sequence[Row], on_device: bool = True) -> m.ResultTable:
    """Return rows for the terminal, with short names that differ from each other.

    A column without any value, such as that of modules in a trace without stacks, is left out.
    """
    columns = [one for one in described.columns_of(on_device) if one.on == BRIEF]
    key = "op" if described is DIFF else "name"
    shown = rows if described is COMMUNICATION else _short_names(rows, key, BRIEF_NAME)
    columns = [
        one
        for one in columns
        if not shown or any(m.text_of(one.cell(row)) != ABSENT for row in shown)
    ]
    return m.ResultTable(columns, shown, on="terminal")


def _short_names(rows: Sequence[Row], key: str, width: int) -> list[_Shown]:
    """Return the rows with names that are short, yet differ from each other."""
    shown = short_kernels((getattr(row, key) for row in rows), width)
    return [_Shown(row, getattr(row, "rank", None), shown) for row in rows]
