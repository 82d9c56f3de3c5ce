"""A table described once: the same columns on a terminal, on a page and in JSON."""

from __future__ import annotations

import io
import re

import pytest
from html_pages import tags
from made_up_verdict import judged_of, make_judged
from rich.console import Console

from ratchet.base.show import model as m
from ratchet.base.show.page import render_page
from ratchet.base.show.terminal import print_report
from ratchet.base.show.words import show_time
from ratchet.judge.court import show as verdict

ROWS = [{"name": "a<b", "time_s": 0.002}, {"name": "c", "time_s": None}]
COLUMNS = (
    m.name("kernel", "name", lambda name: m.Span(name, "code", full=f"{name}, in full")),
    m.number("time", "time_s", show_time),
    m.why("why", lambda row: f"of {row['name']}", on="page"),
)


def said(report: m.ResultReport, width: int = 80) -> str:
    file = io.StringIO()
    print_report(report, Console(file=file, width=width, markup=False, emoji=False))
    return file.getvalue()


def test_one_table_has_three_renderings() -> None:
    table = m.ResultTable(COLUMNS, ROWS)
    report = m.ResultReport(title="t", heading="h", sections=(m.section("Times", table),))
    assert [line.split() for line in said(report).splitlines()[2:]] == [
        ["kernel", "time"],
        ["─" * 16],
        ["a<b", "2.00", "ms"],
        ["c", "-"],
    ]
    page = render_page(report)
    tags(page)
    assert re.findall(r'<th scope="col"[^>]*>(.*?)</th>', page) == ["kernel", "time", "why"]
    assert '<code title="a&lt;b, in full">a&lt;b</code>' in page
    assert '<td class="n">2.00 ms</td>' in page and 'aria-label="Times"' in page
    assert m.records(table) == [
        {"name": "a<b", "time_s": 0.002, "why": "of a<b"},
        {"name": "c", "time_s": None, "why": "of c"},
    ]


def test_a_verdict_s_evidence_is_its_own_json() -> None:
    evidence = make_judged()["verdict"]["evidence"]
    assert m.records(m.ResultTable(verdict.EVIDENCE, evidence)) == evidence


def test_a_column_of_a_verdict_s_page_is_one_edit(monkeypatch: pytest.MonkeyPatch) -> None:
    more = m.number("seconds", lambda one: 1.5, show_time)
    monkeypatch.setattr(verdict, "EVIDENCE", (*verdict.EVIDENCE, more))
    report = verdict.verdict_report(judged_of(make_judged()))
    for shown in (said(report), render_page(report)):
        assert "seconds" in shown and shown.count("1.50 s") == 3
    assert 'nth-child(4) { --column: "seconds"; }' in render_page(report)


def test_what_is_for_one_medium_is_not_on_the_other() -> None:
    here = m.section("Here", "on the terminal", m.note("explained"), on="terminal")
    there = m.section("There", "on the page", on="page")
    report = m.ResultReport(sections=m.blocks(here, None, "", there, m.grid(("a",), [])))
    assert len(report.sections) == 2, "what is empty is no block"
    assert said(report).split() == ["Here", "on", "the", "terminal"]
    page = render_page(report)
    assert "on the page" in page and "explained" not in page


def test_lines_to_copy_are_never_wrapped() -> None:
    line = "ratchet judge " + "a-long-name " * 20
    report = m.ResultReport(sections=m.blocks(m.written([line])))
    assert f"    {line}" in said(report, 40).splitlines()


def test_a_page_without_sorting_tables_allows_no_script() -> None:
    table = m.ResultTable(COLUMNS, ROWS, label="Times", sorts=True)
    quiet, sorting = (
        render_page(m.ResultReport(sections=(one,)))
        for one in (m.ResultTable(COLUMNS, ROWS), table)
    )
    assert "script" not in quiet
    assert "script-src 'sha256-" in sorting and 'data-table="Times"' in sorting
    assert 'data-v="0.002"' in sorting
