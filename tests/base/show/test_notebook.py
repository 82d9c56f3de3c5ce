"""Results draw themselves in a notebook, in a frame of their own; and the badge of a README."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import made_traces as mt
import pytest
from site_crawler import PageLinks

from ratchet.base import drawn_by
from ratchet.base.measure.contest import CompareOutcome
from ratchet.base.measure.metrics import Readings
from ratchet.base.show import model as m
from ratchet.base.show.page import render_badge, render_in_notebook
from ratchet.judge.verdict import Evidence, Verdict
from ratchet.trace.analysis import analyse
from ratchet.trace.answers.report import Report, report
from ratchet.trace.compare import Diff, diff
from ratchet.trace.ranks import Ranks
from ratchet.trace.read.columns import Trace
from ratchet.train.turn.loop import Outcome

HOSTILE = "</iframe><script>alert(1)</script>\"'&"


def page_in(drawn: str) -> str:
    """Return the page in a frame, which is all that was drawn."""
    found = re.fullmatch(r'<iframe title="[^"]*" sandbox="allow-scripts" srcdoc="([^"]*)" [^>]*>'
                         r"</iframe>", drawn)  # fmt: skip
    assert found is not None, drawn[:300]
    page = html.unescape(found[1])
    assert PageLinks(page).foreign == []
    return page


def test_a_frame_holds_a_whole_page() -> None:
    drawn = render_in_notebook(m.ResultReport(title=HOSTILE, heading=HOSTILE, headline=HOSTILE))
    page = page_in(drawn)
    assert page.startswith("<!doctype html>") and "<script" not in page


def test_a_verdict_draws_itself() -> None:
    verdict = Verdict(
        status="wrong",
        reason=HOSTILE,
        evidence=[Evidence(check="outputs", passed=False, detail=HOSTILE)],
        isolation="none",
        kernel_hash="ab" * 32,
        problem_hash="cd" * 32,
    )
    page = page_in(verdict._repr_html_())
    assert "Wrong" in page and "outputs" in page and "<script" not in page


def test_a_comparison_draws_itself() -> None:
    outcome = CompareOutcome(
        titles=("old", HOSTILE),
        answers=(),
        exit_code=3,
        allowed=0.0,
        plan=None,
        looks_taken=0,
        spent_s=1.0,
        budget_s=30.0,
        needed_s=60.0,
        launches=0,
        samples=(),
        readings=Readings(),
    )
    assert "undecided" in page_in(outcome._repr_html_())


def test_traces_draw_themselves(tmp_path: Path) -> None:
    work = [mt.module("Linear_0", 0, 20), mt.op("aten::addmm", 1, 5), mt.launch(2, 1, 1)]
    trace = mt.made(tmp_path, [*work, mt.kernel("Cijk_gemm", 10, 8, 1)])
    told = report(trace)
    pages = [page_in(one._repr_html_()) for one in (trace, told)]
    assert pages[0] == pages[1] and "aten::addmm" in pages[0]
    found = diff(analyse(trace), analyse(trace))
    assert "against" in page_in(found._repr_html_())


@pytest.mark.parametrize("kind", [Outcome, Verdict, CompareOutcome, Report, Diff, Ranks, Trace])
def test_every_result_names_what_describes_it(kind: Any) -> None:
    assert callable(kind._repr_html_)
    (address,) = [
        cell.cell_contents
        for cell in kind._repr_html_.__closure__
        if isinstance(cell.cell_contents, str)
    ]
    module, _, name = address.partition(":")
    assert callable(getattr(__import__(module, fromlist=[name]), name)), address


def test_a_function_that_is_not_there_is_found_out() -> None:
    with pytest.raises(AttributeError):
        drawn_by("ratchet.base.text:nothing")(object())


@pytest.mark.parametrize("message", ["no regression", HOSTILE, ""])
def test_a_badge_is_an_image_of_its_own(message: str) -> None:
    root = ElementTree.fromstring(render_badge("ratchet", message, "yes"))
    assert root.tag.endswith("svg") and int(root.attrib["width"]) >= 20
    texts = [one.text or "" for one in root.iter() if one.tag.endswith("text")]
    assert texts == ["ratchet", message]
    assert not any(
        key.startswith("on") or "href" in key for one in root.iter() for key in one.attrib
    )
