"""The page of a plan in a real browser: its sliders compute, and no column is lost on a phone."""

from __future__ import annotations

from pathlib import Path

import pytest
from html_pages import CHROMIUM, in_chromium

from ratchet.plan.ask import PlanRequest, planned
from ratchet.report.page import render_page
from ratchet.report.plan import plan_report

PROBE = """(page) => {
  const step = () => page.getElementById("plan-rows").rows[0].cells[1].textContent;
  const before = step();
  const fast = page.getElementById("x-compute");
  fast.value = 2;
  fast.dispatchEvent(new Event("input"));
  return [before, step(), page.getElementById("plan-rows").rows[0].cells.length];
}"""


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
@pytest.mark.parametrize("width", [420, 1100])
def test_the_sliders_compute_the_plans_again(width: int, tmp_path: Path) -> None:
    answer = planned(PlanRequest(model="llama3-8b", cluster="mi300x:8x2", batch=64))
    page = render_page(plan_report(answer))
    found, console = in_chromium(page, tmp_path, width, PROBE)
    assert console == ""
    before, after, cells = found["probed"]
    assert float(after.split()[0]) < float(before.split()[0])
    assert cells == 5 and found["scroll"] <= found["client"] and found["loads"] == []
