"""The terminal output of the `ratchet trace` commands."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from ratchet.report import trace_tables as tables
from ratchet.report import trace_words as words
from ratchet.report.console import heading, make_console, table
from ratchet.report.trace_figures import path_kinds
from ratchet.report.trace_names import short_shapes
from ratchet.report.words import ABSENT

Document = Mapping[str, Any]
_STEPS = 8
_ROOFLINES = 5
_PATH_ROWS = 5
_SUMMED = ("device", "cpu_own", "count")


def print_trace(
    document: Document,
    *,
    top: int = 10,
    several: bool = False,
    console: Console | None = None,
) -> None:
    """Print the result of `ratchet trace report`, for one trace or several ranks."""
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
    _print_kernels(out, document, top)
    _print_table(out, "Ops", tables.OPS, _ops_by_name(document), top, document["on_device"])
    _print_communication(out, document, top)
    _print_roofline(out, document, top)
    _print_facts(out, document)
    _print_advice(out, document)


def _print_faults(out: Console, faults: Sequence[str]) -> None:
    for fault in faults:
        out.print(f"warning: {fault}")


def _print_identity(out: Console, document: Document) -> None:
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


def _print_steps(out: Console, steps: Sequence[Document]) -> None:
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


def _print_idle(out: Console, document: Document) -> None:
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


def _print_path(out: Console, document: Document, top: int) -> None:
    kinds = path_kinds([document])
    if not kinds:
        return
    heading(out, "The critical path: what the window's length follows from")
    out.print(table(("", "ms", "share"), [kind[:3] for kind in kinds]))
    named = [row for row in document["critical_path"]["rows"] if row["name"]]
    _print_table(out, "", tables.PATH, named[: min(top, _PATH_ROWS)], top)


def _print_table(
    out: Console,
    title: str,
    described: tables.Described,
    rows: Sequence[Document],
    top: int,
    on_device: bool = True,
) -> None:
    """Print the first rows of a table under a title that counts them all; nothing without rows."""
    if not rows:
        return
    if title:
        heading(out, f"{title}: {_first(top, len(rows))}")
    out.print(table(*described.brief(rows[:top], on_device), left=described.texts))


def _first(top: int, count: int) -> str:
    return f"the first {top} of {count:,}" if count > top else f"{count:,}"


def _ops_by_name(document: Document) -> list[Document]:
    """Sum the ops of all shapes."""
    sums: dict[str, dict[str, Any]] = {}
    for row in document["ops"]:
        one = sums.setdefault(row["name"], {"name": row["name"], **dict.fromkeys(_SUMMED, 0)})
        for name in _SUMMED:
            one[name] += row[name]
    return sorted(sums.values(), key=lambda row: (-row["device"], -row["cpu_own"]))


def _print_kernels(out: Console, document: Document, top: int) -> None:
    _print_table(out, "Kernels, copies and fills", tables.KERNELS, document["kernels"], top)


def _print_communication(out: Console, document: Document, top: int) -> None:
    rows = words.communication_rows(document["collectives"])
    _print_table(out, "Communication", tables.COMMUNICATION, rows, top)


def _print_roofline(out: Console, document: Document, top: int) -> None:
    known = [row for row in document["roofline"] if row["least"]]
    if known:
        title = f"Against the ceilings of {known[0]['ceiling']}"
        _print_table(out, title, tables.ROOFLINE, known, min(top, _ROOFLINES))


def _print_facts(out: Console, document: Document) -> None:
    found = words.facts(document)
    if found:
        heading(out, "Also")
        out.print(table(("", ""), found, left=2))


def _print_advice(out: Console, document: Document) -> None:
    heading(out, "Advice")
    if not document["advice"]:
        out.print("Nothing stands out.")
    for number, finding in enumerate(document["advice"], start=1):
        out.print(f"{number}. {words.advice_words(finding, document['window_ns'])}")
        out.print(f"   {finding['evidence']}; {finding['remedy']}")
        lever = words.lever_words(finding)
        if lever:
            out.print(f"   {lever}", soft_wrap=True)


def _print_ranks(out: Console, document: Document, top: int) -> None:
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
    first = ranks[0]
    _print_kernels(out, first, top)
    _print_communication(out, first, top)
    out.print(f"These are of rank {first['rank']}; --rank N shows another.")
    _print_advice(out, first)


def print_diff(document: Document, *, top: int = 10, console: Console | None = None) -> None:
    """Print the result of `ratchet trace diff`."""
    out = console or make_console()
    out.print(words.diff_headline(document))
    _print_faults(out, document["faults"])
    heading(out, "The change of the window, ms")
    sums = [(title, words.change_ms(time)) for _, title, time in words.reconciliation(document)]
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
        own = [row for row in rows if row["state"] == state]
        _print_table(out, state.capitalize(), tables.DIFF, own, top)


def print_replay(document: Document, *, console: Console | None = None) -> None:
    """Print each call's time in the trace and here, and the calls that could not run."""
    out = console or make_console()
    rows = document["rows"]
    timed = [row for row in rows if row["outcome"] == "timed"]
    out.print(
        f"{document['trace']}: {len(timed)} of {len(rows)} calls run on {document['device']} "
        f"(torch {document['torch']}, {document['threads']} threads), recorded on "
        f"{document['traced_on']}"
    )
    for fault in document["faults"]:
        out.print(f"warning: {fault}")
    if timed:
        heading(out, "A call, ms")
        shown = [
            (
                f"{row['op']} {short_shapes(row['shapes'])} {_types(row['types'])}".strip(),
                f"{row['count']:,}",
                words.milliseconds(row["traced"]),
                words.milliseconds(row["here"]),
                f"{row['ratio']:,.3g}" if row["traced"] else ABSENT,
            )
            for row in timed
        ]
        out.print(table(("op", "calls", "in the trace", "here", "trace / here"), shown))
    reasons: Counter[tuple[str, str]] = Counter()
    for row in rows:
        if row["outcome"] != "timed":
            reasons[row["op"], row["why"]] += 1
    if reasons:
        heading(out, "Not run")
        out.print(
            table(("op", "shapes", "why"), [(op, f"{n}", why) for (op, why), n in reasons.items()])
        )
    if document["left_out"]:
        out.print(f"{document['left_out']:,} more distinct calls were left out: --top shows more.")


def _types(text: str) -> str:
    """List the types of the tensors, each once."""
    plain = ("Scalar", "ScalarList", "")
    types = [str(one).removeprefix("c10::") for one in json.loads(text) if one not in plain]
    return ", ".join(dict.fromkeys(types))


def print_merged(document: Document, *, console: Console | None = None) -> None:
    """Print where the merged trace is, and how its ranks were put on one clock."""
    out = console or make_console()
    rows = [
        (str(rank["rank"]), f"{rank['events']:,}", words.change_ms(rank["shift"]), rank["file"])
        for rank in document["ranks"]
    ]
    for fault in document["faults"]:
        out.print(f"warning: {fault}")
    out.print(table(("rank", "events", "moved, ms", "trace"), rows))
    out.print(
        "The ranks' clocks meet: their times are as recorded."
        if document["aligned"]
        else "The ranks' clocks do not meet: each begins with the first one's window."
    )
    out.print(f"written: {document['path']} ({words.size(document['size_bytes'])})", soft_wrap=True)
