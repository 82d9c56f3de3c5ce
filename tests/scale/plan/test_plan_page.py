"""The page of a plan in a real browser: its sliders compute, and no column is lost on a phone."""

from __future__ import annotations

from pathlib import Path

import pytest
from html_pages import CHROMIUM, all_in_chromium

from ratchet.base.show.page import render_page
from ratchet.scale.plan import PlanRequest, planned
from ratchet.scale.plan.show import plan_report

PROBE = """(page) => {
  const step = () => page.getElementById("plan-rows").rows[0].cells[1].textContent;
  const before = step();
  const fast = page.getElementById("x-compute");
  fast.value = 2;
  fast.dispatchEvent(new Event("input"));
  return [before, step(), page.getElementById("plan-rows").rows[0].cells.length];
}"""


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
def test_the_sliders_compute_the_plans_again(tmp_path: Path) -> None:
    answer = planned(PlanRequest(model="llama3-8b", cluster="mi300x:8x2", batch=64))
    page = render_page(plan_report(answer))
    both, console = all_in_chromium([(page, 420), (page, 1100)], tmp_path, PROBE)
    assert console == ""
    for found in both:
        before, after, cells = found["probed"]
        assert float(after.split()[0]) < float(before.split()[0])
        assert cells == 5 and found["scroll"] <= found["client"] and found["loads"] == []
