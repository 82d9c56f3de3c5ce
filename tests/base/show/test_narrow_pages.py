"""Every page at the width of a phone: no column lies beyond the edge or loses its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import test_learn_loop as learning
import test_report_suite as suites
import test_report_verdict as verdicts
import test_report_write as writing
from history_rows import noisy, rows
from html_pages import CHROMIUM, all_in_chromium
from made_up_result import as_result, make_result
from made_up_trace import made_up_cpu_trace, made_up_diff, made_up_ranks, made_up_trace
from made_up_verdict import judged_of, make_judged

from ratchet.base.show import page
from ratchet.base.show.model import Column
from ratchet.base.show.page import PageState
from ratchet.guard.history import analyse, gather
from ratchet.guard.history.incidents import incidents
from ratchet.guard.history.show import render_history_page
from ratchet.judge.court.show import verdict_report
from ratchet.judge.court.show_suite import suite_report
from ratchet.trace.show import trace_report
from ratchet.trace.show.diff import diff_report
from ratchet.train.turn.show import render_page
from ratchet.write.learn.show import render_learn_page
from ratchet.write.show import render_write_page

PHONE = 420
LOST = """(page) => {
  const width = page.documentElement.clientWidth;
  for (const one of page.querySelectorAll("details")) one.open = true;
  const all = [...page.querySelectorAll("tbody th, tbody td")];
  const cells = all.filter(one => one.textContent.trim());
  const shown = cells.filter(one => one.getBoundingClientRect().height > 0);
  const beyond = shown.filter(one => one.getBoundingClientRect().right > width + 1);
  const unnamed = shown.filter(one => {
    const heads = one.closest("table").tHead;
    if (!heads || !one.cellIndex || one.colSpan > 1) return false;
    const named = heads.rows[0].cells[one.cellIndex].textContent.trim();
    const said = page.defaultView.getComputedStyle(one, "::before").content;
    return named && said !== JSON.stringify(named);
  });
  const text = (one) => one.textContent.trim().slice(0, 40);
  return {cells: cells.length, hidden: cells.length - shown.length,
          beyond: beyond.map(text), unnamed: unnamed.map(text),
          scrolled: [...page.querySelectorAll(".scroll")].filter(
            one => one.scrollWidth > one.clientWidth + 1).map(one => one.ariaLabel)};
}"""


def history_page(_: Path) -> str:
    analysed = analyse(gather(rows(noisy(0, factor=1.4))))
    return render_history_page(analysed, incidents(analysed))


PAGES: dict[str, Callable[[Path], str]] = {
    "optimize": lambda _: render_page(as_result(make_result())),
    "write": lambda _: render_write_page(writing.RESULT),
    "verdict": lambda _: page.render_page(verdict_report(judged_of(make_judged()))),
    "emulated": lambda _: verdicts.page_of(make_judged(emulated=[verdicts.emulated_case()])),
    "suite": lambda _: page.render_page(suite_report(suites.result_of(*suites.ROWS), {})),
    "learn": lambda _: render_learn_page(learning.report(running=False)),
    "history": history_page,
    "trace": lambda folder: page.render_page(trace_report(made_up_trace(folder))),
    "cpu trace": lambda folder: page.render_page(trace_report(made_up_cpu_trace(folder))),
    "ranks": lambda folder: page.render_page(trace_report(made_up_ranks(folder / "ranks"))),
    "diff": lambda folder: page.render_page(diff_report(made_up_diff(folder))),
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """What a browser finds in each page, and what it writes on its console."""
    folders = {name: tmp_path_factory.mktemp("page") for name in PAGES}
    pages = [(make(folders[name]), PHONE) for name, make in PAGES.items()]
    found, messages = all_in_chromium(pages, tmp_path_factory.mktemp("browser"), LOST)
    return dict(zip(PAGES, found, strict=True)), messages


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed here")
@pytest.mark.parametrize("name", PAGES)
def test_a_phone_shows_every_column_with_its_name(
    name: str, seen: tuple[dict[str, Any], str]
) -> None:
    found, messages = seen[0][name], seen[1]
    probed: dict[str, Any] = found["probed"]
    assert probed["cells"] > 3 and probed["hidden"] == 0
    assert (probed["beyond"], probed["unnamed"], probed["scrolled"]) == ([], [], [])
    assert found["scroll"] <= found["client"]
    assert "Refused" not in messages


def test_every_table_of_a_page_names_its_columns() -> None:
    for name in ("optimize", "write", "verdict", "suite", "learn"):
        page = PAGES[name](Path())
        assert page.count("<table") == page.count("<table data-stack=") > 0, name


def test_a_column_s_name_cannot_leave_its_style_rule() -> None:
    name = '"; } </style><script>x</script> \\\\ &amp; é'
    state = PageState()
    assert state.stack([Column("case"), Column(name)]) == 0
    rules = state.rules()
    assert rules.count('"') == 4 and "<script" not in rules and rules.count("}") == 1
