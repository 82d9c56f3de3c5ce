"""The pages of traces: complete, escaped, with one script of their own, and alive in a browser."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from html_pages import CHROMIUM, HOSTILE, all_in_chromium, hostile, in_chromium, tags
from made_up_trace import made_up_cpu_trace, made_up_diff, made_up_ranks, made_up_trace

from ratchet.base.show.page import render_page
from ratchet.trace.answers.counters import CounterRow
from ratchet.trace.answers.report import Report
from ratchet.trace.show import trace_report
from ratchet.trace.show.diff import diff_report
from ratchet.trace.show.figures import (
    change_bars,
    lanes,
    memory_plot,
    path_bars,
    path_times,
    roofline_plot,
    series_lanes,
)

KNOWN = ("platform", "sort", "state", "bound", "look", "kind", "under")
"""Keys whose values are Ratchet's own words, not a file's."""
SORT_AND_FILTER = """(page) => {
  const box = page.querySelector('[data-table^="Kernels"]');
  const shown = () => [...box.querySelectorAll("tbody tr")].filter((row) => !row.hidden)
    .map((row) => row.cells[0].textContent);
  const heads = [...box.querySelectorAll("th button")];
  const found = { start: shown(), said: box.querySelector("output").textContent };
  heads[0].click();
  found.byName = shown();
  heads[2].click();
  heads[2].click();
  found.shortestFirst = shown();
  found.sort = heads[2].parentElement.getAttribute("aria-sort");
  const filter = box.querySelector("input");
  filter.value = "ADDFUNCTOR compute";
  filter.dispatchEvent(new page.defaultView.Event("input"));
  found.filtered = shown();
  found.filteredSaid = box.querySelector("output").textContent;
  return found;
}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces")


@pytest.fixture(scope="module")
def document(folder: Path) -> Report:
    return made_up_trace(folder)


@pytest.fixture(scope="module")
def documents(folder: Path, document: Report) -> dict[str, Any]:
    return {
        "one": document,
        "cpu": made_up_cpu_trace(folder),
        "ranks": made_up_ranks(folder / "ranks"),
        "diff": made_up_diff(folder),
    }


def render(name: str, document: Any) -> str:
    return render_page((diff_report if name == "diff" else trace_report)(document))


def policy(digest: str) -> str:
    return f"script-src 'sha256-{digest}'"


def attacked(value: Any) -> Any:
    """Something hostile in every text that can come from a file."""
    if is_dataclass(value):
        own = {one.name: getattr(value, one.name) for one in fields(value)}
        changed = {name: attacked(one) for name, one in own.items() if name not in KNOWN}
        return replace(value, **changed)
    if isinstance(value, tuple):
        return tuple(map(attacked, value))
    return hostile(value)


def test_the_page_says_everything(document: Report) -> None:
    page = render_page(trace_report(document))
    for words in (
        "NVIDIA H100 80GB HBM3",
        "ProfilerStep#1",
        "Kernels, copies and fills",
        "nvjet_gemm_bf16",
        "vectorized_kernel&lt;4, AddFunctor&lt;float&gt;",
        "aten::mm",
        "[512, 1024] × [1024, 256]",
        "Net_0 &gt; Linear_0",
        "all_reduce",
        "H100 SXM, FLOP/s and bandwidth as measured and published",
        "Memory",
        "8.00 MiB",
        "exposed-communication",
        "ratchet optimize WORKLOAD --try compile",
        "33.33% of",
        "The critical path",
        "On the critical path",
        "a thread was outside of any",
        "Queues and copies over time",
        "up to 209.7 GB/s",
    ):
        assert words in page, words


def test_the_pages_load_nothing_and_run_one_script(documents: dict[str, Any]) -> None:
    for name, document in documents.items():
        page = render(name, document)
        (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert (
            f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; {policy(digest)}"
            in page
        )
        assert len(page) < 120_000
        for tag, attributes in tags(page.replace(script, "")):
            assert tag not in {"img", "iframe", "object", "embed", "video", "audio", "a"}
            assert attributes.get("href", "data:,") == "data:,"
            assert "src" not in attributes
            assert not any(key.startswith("on") for key in attributes)
        assert "http://" not in page and "https://" not in page and "url(" not in page


def test_every_text_is_escaped(documents: dict[str, Any]) -> None:
    for name, document in documents.items():
        page = render(name, attacked(document))
        assert HOSTILE not in page
        assert page.count("<script") == 1 and "<img" not in page


def test_the_parts_of_each_bar_fill_its_window(documents: dict[str, Any]) -> None:
    page = render_page(trace_report(documents["one"]))
    bars = re.findall(r'<div class="track">\s*(<i.*?)</div>', page, re.DOTALL)
    assert len(bars) == 6, "the whole window and two steps, and the critical path of each"
    whole = sum(float(width) for width in re.findall(r"width:([\d.]+)%", bars[0]))
    assert whole == pytest.approx(100, abs=0.01)
    ranks = render_page(trace_report(documents["ranks"]))
    assert "steps of rank 1" in ranks and ranks.count("ProfilerStep#1</span>") >= 2


def test_the_kinds_of_the_path_fill_the_window(documents: dict[str, Any]) -> None:
    whole, *steps = path_bars([documents["one"]], 60)
    assert sum(part.width or 0 for part in whole.marks) == pytest.approx(100, abs=0.3)
    assert [bar.title for bar in steps] == ["ProfilerStep#0", "ProfilerStep#1"]
    assert [bar.title for bar in path_bars(documents["ranks"].reports, 60)] == ["rank 0", "rank 1"]
    times = path_times([documents["one"]])
    assert sum(times.values()) == documents["one"].identity.window


def test_queues_and_copies_are_lanes_of_their_own_scale(document: Report) -> None:
    figure = series_lanes(document)
    assert figure is not None
    (copies,) = figure.rows
    assert copies.label.startswith("Memcpy") and copies.path.count("V0") == 2
    assert series_lanes(replace(document, bandwidth=(), queues=())) is None


def test_counters_and_full_queues_have_tables(document: Report) -> None:
    counter = CounterRow(
        kernel="gemm",
        counter="SQ_WAVES",
        op="aten::mm",
        top_op="aten::mm",
        count=2,
        total=10.0,
        smallest=4.0,
        largest=6.0,
    )
    full = replace(document.queues[0], longest=1100, full=5_000_000, blocked=4_000_000)
    page = render_page(trace_report(replace(document, counters=(counter,), queues=(full,))))
    for words in (
        "Performance counters",
        "SQ_WAVES",
        "Full launch queues",
        "full queue",
        "5.00 ms with 1,024 or more pieces of work",
    ):
        assert words in page, words
    assert "Full launch queues" not in render_page(trace_report(document))


def test_a_lane_is_as_high_as_it_was_busy(document: Report) -> None:
    figure = lanes([document])
    assert figure is not None
    assert [(row.label, row.value.split()[0]) for row in figure.rows] == [
        ("stream 9", "communication"),
        ("stream 7", "compute"),
        ("stream 8", "copy"),
    ]
    # 318 us of window in 400 bins: two runs of 60 us, full height, and nothing beside them.
    assert figure.rows[0].path.count("V0") == 2
    assert [tick.label for tick in figure.steps] == ["ProfilerStep#0", "ProfilerStep#1"]


def test_ranks_stand_on_one_clock_where_their_windows_meet(
    documents: dict[str, Any],
) -> None:
    ranks = documents["ranks"].reports
    figure = lanes(ranks)
    assert figure is not None and figure.aligned
    assert {row.label for row in figure.rows} == {"rank 0", "rank 1"}
    line = ranks[1].timeline
    later = replace(line, start=line.start + 10**9, end=line.end + 10**9)
    moved = lanes([ranks[0], replace(ranks[1], timeline=later)])
    assert moved is not None and not moved.aligned and moved.steps == ()


def test_the_roofline_lies_under_its_ceiling(document: Report) -> None:
    figure = roofline_plot([document])
    assert figure is not None
    roof, point = figure.series
    assert (roof.title, point.title) == ("bf16", "")
    x, y = (float(n) for n in re.findall(r"[\d.]+", point.path)[:2])
    corners = [tuple(map(float, pair.split())) for pair in roof.path[1:].split("L")]
    assert x > corners[0][0] and y > corners[1][1], (
        "to the right of the slope's foot, below the top"
    )


def test_memory_has_its_peak_in_the_legend(documents: dict[str, Any]) -> None:
    plot = memory_plot([documents["one"]])
    assert plot is not None and plot.series[0].note == "peak 8.00 MiB"
    assert memory_plot([documents["cpu"]]) is None


def test_parts_of_a_change_stand_on_their_side_of_zero(
    documents: dict[str, Any],
) -> None:
    rows = change_bars([("slower", "a", 3000), ("faster", "b", -1000)])
    assert [(bar.left, bar.width) for row in rows for bar in row.marks] == [(25, 75), (0, 25)]
    assert [bar.width for row in change_bars([("idle", "idle", 0)]) for bar in row.marks] == [0]


def test_the_page_of_a_comparison_says_what_changed(documents: dict[str, Any]) -> None:
    page = render_page(diff_report(documents["diff"]))
    for words in ("after.json takes", "ops that got slower (1)", "ops that are new (1)",
                  "ops that went away (1)", "aten::relu", "tanh", "+0.018 ms"):  # fmt: skip
        assert words in page, words


def test_a_trace_on_the_cpu_has_a_page(documents: dict[str, Any]) -> None:
    page = render_page(trace_report(documents["cpu"]))
    assert "operators that do not communicate" in page
    assert "own CPU, ms" in page and "--device NAME, FILE or here" in page
    assert "Why the device was idle" not in page


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed here")
def test_a_browser_sorts_and_filters(tmp_path: Path, document: Report) -> None:
    found, messages = in_chromium(
        render_page(trace_report(document)), tmp_path, 1200, SORT_AND_FILTER
    )
    assert messages == ""
    assert found["loads"] == []
    assert found["scroll"] <= found["client"]
    probed = found["probed"]
    assert probed["start"][0] == "ncclDevKernel_AllReduce", "the longest first"
    assert probed["said"] == "4 rows, 0.226 ms"
    assert probed["byName"] == sorted(probed["start"], key=str.lower)
    assert probed["shortestFirst"] == probed["start"][::-1]
    assert probed["sort"] == "ascending"
    assert len(probed["filtered"]) == 1 and probed["filtered"][0].startswith("vectorized_kernel")
    assert probed["filteredSaid"] == "1 of 4 rows, 0.016 ms"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed here")
def test_a_phone_shows_hostile_pages_whole_and_runs_nothing_of_theirs(
    tmp_path: Path, documents: dict[str, Any]
) -> None:
    pages = [(render(name, attacked(documents[name])), 420) for name in ("ranks", "diff")]
    for found in all_in_chromium(pages, tmp_path)[0]:
        assert found["title"] != "owned"
        assert found["scripts"] == 1
        assert found["loads"] == []
        assert found["scroll"] <= found["client"]
