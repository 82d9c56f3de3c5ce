"""What `ratchet trace replay` and `ratchet trace merge` print for people."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from ratchet.report import trace_words as words
from ratchet.report.console import heading, make_console, table
from ratchet.report.trace_names import short_shapes
from ratchet.report.words import ABSENT


def print_replay(document: Mapping[str, Any], *, console: Console | None = None) -> None:
    """Each call's time in the trace beside its time here, and what could not be run."""
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
        out.print(f"{document['left_out']:,} more distinct calls are there: --top shows more.")


def _types(text: str) -> str:
    """The types of the tensors, each once."""
    plain = ("Scalar", "ScalarList", "")
    types = [str(one).removeprefix("c10::") for one in json.loads(text) if one not in plain]
    return ", ".join(dict.fromkeys(types))


def print_merged(document: Mapping[str, Any], *, console: Console | None = None) -> None:
    """Where the merged trace is, and how its ranks were put on one clock."""
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
