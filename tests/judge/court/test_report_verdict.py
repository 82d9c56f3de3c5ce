"""The pages and tables of the judge: complete, escaped, whole at 80 columns and in a browser."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from html_pages import CHROMIUM, all_in_chromium, hostile, in_chromium, tags
from made_up_verdict import CHOICES, judged_of, make_judged, make_profile, make_row
from rich.console import Console

from ratchet.amd.profile import inspection_report
from ratchet.base.show.page import render_page
from ratchet.base.show.terminal import make_console, print_report
from ratchet.judge.court.show import MEANING, static_tables, verdict_report
from ratchet.judge.court.show_suite import SuiteProgress, suite_report
from ratchet.judge.court.suite import SuiteResult, SuiteRow, answered, summarise
from ratchet.judge.verdict import Status, Verdict


def console(width: int = 80, *, terminal: bool = False) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    made = Console(
        file=file,
        width=width,
        force_terminal=terminal,
        markup=False,
        emoji=False,
        highlight=False,
    )
    return made, file


def page_of(document: dict[str, Any]) -> str:
    return render_page(verdict_report(judged_of(document)))


def make_suite(rows: list[dict[str, Any]], *, interrupted: bool = False) -> SuiteResult:
    """A suite's table with these rows."""
    made = [msgspec.convert(row, SuiteRow) for row in rows]
    return SuiteResult(
        suite="training",
        candidate="library",
        tier="cpu",
        summary={
            "all": summarise(made, against_compile=True),
            "answered": summarise(answered(made), against_compile=True),
        },
        rows=made,
        interrupted=interrupted,
        device={"kind": "cpu", "model": "A CPU", "cores": 2, "memory_bytes": 1 << 34},
        versions={"ratchet": "0.1.0", "torch": "2.13.0"},
        command="ratchet judge --suite training",
        started_at="2026-01-31T09:14:15.926535+00:00",
        duration_s=321.0,
    )


ROWS = [
    make_row("softmax_forward", "proven", 2.1),
    make_row("rms_norm_forward", "correct", 1.02, recalled=True),
    make_row("rope_forward", "wrong"),
    make_row("lion", "unanswered", reason="library has no kernel for it"),
    make_row("muon", "unanswered", reason="library has no kernel for it"),
]


def test_the_made_up_verdict_is_one() -> None:
    document = make_judged()["verdict"]
    verdict = msgspec.convert(document, Verdict)
    assert msgspec.convert(msgspec.to_builtins(verdict), Verdict) == verdict


def test_every_status_has_a_meaning() -> None:
    assert set(get_args(Status)) <= set(MEANING)


def test_the_page_of_a_verdict_says_everything() -> None:
    page = page_of(make_judged())
    for words in (
        "Proven",
        "right on every case, and faster: 2.01x",
        "problem gate",
        "correct on hidden_0",
        "output 0: 0.31 of 1",
        "against the reference (eager)",
        "against torch.compile",
        "1.50 to 1.71",
        "the reference again (A/A)",
        "512 × 1024",
        "library matmul allowed",
        "bubblewrap, fresh uid",
        "2026-01-31 09:14 UTC",
        "softmax_kernel (BLOCK 1024, warps 4, stages 2)",
        "16 × 32x32x8 bf16",
        "MI300X",
        "no such shape",
        "OMP NUM THREADS",
    ):
        assert words in page, words


def test_an_author_does_not_learn_the_hidden_shapes_from_the_page() -> None:
    page = page_of(make_judged(evidence=[], static=None))
    assert "7 × 33" in page
    assert "3 × 5" not in page and "hidden_0" not in page


def test_the_page_of_a_verdict_is_small_and_loads_nothing() -> None:
    page = page_of(make_judged())
    assert len(page) < 100_000
    assert "default-src 'none'" in page
    for tag, attributes in tags(page):
        assert tag not in {"script", "img", "iframe", "object", "embed", "video", "audio"}
        assert attributes.get("href", "data:,") == "data:,"
        assert not any(name.startswith("on") for name in attributes)
    assert "http://" not in page and "https://" not in page and "url(" not in page


def test_every_text_of_a_verdict_is_escaped() -> None:
    judged = make_judged()
    attacked = hostile(judged, but=CHOICES)
    page = page_of(attacked)
    assert "<script" not in page and "<img" not in page
    assert set(tag for tag, _ in tags(page)) <= set(tag for tag, _ in tags(page_of(judged)))


COUNTS = ("launches", "programs", "waves", "instructions", "vector_instructions")
MORE_COUNTS = ("scalar_instructions", "accessed_bytes", "touched_bytes", "lines_64", "lds_bytes")
EMULATED: dict[str, Any] = {
    "name": "k",
    "matrix_instructions": {},
    "lanes_off": 0.5,
    "lds_conflicts": 0,
    **dict.fromkeys((*COUNTS, *MORE_COUNTS), 1),
}


def test_the_source_of_an_emulated_kernel_shows_where_its_work_is() -> None:
    def line(place: str, cycles: int, lines_64: int) -> dict[str, Any]:
        rest = {"instructions": 9, "lanes_off": 0.5, "lds_conflicts": 0}
        return {"place": place, "cycles": cycles, "lines_64": lines_64, **rest}

    lines = [line("kernel.py:5", 30, 0), line("kernel.py:7", 10, 8), line("<b>.py:1", 0, 0)]
    judged = make_judged()
    judged["kernel"]["source"] = "\n".join(f"<i> line {n}" for n in range(1, 12))
    kernel = EMULATED | {"lines": lines}
    case = {"case": "ci", "target": "gfx942", "kernels": [kernel], "bounds": []}
    judged["verdict"]["emulated"] = [case]
    page = page_of(judged)
    assert "Where the emulated work is" in page and "k on gfx942, case ci" in page
    assert "75.0%" in page and "width:75%" in page and "width:100%" in page
    assert "&lt;i&gt; line 3" in page and "&lt;i&gt; line 9" in page
    assert "<b>.py" not in page and "&lt;b&gt;.py:1" in page
    judged["verdict"]["emulated"] = []
    assert "emulated work" not in page_of(judged)


def emulated_case(**changes: Any) -> dict[str, Any]:
    """A case with everything that the emulator tells, as a verdict keeps it."""
    line = {"place": "kernel.py:1", "instructions": 9, "cycles": 30, "lanes_off": 0.5}
    line |= {"lines_64": 0, "lds_conflicts": 0, "assembly": [["v_add_f32 <v0>, v1", 1234]]}
    waves = [[[0, 0, 30], [1, 30, 40]], [[0, 0, 10]]]
    places = ["kernel.py:1", "standard.py:9"]
    timeline = {"cycles": 80, "slot": 2, "barriers": [20], "places": places, "waves": waves}
    kernel = EMULATED | {"lines": [line], "vgprs": 96, "workgroup_waves": 4}
    kernel |= {"workgroup_lds_bytes": 1024, "occupancy_waves": 5, "max_waves": 8}
    kernel |= {"occupancy_limit": "registers", "timeline": timeline}
    parts = dict.fromkeys(("memory_s", "matrix_s", "vector_s", "lds_s"), 1e-6)
    bound = {"device": "MI300X", "time_s": 4e-6, **parts}
    case = {"case": "ci", "target": "gfx942", "kernels": [kernel], "bounds": [bound]}
    case |= {"reference_bounds": [bound | {"time_s": 1e-5}], "estimated_speedup": 2.5}
    case["predicted"] = {"device": "MI300X", "time_s": 7e-6, "low_s": 3e-6, "high_s": 3e-5}
    return case | changes


def test_a_line_of_an_emulated_kernel_holds_its_instructions_and_the_waves_their_order() -> None:
    page = page_of(make_judged(emulated=[emulated_case()]))
    assert "<b>1,234</b>v_add_f32 &lt;v0&gt;, v1" in page
    assert "5 of 8 waves on a SIMD, limited by the registers of a lane" in page
    assert "an order, not time" in page and "80 counted cycles" in page
    assert 'class="hue0" style="left:0.0%;width:75.0%" title="1: import triton"' in page
    assert 'class="hue1" style="left:75.0%;width:25.0%" title="standard.py:9"' in page
    assert '<b style="left:25.0%"></b>' in page


@pytest.mark.parametrize("why", ["", "Inductor leaves <aten.mm> to a library"])
def test_an_estimate_stands_apart_from_what_was_measured(why: str) -> None:
    case = emulated_case()
    if why:
        case |= {"reference_bounds": [], "estimated_speedup": None, "no_estimate": why}
    changes = {"emulated": [case], "speedup": {}, "samples": []}
    page = page_of(make_judged(**changes))
    header, _, rest = page.partition("</header>")
    assert "estimated_speedup" not in header and "2.5" not in header.partition("<h1>")[2]
    assert "a ratio of lower bounds, not timed" in rest
    assert ("&lt;aten.mm&gt;" in rest) == bool(why) and (">2.5<" in rest) != bool(why)
    out, file = console()
    print_report(verdict_report(judged_of(make_judged(**changes))), out)
    said = " ".join(file.getvalue().split())
    assert "predicted" in said and "7.00 µs (3.00 to 30.0)" in said
    assert "nothing was timed, or the times" in said and "of lower bounds, not timed" in said
    assert ("no estimate: Inductor" in said) == bool(why)


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium")
@pytest.mark.parametrize("width", [1280, 390])
def test_an_emulated_verdict_s_page_does_not_overflow(tmp_path: Path, width: int) -> None:
    page = page_of(make_judged(emulated=[emulated_case()]))
    found, messages = in_chromium(page, tmp_path, width)
    assert not messages and found["scroll"] <= found["client"]


def test_an_interval_says_its_confidence_where_it_is_known() -> None:
    judged = make_judged()
    page = page_of(judged)
    assert "95 % interval 1.90 to 2.12" in page
    assert '"note">interval 1.50 to 1.71' in page
    out, file = console()
    print_report(verdict_report(judged_of(judged)), out)
    assert "2.01x   95 % interval 1.90 to 2.12" in file.getvalue()
    assert "1.60x   interval 1.50 to 1.71" in file.getvalue()


def test_a_verdict_with_nothing_in_it_is_still_a_page() -> None:
    page = page_of(
        make_judged(
            status="refused",
            reason="the problem cannot be judged: no Model",
            evidence=[],
            samples=[],
            static=None,
            speedup={"vs_reference": None, "vs_compile": None},
            environment={},
        )
    )
    tags(page)
    assert "Nothing was checked." in page
    assert "nothing was timed" in page
    assert "Compiled code" not in page


def test_each_timed_case_has_its_plot_with_every_sample() -> None:
    samples = make_judged()["verdict"]["samples"]
    second = [sample | {"case": "cpu_1"} for sample in samples]
    page = page_of(make_judged(samples=[*samples, *second]))
    drawn = [attributes["d"] or "" for tag, attributes in tags(page) if tag == "path"]
    assert sum(path.count("M") for path in drawn) == 2 * len(samples)
    assert "cpu_1" in page


def test_an_arm_of_another_name_is_drawn_too() -> None:
    samples = [
        sample | {"arm": "another rival"} if sample["arm"] == "candidate" else sample
        for sample in make_judged()["verdict"]["samples"]
    ]
    assert "another rival" in page_of(make_judged(samples=samples))


def test_a_verdict_on_the_terminal() -> None:
    out, file = console()
    print_report(verdict_report(judged_of(make_judged()), {"page": "ratchet-out/page.html"}), out)
    said = file.getvalue()
    assert said.startswith("Proven: right on every case")
    assert "problem gate" in said
    assert "against the reference (eager)   2.01x   95 % interval 1.90 to 2.12" in said
    assert "against torch.compile           1.60x   interval 1.50 to 1.71" in said
    assert "ratchet-out/page.html" in said
    assert max(len(line) for line in said.splitlines()) <= 80


def test_a_verdict_of_the_ledger_is_marked_wherever_it_is_shown() -> None:
    words = "from the ledger, judged 2026-01-31 09:14 UTC; not judged again"
    moment = "2026-01-31T09:14:15.926535+00:00"
    judged = make_judged() | {"recalled": True, "judged_at": moment}
    out, text = console()
    print_report(verdict_report(judged_of(judged)), out)
    assert words in text.getvalue()
    assert words in page_of(judged)
    assert "from the ledger" not in page_of(make_judged())
    page = render_page(suite_report(make_suite(ROWS), {}))
    assert page.count("(from the ledger)") == 1 and "correct (from the ledger)" in page
    out, text = console(120)
    print_report(suite_report(make_suite(ROWS)), out)
    assert text.getvalue().count("(from the ledger)") == 1


def test_what_failed_stands_out_on_the_terminal() -> None:
    out, file = console()
    evidence = [{"check": "correct on cpu_0", "passed": False, "detail": "input 0 was changed"}]
    print_report(
        verdict_report(
            judged_of(make_judged(status="wrong", reason="no", evidence=evidence, static=None))
        ),
        out,
    )
    assert "NO" in file.getvalue() and "input 0 was changed" in file.getvalue()


def test_a_profile_compares_the_targets() -> None:
    out, file = console(100)
    print_report(inspection_report(make_profile()), out)
    said = file.getvalue()
    assert "gfx942" in said and "gfx950" in said
    assert "gfx950: 7 registers are spilled" in said
    assert "gfx1100: the entry raised ValueError" in said
    assert "did not keep: 1" in said
    assert "No faster than (estimate)" in said and "15.0 µs" in said
    assert "BLOCK 2048" not in said


def test_a_verdict_without_a_profile_has_no_such_table() -> None:
    assert static_tables(None) == []
    assert static_tables({"error": "triton is not installed"}) == []


def test_the_table_of_a_suite_lists_every_problem() -> None:
    out, file = console()
    print_report(suite_report(make_suite(ROWS), paths={"page": "ratchet-out/training.html"}), out)
    said = file.getvalue()
    for row in ROWS:
        assert row["name"] in said
    assert "library on training: 1 proven, 1 correct, 1 wrong, 2 unanswered." in " ".join(
        said.split()
    )
    assert "lion, muon" in said
    assert "1 verdicts from the ledger" in " ".join(said.split())
    assert "All problems: 5, right: 2" in said
    assert "Problems with a kernel: 3, right: 2" in said
    assert "> 1.2" in said and "counts as 0.01x" in " ".join(said.split())
    assert max(len(line) for line in said.splitlines()) <= 80


def test_a_suite_whose_problems_are_all_answered_is_scored_once() -> None:
    out, file = console()
    print_report(suite_report(make_suite(ROWS[:2])), out)
    assert file.getvalue().count("> 1.2") == 1


def test_an_interrupted_run_says_so() -> None:
    rows = [*ROWS, make_row("last", "not_reached")]
    out, file = console()
    print_report(suite_report(make_suite(rows, interrupted=True)), out)
    assert "continue from the ledger" in file.getvalue()
    assert "1 problems were not reached" in render_page(
        suite_report(make_suite(rows, interrupted=True), {})
    )


def test_the_page_of_a_suite_leads_to_the_verdicts() -> None:
    page = render_page(suite_report(make_suite(ROWS), {"softmax_forward": "verdicts/softmax.html"}))
    links = [attributes.get("href") for tag, attributes in tags(page) if tag == "a"]
    assert links == ["verdicts/softmax.html"]
    for words in ("rope_forward is wrong", "2.00 to 2.20", "16.0 GiB", "2.13.0"):
        assert words in page, words


def test_every_text_of_a_suite_is_escaped() -> None:
    attacked = hostile(msgspec.to_builtins(make_suite(ROWS)), but=CHOICES)
    page = render_page(suite_report(msgspec.convert(attacked, SuiteResult), {}))
    assert "<script" not in page and "<img" not in page


def test_piped_progress_is_a_line_for_each_problem() -> None:
    out, file = console()
    with SuiteProgress(2, console=out) as progress:
        progress.show(msgspec.convert(ROWS[0], SuiteRow))
    assert file.getvalue() == "1 of 2 problems: softmax_forward: proven, 2.10x (2.00 to 2.20)\n"


def test_progress_keeps_each_verdict_on_a_terminal() -> None:
    out, file = console(terminal=True)
    with SuiteProgress(2, console=out) as progress:
        progress.show(msgspec.convert(ROWS[0], SuiteRow))
    assert "softmax_forward: proven, 2.10x (2.00 to 2.20)" in file.getvalue()


def test_the_console_of_a_report_is_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(suite_report(make_suite(ROWS)), make_console())
    assert "softmax_forward" in capsys.readouterr().out


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed here")
def test_a_browser_shows_a_verdict_whole(tmp_path: Path) -> None:
    page, widths = page_of(make_judged()), (420, 1200)
    both, messages = all_in_chromium([(page, width) for width in widths], tmp_path)
    assert messages == ""
    for found, width in zip(both, widths, strict=True):
        assert found["title"] == "softmax_forward, proven: Ratchet"
        assert found["loads"] == []
        assert found["scroll"] <= found["client"]
        assert found["dots"] > width / 2


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed here")
def test_a_browser_runs_nothing_that_a_kernel_holds(tmp_path: Path) -> None:
    attacked = hostile(make_judged(), but=CHOICES)
    found, _ = in_chromium(page_of(attacked), tmp_path, 420)
    assert found["title"] != "owned"
    assert found["scripts"] == 0
    assert found["loads"] == []
