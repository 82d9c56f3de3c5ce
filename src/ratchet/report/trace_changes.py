"""A comparison of two traces in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.report.trace_words import share_of, show_ns

STATES = {
    "slower": "ops that got slower",
    "new": "ops that are new",
    "faster": "ops that got faster",
    "gone": "ops that went away",
    "same": "ops that did not change",
}


def diff_headline(document: Mapping[str, Any]) -> str:
    """Return one sentence that compares the two windows."""
    before, after = document["window_before_ns"], document["window_after_ns"]
    change = after - before
    if not change:
        return f"Both take {show_ns(before)}."
    word = "longer" if change > 0 else "less"
    return (
        f"{document['after']} takes {show_ns(after)} where {document['before']} took "
        f"{show_ns(before)}: {show_ns(abs(change))} {word} ({share_of(abs(change), before)})."
    )


def reconciliation(document: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """Return (key, words, ns) of each part of the window's change; they sum to it exactly."""
    rows = document["groups"]
    found = []
    for state, words in STATES.items():
        own = [row for row in rows if row["state"] == state]
        if own and state != "same":
            change = sum(row["change"] for row in own)
            found.append((state, f"{words} ({len(own):,})", change))
    found.append(("hidden", "work that ran beside other work", document["hidden_change_ns"]))
    found.append(("idle", "idle", document["idle_change_ns"]))
    return found
