"""The pages of a trace and of a comparison: each one file that opens offline, with one script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from markupsafe import Markup

from ratchet.report import trace_figures as figures
from ratchet.report import trace_words as words
from ratchet.report.environment import page_environment
from ratchet.report.scale import from_zero
from ratchet.report.trace_tables import diff_table, page_tables

STEPS = 60
"""Number of steps drawn: the first."""


def render_trace_page(document: Mapping[str, Any]) -> str:
    """Render the page of one trace, or of several ranks, as HTML.

    `document` comes from `trace.export.documents`. All its text is escaped, and the page's policy
    allows no loads and only the page's own script, by its hash.
    """
    ranks: Sequence[Mapping[str, Any]] = document.get("ranks") or [document]
    first = ranks[0]
    several = len(ranks) > 1
    steps = figures.step_bars(first) if len(first["steps"]) > 1 and not several else []
    page = page_environment().get_template("trace.html")
    return page.render(
        title=f"{len(ranks)} ranks" if several else first["name"],
        document=document,
        ranks=ranks,
        first=first,
        several=several,
        words=words,
        means=words.part_means(first),
        faults=_faults(document, ranks),
        whole=figures.window_bar(
            "all ranks" if several else "whole window",
            words.PARTS,
            document["identity_ns"],
            document["window_ns"],
        ),
        stacks=figures.rank_bars(ranks) if several else steps[:STEPS],
        rank_steps=[
            (one["rank"], figures.step_bars(one)[:STEPS])
            for one in ranks
            if several and len(one["steps"]) > 1
        ],
        steps_left_out=max(len(steps) - STEPS, 0),
        advice=_advice(ranks),
        lanes=figures.lanes(ranks),
        path_bars=figures.path_bars(ranks, STEPS),
        path_kinds=figures.path_kinds(ranks),
        series=figures.series_lanes(first),
        tables=page_tables(ranks),
        roofline=figures.roofline_plot(ranks),
        memory=figures.memory_plot(ranks),
        **script(),
    )


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
        headline=words.diff_headline(document),
        stacks=stacks,
        changes=figures.change_bars([*words.reconciliation(document), total]),
        table=diff_table(document["groups"]),
        **script(),
    )


def _faults(document: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]]) -> list[str]:
    if len(ranks) == 1:
        return list(document["faults"])
    own = [f"{one['name']}: {fault}" for one in ranks for fault in one["faults"]]
    return [*document["faults"], *own]


def _advice(ranks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Sort findings by gain; if ranks share a finding, keep the one with the largest gain."""
    found: dict[str, dict[str, Any]] = {}
    for one in ranks:
        for finding in one["advice"]:
            known = found.setdefault(finding["name"], {**finding, "ranks": [], "window": 0})
            known["ranks"].append(one["rank"])
            if finding["gain"] >= known["gain"]:
                known.update(finding, window=one["window_ns"])
    return sorted(found.values(), key=lambda finding: -finding["gain"])


@cache
def script() -> dict[str, Markup | str]:
    """Return the page's script, and its hash for the policy (CSP level 2, script-src)."""
    text = resources.files("ratchet.report").joinpath("templates/trace.js").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return {"script_text": Markup(text), "script_hash": f"sha256-{digest}"}
