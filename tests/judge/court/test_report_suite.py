"""The page of a suite's run: every problem stands in it, and nothing is loaded from elsewhere."""

from __future__ import annotations

import re

import msgspec
import pytest

from ratchet.base.measure import Ratio
from ratchet.base.show.model import Words, text_of
from ratchet.base.show.page import render_page
from ratchet.judge.court.show_suite import definitions, suite_report
from ratchet.judge.court.suite import SuiteResult, SuiteRow, answered, summarise
from ratchet.judge.verdict import Speedups

RATIO = Ratio(ratio=2.0, low=1.8, high=2.2, confidence=0.983)
FAST = Speedups(vs_reference=RATIO, vs_compile=None)
ROWS = [
    SuiteRow(name="gelu", status="proven", reason="right, and faster", speedup=FAST),
    SuiteRow(name="silu", status="wrong", reason="case <b>ci</b>: off by 3"),
    SuiteRow(name="mish", status="unanswered", reason="the library has no kernel for it"),
    SuiteRow(name="elu", status="not_reached", reason="the run ended before it"),
]


def result_of(*rows: SuiteRow, interrupted: bool = False) -> SuiteResult:
    return SuiteResult(
        suite="training",
        candidate="library",
        tier="ci",
        summary={
            "all": summarise(rows, against_compile=True),
            "answered": summarise(answered(rows), against_compile=True),
        },
        rows=list(rows),
        interrupted=interrupted,
        device={"kind": "cpu", "model": "A CPU", "threads": 2, "memory_bytes": 1 << 34},
        versions={"torch": "2.13.0"},
        command="ratchet judge --suite training",
        started_at="2026-01-01T00:00:00+00:00",
        duration_s=12.0,
    )


def timed(**ratios: Ratio) -> SuiteRow:
    return msgspec.structs.replace(ROWS[0], speedup=Speedups(**ratios))


@pytest.mark.parametrize("interrupted", [False, True])
def test_every_problem_is_in_the_page_with_its_reason(interrupted: bool) -> None:
    page = render_page(
        suite_report(result_of(*ROWS, interrupted=interrupted), {"gelu": "verdicts/gelu.html"})
    )
    for row in ROWS:
        assert row.name in page
    assert 'href="verdicts/gelu.html"' in page
    assert "off by 3" in page and "<b>ci</b>" not in page
    assert ("was interrupted" in page) == interrupted


def _said(words: list[Words]) -> str:
    return " ".join(text_of(one.text) for one in words)


def test_the_table_says_what_its_intervals_and_fast_p_are() -> None:
    before = msgspec.structs.replace(RATIO, confidence=None)  # a verdict from before
    new, old = result_of(*ROWS), result_of(timed(vs_reference=before), *ROWS[1:])
    assert "is proven and whose whole 98.3 % interval lies above p" in _said(definitions(new))
    assert "is proven and whose whole interval lies above p" in _said(definitions(old))


def test_the_page_loads_nothing() -> None:
    page = render_page(suite_report(result_of(*ROWS), {}))
    assert re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', page) == []
    assert "<script" not in page


def test_a_rival_that_was_not_timed_has_no_column() -> None:
    without = result_of(*ROWS)
    both = result_of(timed(vs_reference=RATIO, vs_compile=RATIO), *ROWS[1:])
    assert '<th scope="col" class="n">against torch.compile' not in render_page(
        suite_report(without, {})
    )
    assert '<th scope="col" class="n">against torch.compile' in render_page(suite_report(both, {}))
