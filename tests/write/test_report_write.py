"""The page of a writing run: escaped, self-contained, reloading only while the run goes on."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from html_pages import CHROMIUM, all_in_chromium, tags

from ratchet.base.measure import Ratio
from ratchet.base.show.terminal import print_report
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.verdict import Evidence, Speedups, Verdict
from ratchet.write.author import Answer
from ratchet.write.show import (
    coloured,
    headline,
    lineage,
    progress_plot,
    render_write_page,
    write_files,
    write_report,
)
from ratchet.write.writing_result import AuthorRow, WritingResult, WrittenKernel

HOSTILE = "<script>alert(1)</script>"


def kernel(name: str) -> Kernel:
    return Kernel(name=name, language="cpp", source=f"// {name}", entry="made_up")


def key(name: str) -> str:
    return kernel(name).hash


def row(name: str, ratio: float | None, number: int, **changed: object) -> Answer:
    values: dict[str, object] = {
        "kernel": kernel(name),
        "author": "search",
        "stage": "screened",
        "status": "screened",
        "reason": "about right",
        "ratio": ratio,
        "low": None if ratio is None else ratio / 1.1,
        "high": None if ratio is None else ratio * 1.1,
        "after_s": 2.0 * number,
        "rung": 0,
        "parents": (),
        "note": "drawn",
    }
    return Answer(**(values | changed))  # type: ignore[arg-type]


ROWS = (
    row("a", 1.1, 1),
    row("b", None, 2, status="wrong", reason=f"case {HOSTILE}: off", evidence=(HOSTILE,)),
    row("c", 1.5, 3, parents=(key("a"),), note=f"tile 8 -> {HOSTILE}"),
    row("d", 1.3, 4, parents=(key("c"), key("a"))),
    row("c", 1.42, 5, stage="judged", status="proven", parents=(key("a"),)),
)
BEST = WrittenKernel(
    kernel_hash=key("c"),
    name="made",
    language="cpp",
    entry="made_up",
    author="search",
    source=f'int main() {{ return 1; }} // {HOSTILE}\nconst char* s = "x";',
    status="proven",
    reason="right on every case, and faster",
    verdict=Verdict(
        status="proven",
        reason="right on every case, and faster",
        speedup=Speedups(vs_reference=Ratio(ratio=1.42, low=1.3, high=1.55, confidence=0.983)),
        evidence=[Evidence(check="speed", passed=True, detail=HOSTILE)],
        environment={"threads": 2},
        isolation="",
        kernel_hash=key("c"),
        problem_hash="p" * 64,
    ),
)
RESULT = WritingResult(
    run="0" * 32,
    problem="made_up",
    problem_hash="p" * 64,
    running=False,
    status="proven",
    best=BEST,
    stopped="budget",
    budget_s=60.0,
    spent_s=58.0,
    screened=4,
    judged=1,
    planned_verdicts=1,
    floor_s=None,
    authors=(
        AuthorRow(name="search", proposals=4, right=3),
        AuthorRow(name="compiler", proposals=0, right=0, note="no kernel for aten.fft"),
    ),
    rows=ROWS,
    sources={key("a"): "int a;", key("c"): BEST.source},
    device={"kind": "cpu", "vendor": "AMD", "model": "EPYC", "cores": 2, "threads": 2},
    versions={"ratchet": "0.1.0"},
    command="ratchet write made_up",
    started_at="2026-11-23T02:00:00+00:00",
)


def changed(**fields: object) -> WritingResult:
    return msgspec.structs.replace(RESULT, **fields)


def test_the_page_is_whole_and_escaped() -> None:
    page = render_write_page(RESULT)
    tags(page)
    assert "<script" not in page
    assert "1.42x" in page and "1.30 to 1.55" in page
    assert "no kernel for aten.fft" in page
    assert 'http-equiv="refresh"' not in page


def test_a_run_that_goes_on_reloads_its_page() -> None:
    page = render_write_page(changed(running=True, best=None, status="none", stopped=None))
    tags(page)
    assert re.search(r'http-equiv="refresh" content="3"', page)
    assert "no confirmed speed-up yet" in page


@pytest.mark.parametrize(
    ("rows", "said"),
    [((), "No kernel for made_up was tried"), (ROWS[1:2], "No right kernel for made_up")],
)
def test_a_run_without_times_has_a_page(rows: tuple[Answer, ...], said: str) -> None:
    result = changed(rows=rows, best=None, status="none", sources={}, screened=len(rows))
    page = render_write_page(result)
    tags(page)
    assert "Speed-up over the run" not in page
    assert said in page and "made_up, no right kernel" in page


def test_an_estimate_is_never_the_headline() -> None:
    interrupted = changed(best=None, status="none", stopped="interrupted")
    assert "1.5" not in headline(interrupted)
    assert "1.42x" in headline(RESULT)


def test_the_lineage_goes_from_the_first_ancestor_to_the_best() -> None:
    found = lineage(RESULT)
    assert [one.kernel_hash for one in found] == [key("a"), key("c")]
    assert found[1].parents == (key("a"),)
    assert '<td class="n">1.50x</td>' in render_write_page(RESULT)
    unjudged = lineage(changed(best=None, rows=ROWS[:4]))
    assert [one.kernel_hash for one in unjudged] == [key("a"), key("c")]


def test_the_plot_keeps_estimates_and_verdicts_apart() -> None:
    for by_time in (True, False):
        plot = progress_plot(RESULT, by_time=by_time)
        assert plot is not None
        titles = {one.title.split(",")[0]: one for one in plot.series}
        assert titles["verdict"].note == "1.42x proven"
        dots = next(one for one in plot.series if one.title.startswith("screened"))
        assert dots.path.count("M") == 3


@pytest.mark.parametrize("language", ["cpp", "triton", "torch"])
def test_sources_are_coloured_and_escaped(language: str) -> None:
    shown = str(coloured(f"x = 1  # {HOSTILE}\n", language))
    assert "<script" not in shown and "<span" in shown


def test_the_terminal_shows_the_verdict_s_figure(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(write_report(RESULT, {"kernel": "ratchet-write/made_up/kernel.cpp"}))
    text = capsys.readouterr().out
    assert "1.42x   confirmed by a verdict, 98.3 % interval" in text
    assert "1.50x" not in text
    assert "no kernel for aten.fft" in text


def without_gpu() -> WritingResult:
    verdict = msgspec.structs.replace(BEST.verdict, speedup=Speedups())
    best = msgspec.structs.replace(
        BEST, language="triton", status="correct", reason="right; no GPU", verdict=verdict
    )
    static = {"targets": {"gfx942": {"error": "made up", "kernels": [], "bounds": []}}}
    return changed(best=best, status="correct", static=static)


def test_a_kernel_that_nothing_could_time_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(write_report(without_gpu(), {}))
    text = " ".join(capsys.readouterr().out.split())
    assert "This kernel was not timed: there is no GPU here" in text
    assert "made up" in text and "1.42x" not in text


def test_a_kernel_that_nothing_could_time_is_written(tmp_path: Path) -> None:
    paths = write_files(without_gpu(), tmp_path)
    assert Path(paths["kernel"]).read_text() == BEST.source


def test_a_right_kernel_that_is_not_proven_is_written_and_named_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proven = write_files(RESULT, tmp_path)
    why = "right, but its speed is undecided: the machine was too noisy (A/A 0.15 to 6.70)"
    slow = changed(
        best=msgspec.structs.replace(BEST, status="correct", source="// slow", reason=why),
        status="correct",
    )
    paths = write_files(slow, tmp_path)
    assert "kernel" not in paths
    assert Path(paths["kernel_not_proven"]) == tmp_path / "kernel-not-proven.cpp"
    assert Path(paths["kernel_not_proven"]).read_text() == "// slow"
    assert Path(proven["kernel"]).read_text() == BEST.source, "of an earlier run"
    print_report(write_report(slow, paths))
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith(f"Not proven. Correct: {why}") and "kernel-not-proven.cpp" in text
    assert "Not proven. Correct" in render_write_page(slow)
    assert "measured by a verdict, not proven, 98.3 % interval" in text and "confirmed" not in text
    again = write_files(RESULT, tmp_path)
    assert "kernel_not_proven" not in again and not Path(paths["kernel_not_proven"]).exists()


def test_right_kernels_that_got_no_verdict_are_kept_and_told(tmp_path: Path) -> None:
    """The best of the screened is written; it is neither proven nor lost."""
    left = changed(best=None, rows=ROWS[:4], status="not_judged", unjudged=key("c"))
    paths = write_files(left, tmp_path)
    assert Path(paths["kernel_not_judged"]) == tmp_path / "kernel-not-judged.cpp"
    assert Path(paths["kernel_not_judged"]).read_text() == "// c"
    assert headline(left).startswith("Not judged: the run ended before a verdict")
    page = render_write_page(left)
    assert "No right kernel" not in page and "confirmed by" not in page
    write_files(RESULT, tmp_path)
    assert not Path(paths["kernel_not_judged"]).exists()


def test_a_verdict_that_was_not_passed_is_told() -> None:
    failed = row("c", None, 5, stage="judged", status="timed_out", reason="late", parents=())
    result = changed(best=None, status="none", rows=(*ROWS[:1], failed))
    assert headline(result) == "No kernel for made_up passed its verdict: timed out: late"


def test_a_verdict_of_the_ledger_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    best = msgspec.structs.replace(BEST, recalled=True, judged_at="2026-01-02T03:04:05+00:00")
    result = changed(best=best)
    words = "from the ledger, judged 2026-01-02 03:04 UTC; not judged again"
    print_report(write_report(result, {}))
    assert words in " ".join(capsys.readouterr().out.split())
    assert words in render_write_page(result)
    assert result.to_json()["best"]["recalled"] is True
    print_report(write_report(RESULT, {}))
    assert "from the ledger" not in capsys.readouterr().out + render_write_page(RESULT)


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
def test_it_fits_a_window_in_a_browser(tmp_path: Path) -> None:
    page = render_write_page(RESULT)
    both, messages = all_in_chromium([(page, 360), (page, 1200)], tmp_path)
    assert not messages
    for found in both:
        assert found["scroll"] <= found["client"]
        assert found["loads"] == [] and found["scripts"] == 0
        assert "owned" not in found["title"]
