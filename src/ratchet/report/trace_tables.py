"""The tables of a trace's page: columns, cells as text, and the values that they sort by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ratchet.report import trace_words as words
from ratchet.report.trace_names import last_modules, short_kernel, short_kernels, short_shapes
from ratchet.report.trace_path import PATH
from ratchet.report.words import ABSENT

ROWS = 400
NAME = 90
"""Letters of a kernel's name at most."""
"""Rows of a table on the page: the first in its order. `--json` and `--parquet` have all."""
FITS = 34
"""Letters of a name that its column shows; a longer one is cut, and whole in its title."""
Row = Mapping[str, Any]
Look = Literal["name", "text", "number", "time"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One column; of a `time` the page sums what the filter leaves."""

    title: str
    look: Look = "number"
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """What stands there, what it sorts by, and what it says in full."""

    text: str
    value: float | None = None
    full: str = ""


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


Maker = Callable[[Row], Cell]
Shape = Sequence[tuple[Column, Maker]]


def make_table(
    key: str, title: str, rows: Sequence[Row], shape: Shape, note: str = ""
) -> PageTable | None:
    """The first rows as cells; None where there is no row."""
    if not rows:
        return None
    return PageTable(
        key=key,
        title=title,
        note=note,
        columns=tuple(column for column, _ in shape),
        rows=tuple(tuple(make(row) for _, make in shape) for row in rows[:ROWS]),
        left_out=max(len(rows) - ROWS, 0),
    )


def page_tables(ranks: Sequence[Row]) -> list[PageTable]:
    """Every table of one report, or of several ranks with a column that says which."""
    several = len(ranks) > 1
    on_device = any(one["on_device"] for one in ranks)
    rank = [(Column(title="rank"), _number("rank"))] if several else []

    def table(key: str, title: str, order: str, shape: Shape, note: str = "") -> PageTable | None:
        rows = [{**row, "rank": one["rank"]} for one in ranks for row in one[key] or ()]
        rows.sort(key=lambda row: -row[order])
        if key == "kernels":
            shown = short_kernels((row["name"] for row in rows[:ROWS]), NAME)
            rows = [{**row, "shown": shown[row["name"]]} for row in rows[:ROWS]] + rows[ROWS:]
        return make_table(key, title, rows, [*rank, *shape], note)

    device = "device, ms" if on_device else "own CPU, ms"
    ceilings = words.ceiling_words(row for one in ranks for row in one["roofline"])
    made = [
        path_table(ranks),
        table("kernels", "Kernels, copies and fills", "total", _KERNELS),
        table("ops", "Ops by shapes", "device" if on_device else "cpu_own", _ops(on_device)),
        table("modules", "Modules", "total", _modules(device), "Callees included."),
        table("roofline", "Ops against the ceilings", "could_win", _ROOFLINE, ceilings),
        table("sequences", _runs(on_device), "could_win", _SEQUENCES, _SEQUENCE_NOTE),
        table("collectives", "Collectives", "exposed", _COLLECTIVES),
        table("matmuls", "Precision of matrix multiplies", "time", _PRECISION),
        table("annotations", "Marks of the code (record_function)", "cpu", _marks(on_device)),
        table("copies", "Copies and fills by sort", "time", _COPIES),
        table("streams", "Streams", "busy", _STREAMS),
        queue_table(ranks),
        table("counters", "Performance counters", "total", _COUNTERS),
    ]
    return [one for one in made if one is not None]


def time_cell(time_ns: int) -> Cell:
    return Cell(text=words.milliseconds(time_ns), value=time_ns)


def change_cell(time_ns: int) -> Cell:
    return Cell(text=words.change_ms(time_ns), value=time_ns)


def name_cell(name: str, shown: str | None = None) -> Cell:
    shown = short_kernel(name, NAME) if shown is None else shown
    return Cell(text=shown or ABSENT, full=name if len(shown) > FITS or shown != name else "")


def text_cell(text: str) -> Cell:
    return Cell(text=text or ABSENT)


def count_cell(value: int | None) -> Cell:
    return Cell(text=ABSENT if value is None else f"{value:,}", value=value)


def _time(key: str) -> Maker:
    return lambda row: time_cell(row[key])


def _name(key: str) -> Maker:
    return lambda row: name_cell(row[key])


def _text(key: str) -> Maker:
    return lambda row: text_cell(row[key])


def _number(key: str) -> Maker:
    return lambda row: count_cell(row[key])


def _share(key: str) -> Maker:
    return lambda row: Cell(text=words.share_of(row[key], 1), value=row[key])


def _size(key: str) -> Maker:
    return lambda row: Cell(text=words.size(row[key]), value=row[key])


def _bandwidth(key: str) -> Maker:
    return lambda row: Cell(text=words.bandwidth(row[key]), value=row[key])


def _shapes(row: Row) -> Cell:
    shown = short_shapes(row["shapes"])
    return Cell(text=shown or ABSENT, full=row["shapes"])


def _path(key: str) -> Maker:
    def make(row: Row) -> Cell:
        shown = last_modules(row[key])
        return Cell(
            text=shown or ABSENT, full=row[key] if shown != row[key] or len(shown) > FITS else ""
        )

    return make


def _flops(row: Row) -> Cell:
    rate = row["flops_per_s"]
    shown = f"{rate / 1e12:,.2f}" if rate < 1e13 else f"{rate / 1e12:,.0f}"
    return Cell(text=shown, value=rate)


def _attained(row: Row) -> Cell:
    """The ceiling's time over the op's; above 1 where the op was faster than its ceiling."""
    if not row["least"] or not row["time"]:
        return Cell(text=ABSENT)
    share = row["least"] / row["time"]
    return Cell(text=words.share_of(share, 1), value=share)


_KERNELS: Shape = (
    (Column(title="name", look="name"), lambda row: name_cell(row["name"], row["shown"])),
    (Column(title="sort", look="text"), _text("sort")),
    (Column(title="ms", look="time"), _time("total")),
    (Column(title="share", note="of all device work's summed time"), _share("share")),
    (Column(title="count"), _number("count")),
    (Column(title="mean, ms"), lambda row: time_cell(row["mean"])),
    (Column(title="longest, ms"), _time("longest")),
    (Column(title="launched by", look="name"), _name("op")),
    (Column(title="its shapes", look="name"), _shapes),
    (Column(title="module", look="name"), _path("module")),
    (Column(title="unlinked", note="runs that no CPU op here launched"), _number("unlinked")),
)
_ROOFLINE: Shape = (
    (Column(title="op", look="name"), _name("name")),
    (Column(title="shapes", look="name"), _shapes),
    (Column(title="type", look="text"), _text("dtype")),
    (Column(title="ms"), _time("time")),
    (Column(title="could win, ms", look="time"), _time("could_win")),
    (Column(title="of ceiling", note="the ceiling's time over the op's"), _attained),
    (Column(title="bound", look="text"), _text("bound")),
    (Column(title="TFLOP/s"), _flops),
    (
        Column(title="FLOP a byte"),
        lambda row: Cell(text=f"{row['intensity']:,.1f}", value=row["intensity"]),
    ),
    (Column(title="calls"), _number("count")),
)
_COLLECTIVES: Shape = (
    (Column(title="operation", look="text"), _text("operation")),
    (Column(title="group", look="text"), _text("group")),
    (Column(title="ranks"), lambda row: count_cell(row["ranks"] or None)),
    (Column(title="size"), _size("size_bytes")),
    (Column(title="ms"), _time("duration")),
    (Column(title="exposed, ms", look="time"), _time("exposed")),
    (Column(title="algorithm"), _bandwidth("algorithm_bandwidth")),
    (Column(title="bus"), _bandwidth("bus_bandwidth")),
    (Column(title="kernel", look="name"), _name("kernel")),
)
_PRECISION: Shape = (
    (Column(title="op", look="name"), _name("op")),
    (Column(title="inputs", look="text"), _text("inputs")),
    (Column(title="kernel ran in", look="text"), _text("kernel")),
    (Column(title="ms", look="time"), _time("time")),
    (Column(title="count"), _number("count")),
    (Column(title="for example", look="name"), _name("example")),
)
_COPIES: Shape = (
    (Column(title="sort", look="name"), _name("name")),
    (Column(title="ms", look="time"), _time("time")),
    (Column(title="count"), _number("count")),
    (Column(title="size"), _size("size_bytes")),
    (Column(title="rate"), _bandwidth("bytes_per_s")),
)
_STREAMS: Shape = (
    (Column(title="device"), _number("device")),
    (Column(title="stream"), _number("stream")),
    (Column(title="busy, ms", look="time"), _time("busy")),
    (Column(title="pieces of work"), _number("count")),
    (Column(title="longest queue"), _number("longest_queue")),
    (
        Column(title="mean queue"),
        lambda row: Cell(text=f"{row['mean_queue']:,.1f}", value=row["mean_queue"]),
    ),
)


_PATH: Shape = (
    (Column(title="kind", look="text"), lambda row: text_cell(PATH[row["kind"]])),
    (Column(title="name", look="name"), _name("name")),
    (Column(title="on the path, ms", look="time"), _time("time")),
    (Column(title="share", note="of the window"), _share("share")),
    (
        Column(title="would give, ms", note="the window is shorter by so much if it took no time"),
        lambda row: Cell(text=ABSENT) if row["gain"] is None else time_cell(row["gain"]),
    ),
    (Column(title="stretches"), _number("count")),
)
_SEQUENCES: Shape = (
    (Column(title="under", look="text"), _text("under")),
    (Column(title="where", look="name"), _path("name")),
    (Column(title="kernels", look="name"), lambda row: _run_cell(row)),
    (Column(title="length"), _number("length")),
    (Column(title="count"), _number("count")),
    (Column(title="ms", look="time"), _time("time")),
    (Column(title="could win, ms", note="if each run were one kernel"), _time("could_win")),
    (Column(title="longest, ms", note="of each run the longest kernel"), _time("longest")),
    (Column(title="gaps, ms"), _time("gaps")),
    (Column(title="mostly", look="name"), _name("op")),
)
_SEQUENCE_NOTE = (
    "What keeps running after one another: under the calls of one op; anywhere on a stream; and "
    "whole, between two products, copies or collectives, where one kernel could do for all. The "
    "three count the same kernels."
)
_QUEUES: Shape = (
    (Column(title="device"), _number("device")),
    (Column(title="stream"), _number("stream")),
    (Column(title="longest"), _number("longest")),
    (Column(title="full at"), _number("limit")),
    (Column(title="full, ms", look="time"), _time("full")),
    (Column(title="blocked, ms", note="a thread was in a launching call"), _time("blocked")),
)
_QUEUE_NOTE = "Work that was launched and had not started; a captured graph is one piece."
_COUNTERS: Shape = (
    (Column(title="kernel", look="name"), _name("kernel")),
    (Column(title="counter", look="name"), _name("counter")),
    (Column(title="op", look="name"), _name("op")),
    (Column(title="runs"), _number("count")),
    (Column(title="mean"), lambda row: _figure_cell(row["mean"])),
    (Column(title="total"), lambda row: _figure_cell(row["total"])),
)


def path_table(ranks: Sequence[Row]) -> PageTable | None:
    """What stands on the critical path, of every rank."""
    rank = [(Column(title="rank"), _number("rank"))] if len(ranks) > 1 else []
    rows = [{**row, "rank": one["rank"]} for one in ranks for row in one["critical_path"]["rows"]]
    rows.sort(key=lambda row: -row["time"])
    return make_table("critical-path", "On the critical path", rows, [*rank, *_PATH])


def queue_table(ranks: Sequence[Row]) -> PageTable | None:
    """The streams whose queue was full; the others are in the figure."""
    rank = [(Column(title="rank"), _number("rank"))] if len(ranks) > 1 else []
    rows = [{**row, "rank": one["rank"]} for one in ranks for row in one["queues"] if row["full"]]
    rows.sort(key=lambda row: -row["full"])
    return make_table("queues", "Full launch queues", rows, [*rank, *_QUEUES], _QUEUE_NOTE)


def _runs(on_device: bool) -> str:
    return "Runs of kernels" if on_device else "Runs of ops"


def _run_cell(row: Row) -> Cell:
    names = row["kernels"]
    shown = ", ".join(short_kernel(name, 28) for name in names[:3])
    more = row["length"] - min(len(names), 3)
    rest = [f"and {row['length'] - len(names)} more"] if row["length"] > len(names) else []
    return Cell(text=f"{shown} and {more} more" if more else shown, full="\n".join([*names, *rest]))


def _figure_cell(value: float) -> Cell:
    shown = f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:,.3g}"
    return Cell(text=shown, value=value)


def _ops(on_device: bool) -> Shape:
    device = [(Column(title="device, ms", look="time"), _time("device"))] if on_device else []
    launched = [(Column(title="launches"), _number("launches"))] if on_device else []
    own = Column(title="own CPU, ms", look="number" if on_device else "time")
    return (
        (Column(title="op", look="name"), _name("name")),
        (Column(title="shapes", look="name"), _shapes),
        *device,
        (own, _time("cpu_own")),
        (Column(title="CPU, ms"), _time("cpu")),
        (Column(title="calls"), _number("count")),
        *launched,
        (
            Column(title="pass", look="text"),
            lambda row: text_cell("backward" if row["backward"] else ""),
        ),
    )


def _marks(on_device: bool) -> Shape:
    device = (
        (Column(title="device, ms", look="time"), _time("device")),
        (Column(title="launches"), _number("launches")),
    )
    return (
        (Column(title="mark", look="name"), _name("name")),
        (Column(title="CPU, ms"), _time("cpu")),
        (Column(title="count"), _number("count")),
        *(device if on_device else ()),
    )


def _modules(device: str) -> Shape:
    return (
        (Column(title="module", look="name"), _path("path")),
        (Column(title=device), _time("total")),
        (Column(title="forward, ms"), _time("forward")),
        (Column(title="backward, ms"), _time("backward")),
        (Column(title="recompute, ms"), _time("recompute")),
        (Column(title="calls"), _number("calls")),
    )


_KIND: Mapping[str, str] = {"slower": "slower", "faster": "faster", "new": "new", "gone": "gone"}


def diff_table(rows: Iterable[Row]) -> PageTable | None:
    """A comparison's groups: repeated modules together."""
    shape: Shape = (
        (Column(title="op", look="name"), _name("op")),
        (Column(title="module", look="name"), _path("module")),
        (Column(title="modules"), _number("modules")),
        (Column(title="before, ms"), _time("before")),
        (Column(title="after, ms"), _time("after")),
        (Column(title="change, ms", look="time"), lambda row: change_cell(row["change"])),
        (
            Column(title="state", look="text"),
            lambda row: text_cell(_KIND.get(row["state"], "same")),
        ),
        (Column(title="count before"), _number("count_before")),
        (Column(title="count after"), _number("count_after")),
        (Column(title="kernels only before", look="name"), _kernel_names("kernels_before")),
        (Column(title="kernels only after", look="name"), _kernel_names("kernels_after")),
    )
    return make_table("rows", "Ops by module", list(rows), shape)


def _kernel_names(key: str) -> Maker:
    def make(row: Row) -> Cell:
        names = row[key]
        shown = list(short_kernels(names, 44).values())
        text = ", ".join(shown[:2]) + (f" and {len(shown) - 2} more" if len(shown) > 2 else "")
        return Cell(text=text or ABSENT, full="\n".join(names))

    return make
