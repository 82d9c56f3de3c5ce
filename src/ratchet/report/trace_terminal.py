"""What `ratchet trace report` and `ratchet trace diff` print for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from ratchet.report import trace_changes as changes
from ratchet.report import trace_words as words
from ratchet.report.console import heading, make_console, table
from ratchet.report.trace_names import short_kernels, short_shapes
from ratchet.report.trace_path import path_kinds
from ratchet.report.words import ABSENT

_STEPS = 8
_ROOFLINES = 5
_PATH_ROWS = 5
_NAME = 44
"""Letters of a kernel's name: the table stays whole at 80 columns."""


def print_trace(
    document: Mapping[str, Any],
    *,
    top: int = 10,
    several: bool = False,
    console: Console | None = None,
) -> None:
    """The answer of `ratchet trace report`: of one trace, or of several ranks."""
    out = console or make_console()
    if several:
        _print_ranks(out, document, top)
        return
    out.print(document["name"])
    out.print(words.headline(document))
    out.print(words.source_words(document))
    _print_faults(out, document["faults"])
    _print_identity(out, document)
    _print_steps(out, document["steps"])
    _print_idle(out, document)
    _print_path(out, document, top)
    _print_kernels(out, document["kernels"], top)
    _print_ops(out, document, top)
    _print_communication(out, document["collectives"], top)
    _print_roofline(out, document["roofline"], top)
    _print_facts(out, document)
    _print_advice(out, document)


def _print_faults(out: Console, faults: Sequence[str]) -> None:
    for fault in faults:
        out.print(f"warning: {fault}")


def _print_identity(out: Console, document: Mapping[str, Any]) -> None:
    window = document["window_ns"]
    heading(out, "Where the time goes")
    rows = [
        (title, words.milliseconds(document["identity_ns"][name]), share)
        for name, title in words.PARTS.items()
        if (share := words.share_of(document["identity_ns"][name], window))
    ]
    rows.append(("window", words.milliseconds(window), words.share_of(window, window)))
    out.print(table(("", "ms", "share"), rows))
    if "window_is" in document:
        out.print(f"The window is {document['window_is']}.")
    overlap = words.overlap_words(document)
    if overlap:
        out.print(overlap)


def _print_steps(out: Console, steps: Sequence[Mapping[str, Any]]) -> None:
    if len(steps) < 2:
        return
    heading(out, "Steps, ms")
    shown = steps if len(steps) <= _STEPS else [*steps[: _STEPS - 1], steps[-1]]
    rows = [
        (
            step["label"],
            words.milliseconds(step["window_ns"]),
            *(words.milliseconds(step[name]) for name in words.PARTS),
        )
        for step in shown
    ]
    out.print(table(("step", "window", "compute", "communication", "copies", "idle"), rows))
    if len(shown) < len(steps):
        out.print(f"{len(steps) - len(shown)} more steps are in --json and on the page.")


def _print_idle(out: Console, document: Mapping[str, Any]) -> None:
    idle = document["idle"]
    total = document["identity_ns"]["idle"]
    if not total or not document["on_device"]:
        return
    heading(out, "Why the device was idle")
    rows = [
        (title, words.milliseconds(idle[name]), words.share_of(idle[name], total), means)
        for name, title in words.IDLE.items()
        if idle[name] and (means := words.IDLE_MEANS[name])
    ]
    out.print(table(("", "ms", "share", "why"), rows))
    if not document["launches"]["count"]:
        out.print(words.NO_LAUNCHES)


def _print_path(out: Console, document: Mapping[str, Any], top: int) -> None:
    path = document["critical_path"]
    kinds = path_kinds([document])
    if not kinds:
        return
    heading(out, "The critical path: what the window's length follows from")
    out.print(table(("", "ms", "share"), [kind[:3] for kind in kinds]))
    named = [row for row in path["rows"] if row["name"]][: min(top, _PATH_ROWS)]
    if named:
        names = short_kernels((row["name"] for row in named), _NAME)
        rows = [
            (
                names[row["name"]],
                words.milliseconds(row["time"]),
                words.milliseconds(row["gain"]) if row["gain"] is not None else ABSENT,
            )
            for row in named
        ]
        out.print(table(("on it most", "ms", "would give"), rows))


def _print_kernels(out: Console, kernels: Sequence[Mapping[str, Any]], top: int) -> None:
    if not kernels:
        return
    heading(out, f"Kernels, copies and fills: {_first(top, len(kernels))}")
    names = short_kernels((row["name"] for row in kernels[:top]), _NAME)
    rows = [
        (
            names[row["name"]],
            words.milliseconds(row["total"]),
            words.share_of(row["share"], 1),
            f"{row['count']:,}",
        )
        for row in kernels[:top]
    ]
    out.print(table(("kernel", "ms", "share", "count"), rows))


def _first(top: int, count: int) -> str:
    return f"the first {top} of {count:,}" if count > top else f"{count:,}"


def _print_ops(out: Console, document: Mapping[str, Any], top: int) -> None:
    ops = document["ops"]
    if not ops:
        return
    on_device = document["on_device"]
    rows = _by_name(ops)
    rows.sort(key=lambda row: (-row["device"], -row["cpu_own"]))
    heading(out, f"Ops: {_first(top, len(rows))}")
    shown = [
        (
            row["name"],
            *((words.milliseconds(row["device"]),) if on_device else ()),
            words.milliseconds(row["cpu_own"]),
            f"{row['count']:,}",
        )
        for row in rows[:top]
    ]
    times = ("device, ms", "own CPU, ms") if on_device else ("own CPU, ms",)
    out.print(table(("op", *times, "calls"), shown))


def _by_name(ops: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Ops of all shapes together."""
    sums: dict[str, dict[str, Any]] = {}
    for row in ops:
        one = sums.setdefault(
            row["name"], {"name": row["name"], "device": 0, "cpu_own": 0, "count": 0}
        )
        for name in ("device", "cpu_own", "count"):
            one[name] += row[name]
    return list(sums.values())


def _print_communication(out: Console, collectives: Sequence[Mapping[str, Any]], top: int) -> None:
    if not collectives:
        return
    rows = words.communication_rows(collectives)
    heading(out, f"Communication: {_first(top, len(rows))}")
    shown = [
        (
            f"{row['operation']} {row['group']}".strip(),
            f"{row['count']:,}",
            words.size(row["size_bytes"]),
            words.milliseconds(row["duration"]),
            words.milliseconds(row["exposed"]),
            words.bandwidth(row["bus_bandwidth"]),
        )
        for row in rows[:top]
    ]
    out.print(table(("collective", "count", "bytes", "ms", "exposed", "bus"), shown))


def _print_roofline(out: Console, rows: Sequence[Mapping[str, Any]], top: int) -> None:
    known = [row for row in rows if row["least"]]
    if not known:
        return
    top = min(top, _ROOFLINES)
    heading(out, f"Against the ceilings of {known[0]['ceiling']}: {_first(top, len(known))}")
    shown = [
        (
            f"{row['name']} {short_shapes(row['shapes'])}",
            words.milliseconds(row["time"]),
            words.milliseconds(row["could_win"]),
            row["bound"],
        )
        for row in known[:top]
    ]
    out.print(table(("op", "ms", "could win", "bound"), shown))


def _print_facts(out: Console, document: Mapping[str, Any]) -> None:
    found = words.facts(document)
    if found:
        heading(out, "Also")
        out.print(table(("", ""), found, left=2))


def _print_advice(out: Console, document: Mapping[str, Any]) -> None:
    heading(out, "Advice")
    if not document["advice"]:
        out.print("Nothing stands out.")
    for number, finding in enumerate(document["advice"], start=1):
        out.print(f"{number}. {words.advice_words(finding, document['window_ns'])}")
        out.print(f"   {finding['evidence']}; {finding['remedy']}")
        lever = words.lever_words(finding)
        if lever:
            out.print(f"   {lever}", soft_wrap=True)


def _print_ranks(out: Console, document: Mapping[str, Any], top: int) -> None:
    ranks = document["ranks"]
    out.print(words.headline(document))
    out.print(words.ranks_words(ranks))
    _print_faults(out, document["faults"])
    for one in ranks:
        _print_faults(out, [f"{one['name']}: {fault}" for fault in one["faults"]])
    _print_identity(out, document)
    heading(out, "Ranks, ms")
    waiting = document["communication"]["waiting_ns"]
    rows = [
        (
            str(one["rank"]),
            words.milliseconds(one["window_ns"]),
            *(words.milliseconds(one["identity_ns"][name]) for name in words.PARTS),
            words.milliseconds(waiting[str(one["rank"])]),
        )
        for one in ranks
    ]
    columns = ("rank", "window", "compute", "communication", "copies", "idle", "waited")
    out.print(table(columns, rows))
    for line in words.across_words(document):
        out.print(line)
    for one in ranks[:1]:
        _print_kernels(out, one["kernels"], top)
        _print_communication(out, one["collectives"], top)
        out.print(f"These are of rank {one['rank']}; --rank N shows another.")
        _print_advice(out, one)


def print_diff(
    document: Mapping[str, Any], *, top: int = 10, console: Console | None = None
) -> None:
    """The answer of `ratchet trace diff`."""
    out = console or make_console()
    out.print(changes.diff_headline(document))
    _print_faults(out, document["faults"])
    heading(out, "The change of the window, ms")
    sums = [(title, words.change_ms(time)) for _, title, time in changes.reconciliation(document)]
    sums.append(("together", words.change_ms(document["window_change_ns"])))
    out.print(table(("", "ms"), sums))
    heading(out, "Where the time goes, ms")
    before, after = document["identity_before_ns"], document["identity_after_ns"]
    parts = [
        (
            title,
            words.milliseconds(before[name]),
            words.milliseconds(after[name]),
            words.change_ms(after[name] - before[name]),
        )
        for name, title in words.PARTS.items()
    ]
    out.print(table(("", "before", "after", "change"), parts))
    rows = document["groups"]
    for state in ("slower", "new", "gone", "faster"):
        _print_rows(out, [row for row in rows if row["state"] == state], state, top)


def _print_rows(out: Console, rows: Sequence[Mapping[str, Any]], state: str, top: int) -> None:
    if not rows:
        return
    titles = {"slower": "Slower", "new": "New", "gone": "Gone", "faster": "Faster"}
    heading(out, f"{titles[state]}: {_first(top, len(rows))}")
    names = short_kernels((row["op"] for row in rows[:top]), _NAME)
    shown = [
        (
            names[row["op"]] or ABSENT,
            changes.module_words(row),
            words.milliseconds(row["before"]),
            words.milliseconds(row["after"]),
            words.change_ms(row["change"]),
        )
        for row in rows[:top]
    ]
    out.print(table(("op", "module", "before", "after", "change"), shown, left=2))
