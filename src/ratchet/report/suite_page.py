"""Render the page of a suite's table, with a link to each verdict's page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.report.environment import page_environment
from ratchet.report.page import device_rows
from ratchet.report.suite_table import (
    against_compile,
    definitions,
    score_tables,
    status_words,
    suite_headline,
)
from ratchet.report.verdict_words import show_speedup, tone


def render_suite_page(document: Mapping[str, Any], links: Mapping[str, str]) -> str:
    """Return the whole table as HTML.

    `document` is a `SuiteResult` as plain data. `links` maps a problem's name to the page of its
    verdict, relative to this page.
    """
    page = page_environment().get_template("suite.html")
    return page.render(
        suite=document,
        links=links,
        headline=suite_headline(document),
        against_compile=against_compile(document),
        scores=score_tables(document),
        definitions=definitions(document),
        device=device_rows(document["device"]),
        left=sum(row["status"] == "not_reached" for row in document["rows"]),
        tone=tone,
        show_speedup=show_speedup,
        status_words=status_words,
    )
