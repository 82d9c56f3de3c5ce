"""The tables of a trace: each described once, for the page and, in brief, for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ratchet.report import trace_words as words
from ratchet.report.trace_names import last_modules, short_kernel, short_kernels, short_shapes
from ratchet.report.words import ABSENT

ROWS = 400
"""Rows of a table on the page. `--json` and `--parquet` have all."""
NAME, BRIEF_NAME = 90, 44
"""Letters of a kernel's name on the page; on the terminal, where a table must fit 80 columns."""
FITS = 34
"""Letters of a name that its column shows; the tooltip has the full name."""
Row = Mapping[str, Any]
Look = Literal["name", "text", "number", "time"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A text, the value that it sorts by, and the full text behind it."""

    text: str
    value: float | None = None
    full: str = ""


Maker = Callable[[Any, Row], Cell]


def _kernel(name: str, row: Row) -> Cell:
    shown = row.get("shown", {}).get(name) or short_kernel(name, NAME)
    return Cell(text=shown or ABSENT, full=name if len(shown) > FITS or shown != name else "")


def _path(path: str, row: Row) -> Cell:
    shown = last_modules(path)
    full = path if shown != path or len(shown) > FITS else ""
    if shown and row.get("modules", 1) > 1:
        shown = f"{shown} ×{row['modules']:,}"
    return Cell(text=shown or ABSENT, full=full)


def _time(time_ns: float | None, _: Row) -> Cell:
    if time_ns is None:
        return Cell(text=ABSENT)
    return Cell(text=words.milliseconds(time_ns), value=time_ns)


def _figure(value: float, _: Row) -> Cell:
    shown = f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:,.3g}"
    return Cell(text=shown, value=value)


def _attained(least: int, row: Row) -> Cell:
    """Show the ceiling's time over the op's: above 1 if the op was faster than its ceiling."""
    if not least or not row["time"]:
        return Cell(text=ABSENT)
    return Cell(text=words.share_of(least, row["time"]), value=least / row["time"])


def _run(names: Sequence[str], row: Row) -> Cell:
    shown = ", ".join(short_kernel(name, 28) for name in names[:3])
    more = row["length"] - min(len(names), 3)
    rest = [f"and {row['length'] - len(names)} more"] if row["length"] > len(names) else []
    return Cell(text=f"{shown} and {more} more" if more else shown, full="\n".join([*names, *rest]))


def _kernels(names: Sequence[str], _: Row) -> Cell:
    shown = list(short_kernels(names, 44).values())
    text = ", ".join(shown[:2]) + (f" and {len(shown) - 2} more" if len(shown) > 2 else "")
    return Cell(text=text or ABSENT, full="\n".join(names))


def _shown(show: Callable[[Any], str]) -> Maker:
    return lambda value, _: Cell(text=show(value), value=value)


KINDS: dict[str, tuple[Look, Maker]] = {
    "kernel": ("name", _kernel),
    "module": ("name", _path),
    "shapes": ("name", lambda v, _: Cell(text=short_shapes(v) or ABSENT, full=v)),
    "run": ("name", _run),
    "kernels": ("name", _kernels),
    "collective": ("name", lambda v, row: Cell(text=f"{v} {row['group']}".strip())),
    "text": ("text", lambda v, _: Cell(text=v or ABSENT)),
    "path kind": ("text", lambda v, _: Cell(text=words.PATH[v])),
    "pass": ("text", lambda v, _: Cell(text="backward" if v else ABSENT)),
    "count": ("number", _shown(lambda v: f"{v:,}")),
    "ranks": ("number", lambda v, _: Cell(text=f"{v:,}" if v else ABSENT, value=v or None)),
    "one decimal": ("number", _shown(lambda v: f"{v:,.1f}")),
    "figure": ("number", _figure),
    "share": ("number", _shown(lambda v: words.share_of(v, 1))),
    "size": ("number", _shown(words.size)),
    "rate": ("number", _shown(words.bandwidth)),
    "TFLOP/s": ("number", _shown(lambda v: f"{v / 1e12:,.2f}" if v < 1e13 else f"{v / 1e12:,.0f}")),
    "attained": ("number", _attained),
    "ms": ("number", _time),
    "summed ms": ("time", _time),
    "summed change": ("time", _shown(words.change_ms)),
}
"""Kinds of columns: their look, and how they show a value. The page sums each `time`."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: the row's field, its kind, and its title."""

    of: str
    kind: str
    title: str
    note: str = ""
    brief: bool = field(default=False, kw_only=True)
    """Show it on the terminal too."""
    where: Literal["anywhere", "device", "cpu"] = field(default="anywhere", kw_only=True)
    """Show it only for traces with device work, or only for those without."""

    @property
    def look(self) -> Look:
        return KINDS[self.kind][0]

    def cell(self, row: Row) -> Cell:
        return KINDS[self.kind][1](row[self.of], row)


@dataclass(frozen=True, kw_only=True, slots=True)
class Described:
    """The description of a table: its rows' key, their order, and the columns."""

    key: str
    title: str
    order: str
    columns: tuple[Column, ...]
    note: str = ""
    cpu_title: str = ""
    cpu_order: str = ""
    only: str = ""
    """A field that must not be 0 for a row to be on the page."""

    def columns_of(self, on_device: bool) -> list[Column]:
        """Return the columns of a trace with device work, or of one without."""
        left_out = "cpu" if on_device else "device"
        return [column for column in self.columns if column.where != left_out]

    @property
    def texts(self) -> int:
        """The number of text columns that the terminal's table begins with."""
        looks = [column.look for column in self.columns if column.brief]
        return next((i for i, look in enumerate(looks) if look != "name"), len(looks))

    def brief(
        self, rows: Sequence[Row], on_device: bool = True
    ) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return the titles and the rows for the terminal."""
        columns = [column for column in self.columns_of(on_device) if column.brief]
        shown = _short_names(rows, columns[0].of, BRIEF_NAME)
        cells = [tuple(column.cell(row).text for column in columns) for row in shown]
        return tuple(column.title for column in columns), cells


@dataclass(frozen=True, kw_only=True, slots=True)
class PageTable:
    """One table that sorts and filters."""

    key: str
    title: str
    note: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    left_out: int
    """Rows that are not on the page."""


def _table(key: str, title: str, order: str, *columns: Column, **more: str) -> Described:
    return Described(key=key, title=title, order=order, columns=columns, **more)


# fmt: off
PATH = _table(
    "critical_path", "On the critical path", "time",
    Column("kind", "path kind", "kind"),
    Column("name", "kernel", "name", brief=True),
    Column("time", "summed ms", "on the path, ms", brief=True),
    Column("share", "share", "share", "of the window"),
    Column("gain", "ms", "would give, ms", "the time the window loses if this takes none",
    brief=True),
    Column("count", "count", "stretches"),
)
KERNELS = _table(
    "kernels", "Kernels, copies and fills", "total",
    Column("name", "kernel", "name", brief=True),
    Column("sort", "text", "sort"),
    Column("total", "summed ms", "ms", brief=True),
    Column("share", "share", "share", "of all device work's summed time", brief=True),
    Column("count", "count", "count", brief=True),
    Column("mean", "ms", "mean, ms"),
    Column("longest", "ms", "longest, ms"),
    Column("op", "kernel", "launched by"),
    Column("shapes", "shapes", "its shapes"),
    Column("module", "module", "module"),
    Column("unlinked", "count", "unlinked", "runs that no CPU op in the trace launched"),
)
OPS = _table(
    "ops", "Ops by shapes", "device",
    Column("name", "kernel", "op", brief=True),
    Column("shapes", "shapes", "shapes"),
    Column("device", "summed ms", "device, ms", brief=True, where="device"),
    Column("cpu_own", "ms", "own CPU, ms", brief=True, where="device"),
    Column("cpu_own", "summed ms", "own CPU, ms", brief=True, where="cpu"),
    Column("cpu", "ms", "CPU, ms"),
    Column("count", "count", "calls", brief=True),
    Column("launches", "count", "launches", where="device"),
    Column("backward", "pass", "pass"),
    cpu_order="cpu_own",
)
MODULES = _table(
    "modules", "Modules", "total",
    Column("path", "module", "module"),
    Column("total", "ms", "device, ms", where="device"),
    Column("total", "ms", "own CPU, ms", where="cpu"),
    Column("forward", "ms", "forward, ms"),
    Column("backward", "ms", "backward, ms"),
    Column("recompute", "ms", "recompute, ms"),
    Column("calls", "count", "calls"),
    note="Callees included.",
)
ROOFLINE = _table(
    "roofline", "Ops against the ceilings", "could_win",
    Column("name", "kernel", "op", brief=True),
    Column("shapes", "shapes", "shapes", brief=True),
    Column("dtype", "text", "type"),
    Column("time", "ms", "ms", brief=True),
    Column("could_win", "summed ms", "could win, ms", brief=True),
    Column("least", "attained", "of ceiling", "the ceiling's time over the op's"),
    Column("bound", "text", "bound", brief=True),
    Column("flops_per_s", "TFLOP/s", "TFLOP/s"),
    Column("intensity", "one decimal", "FLOP a byte"),
    Column("count", "count", "calls"),
)
SEQUENCES = _table(
    "sequences", "Runs of kernels", "could_win",
    Column("under", "text", "under"),
    Column("name", "module", "where"),
    Column("kernels", "run", "kernels"),
    Column("length", "count", "length"),
    Column("count", "count", "count"),
    Column("time", "summed ms", "ms"),
    Column("could_win", "ms", "could win, ms", "if each run were one kernel"),
    Column("longest", "ms", "longest, ms", "the longest kernel of each run"),
    Column("gaps", "ms", "gaps, ms"),
    Column("op", "kernel", "mostly"),
    cpu_title="Runs of ops",
    note="Kernels that keep running one after another: under the calls of one op, anywhere on a "
    "stream, or between two products, copies or collectives, where one kernel could replace the "
    "whole run. The three count the same kernels.",
)
COLLECTIVES = _table(
    "collectives", "Collectives", "exposed",
    Column("operation", "text", "operation"),
    Column("group", "text", "group"),
    Column("ranks", "ranks", "ranks"),
    Column("size_bytes", "size", "size"),
    Column("duration", "ms", "ms"),
    Column("exposed", "summed ms", "exposed, ms"),
    Column("algorithm_bandwidth", "rate", "algorithm"),
    Column("bus_bandwidth", "rate", "bus"),
    Column("kernel", "kernel", "kernel"),
)
COMMUNICATION = _table(
    "communication", "Communication", "exposed",
    Column("operation", "collective", "collective", brief=True),
    Column("count", "count", "count", brief=True),
    Column("size_bytes", "size", "bytes", brief=True),
    Column("duration", "ms", "ms", brief=True),
    Column("exposed", "ms", "exposed", brief=True),
    Column("bus_bandwidth", "rate", "bus", brief=True),
)
"""The collectives of an operation and group together, on the terminal."""
PAGE = (
    PATH,
    KERNELS,
    OPS,
    MODULES,
    ROOFLINE,
    SEQUENCES,
    COLLECTIVES,
    _table(
    "matmuls", "Precision of matrix multiplies", "time",
    Column("op", "kernel", "op"),
    Column("inputs", "text", "inputs"),
    Column("kernel", "text", "kernel ran in"),
    Column("time", "summed ms", "ms"),
    Column("count", "count", "count"),
    Column("example", "kernel", "for example"),
),
    _table(
    "annotations", "Marks of the code (record_function)", "cpu",
    Column("name", "kernel", "mark"),
    Column("cpu", "ms", "CPU, ms"),
    Column("count", "count", "count"),
    Column("device", "summed ms", "device, ms", where="device"),
    Column("launches", "count", "launches", where="device"),
),
    _table(
    "copies", "Copies and fills by sort", "time",
    Column("name", "kernel", "sort"),
    Column("time", "summed ms", "ms"),
    Column("count", "count", "count"),
    Column("size_bytes", "size", "size"),
    Column("bytes_per_s", "rate", "rate"),
),
    _table(
    "streams", "Streams", "busy",
    Column("device", "count", "device"),
    Column("stream", "count", "stream"),
    Column("busy", "summed ms", "busy, ms"),
    Column("count", "count", "pieces of work"),
    Column("longest_queue", "count", "longest queue"),
    Column("mean_queue", "one decimal", "mean queue"),
),
    _table(
    "queues", "Full launch queues", "full",
    Column("device", "count", "device"),
    Column("stream", "count", "stream"),
    Column("longest", "count", "longest"),
    Column("limit", "count", "full at"),
    Column("full", "summed ms", "full, ms"),
    Column("blocked", "ms", "blocked, ms", "a thread was in a launching call"),
    only="full",
    note="Work that was launched and has not started; a captured graph is one piece.",
),
    _table(
    "counters", "Performance counters", "total",
    Column("kernel", "kernel", "kernel"),
    Column("counter", "kernel", "counter"),
    Column("op", "kernel", "op"),
    Column("count", "count", "runs"),
    Column("mean", "figure", "mean"),
    Column("total", "figure", "total"),
),
)
DIFF = _table(
    "rows", "Ops by module", "",
    Column("op", "kernel", "op", brief=True),
    Column("module", "module", "module", brief=True),
    Column("modules", "count", "modules"),
    Column("before", "ms", "before, ms", brief=True),
    Column("after", "ms", "after, ms", brief=True),
    Column("change", "summed change", "change, ms", brief=True),
    Column("state", "text", "state"),
    Column("count_before", "count", "count before"),
    Column("count_after", "count", "count after"),
    Column("kernels_before", "kernels", "kernels only before"),
    Column("kernels_after", "kernels", "kernels only after"),
)
# fmt: on
RANK = Column("rank", "count", "rank")


def page_tables(ranks: Sequence[Row]) -> list[PageTable]:
    """Return every table of one report, or of several ranks with a column that says which."""
    on_device = any(one["on_device"] for one in ranks)
    found = [_of_ranks(described, ranks, on_device) for described in PAGE]
    return [one for one in found if one is not None]


def diff_table(rows: Sequence[Row]) -> PageTable | None:
    """Return the table of a comparison's groups: repeated modules together."""
    return _page_table(DIFF, rows, DIFF.columns)


def _of_ranks(described: Described, ranks: Sequence[Row], on_device: bool) -> PageTable | None:
    found = [(one, one[described.key]) for one in ranks]
    found = [(one, own["rows"] if isinstance(own, Mapping) else own) for one, own in found]
    rows: list[Row] = [{**row, "rank": one["rank"]} for one, own in found for row in own or ()]
    rows = [row for row in rows if not described.only or row[described.only]]
    order = described.order if on_device else described.cpu_order or described.order
    rows.sort(key=lambda row: -row[order])
    columns = [*([RANK] if len(ranks) > 1 else []), *described.columns_of(on_device)]
    if described is KERNELS:
        rows = _short_names(rows[:ROWS], "name", NAME) + rows[ROWS:]
    note = described.note
    if described is ROOFLINE:
        note = words.ceiling_words(row for one in ranks for row in one["roofline"])
    title = described.title if on_device else described.cpu_title or described.title
    return _page_table(described, rows, columns, title, note)


def _page_table(
    described: Described, rows: Sequence[Row], columns: Sequence[Column], title: str = "",
    note: str = "",
) -> PageTable | None:  # fmt: skip
    if not rows:
        return None
    return PageTable(
        key=described.key,
        title=title or described.title,
        note=note,
        columns=tuple(columns),
        rows=tuple(tuple(column.cell(row) for column in columns) for row in rows[:ROWS]),
        left_out=max(len(rows) - ROWS, 0),
    )


def _short_names(rows: Sequence[Row], key: str, width: int) -> list[Row]:
    """Return the rows with names that are short, yet differ from each other."""
    shown = short_kernels((row[key] for row in rows), width)
    return [{**row, "shown": shown} for row in rows]
