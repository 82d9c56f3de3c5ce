"""What the trace commands print: figures that add up, whole at 80 columns."""

from __future__ import annotations

import io
import re
from collections import Counter
from pathlib import Path

import pytest
from made_up_trace import made_up_cpu_trace, made_up_diff, made_up_ranks, made_up_trace
from rich.console import Console

from ratchet.base.show.model import grid
from ratchet.base.show.terminal import FittedTable, print_report
from ratchet.base.show.words import share_of, show_bandwidth
from ratchet.trace.merge import Merged, MergedRank
from ratchet.trace.show import trace_report
from ratchet.trace.show.diff import diff_report, merged_report
from ratchet.trace.show.names import last_modules, short_shapes


def console() -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, width=80, markup=False, emoji=False, highlight=False), file


def test_a_report_on_the_terminal(tmp_path: Path) -> None:
    out, file = console()
    print_report(trace_report(made_up_trace(tmp_path)), out)
    said = file.getvalue()
    for words in (
        "Of 318 µs, 41.5% is idle, 30.2% is compute, 25.2% is communication that nothing",
        "compute                 30.2%",
        "33.33% of 120 µs of communication is hidden behind compute.",
        "ProfilerStep#1",
        "The critical path: what the window's length follows from",
        "would give",
        "vectorized_kernel<4, AddFunctor<float>",
        "all_reduce dp",
        "1. ",
        "ratchet optimize WORKLOAD --try",
    ):
        assert words in said, words
    assert max(len(line) for line in said.splitlines() if "--try" not in line) <= 80


def test_a_report_without_a_device(tmp_path: Path) -> None:
    out, file = console()
    print_report(trace_report(made_up_cpu_trace(tmp_path)), out)
    said = file.getvalue()
    assert "CPU only" in said and "own CPU, ms" in said
    assert "Why the device was idle" not in said and "Nothing stands out." in said


def test_a_merged_trace_on_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, file = console()
    monkeypatch.chdir(tmp_path)
    path = Path("all.json")
    path.write_bytes(bytes(2048))
    ranks = (MergedRank(rank=1, events=5, shift=-1500, file="r1.json"),)
    print_report(
        merged_report(Merged(path=path, ranks=ranks, aligned=False, faults=("cut off",))), out
    )
    said = file.getvalue()
    for words in ("warning: cut off", "-0.002", "do not meet", "2.00 KiB"):
        assert words in said, words
    assert max(len(line) for line in said.splitlines()) <= 80


def test_ranks_say_who_was_late(tmp_path: Path) -> None:
    out, file = console()
    print_report(trace_report(made_up_ranks(tmp_path)), out)
    said = file.getvalue()
    assert "over 2 ranks" in said
    assert "Rank 1 is the straggler" in said
    assert max(len(line) for line in said.splitlines() if "--try" not in line) <= 80


def test_a_comparison_adds_up(tmp_path: Path) -> None:
    out, file = console()
    found = made_up_diff(tmp_path)
    print_report(diff_report(found), out)
    said = file.getvalue()
    parts = said.split("What makes the change")[1].split("together")[0]
    numbers = [
        line.split()[-1] for line in parts.splitlines() if line.startswith(("ops", "work", "idle"))
    ]
    assert sum(float(number) for number in numbers) * 1e6 == pytest.approx(found.window_change)
    for words in ("Slower: 1", "New: 1", "Gone: 1", "Linear", "aten::relu", "+0.018"):
        assert words in said, words
    assert max(len(line) for line in said.splitlines()) <= 80


@pytest.mark.parametrize("width", [24, 40, 60])
def test_no_figure_is_cut_on_a_narrow_terminal(tmp_path: Path, width: int) -> None:
    def said(columns: int) -> str:
        file = io.StringIO()
        out = Console(file=file, width=columns, markup=False, emoji=False, highlight=False)
        print_report(trace_report(trace), out)
        print_report(trace_report(ranks), out)
        print_report(diff_report(changed), out)
        return file.getvalue()

    trace, ranks = made_up_trace(tmp_path), made_up_ranks(tmp_path / "ranks")
    changed = made_up_diff(tmp_path)
    wide, narrow = said(200), said(width)
    figures = re.compile(r"[+-]?[\d,]*\d\.\d+%?")
    assert Counter(figures.findall(narrow)) == Counter(figures.findall(wide))
    assert max(len(line) for line in narrow.splitlines() if "--try" not in line) <= width


def test_a_row_that_does_not_fit_becomes_lines() -> None:
    file = io.StringIO()
    rows = [("a kernel with a long name", "150.250", "1,000", "", "it is late")]
    made = FittedTable.of(grid(("kernel", "window, ms", "count", "share", "why"), rows))
    Console(file=file, width=30).print(made)
    assert [line.rstrip() for line in file.getvalue().splitlines()] == [
        "a kernel with a long name", "  window, ms  150.250", "  count       1,000",
        "  why         it is late",
    ]  # fmt: skip


def test_shapes_modules_shares_and_rates() -> None:
    assert short_shapes("[[2, 3], [], [3, 4], 5]") == "[2, 3] × [3, 4] × 5"
    assert short_shapes("[[[7], [8, 9]]]") == "[7] × [8, 9]"
    assert short_shapes("not shapes") == "not shapes" and short_shapes("") == ""
    assert last_modules("A_0 > B_1 > C_2") == "… B_1 > C_2" and last_modules("") == ""
    assert [share_of(n, 10_000) for n in (0, 1, 5000, 9999, 10_000)] == [
        "0", "<0.1%", "50.0%", ">99.9%", "100.0%",
    ]  # fmt: skip
    assert [show_bandwidth(rate) for rate in (0, 5e6, 2.5e9)] == ["-", "5.0 MB/s", "2.5 GB/s"]
