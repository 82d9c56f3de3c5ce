"""The page that compares two traces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.report import trace_changes as changes
from ratchet.report import trace_figures as figures
from ratchet.report import trace_words as words
from ratchet.report.environment import page_environment
from ratchet.report.scale import from_zero
from ratchet.report.trace_page import script
from ratchet.report.trace_tables import diff_table


def render_diff_page(document: Mapping[str, Any]) -> str:
    """Render the page as HTML; `document` is what `diff_document` returns."""
    scale = from_zero([document["window_before_ns"], document["window_after_ns"]])
    stacks = [
        figures.window_bar(
            f"{side}: {document[side]}",
            words.PARTS,
            document[f"identity_{side}_ns"],
            document[f"window_{side}_ns"],
            scale,
        )
        for side in ("before", "after")
    ]
    total = ("total", "together", document["window_change_ns"])
    page = page_environment().get_template("trace_diff.html")
    return page.render(
        document=document,
        words=words,
        headline=changes.diff_headline(document),
        stacks=stacks,
        changes=figures.change_bars([*changes.reconciliation(document), total]),
        table=diff_table(document["groups"]),
        **script(),
    )
