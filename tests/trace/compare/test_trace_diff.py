"""Two traces: the rows, what is hidden and what is idle add up to the change of the window."""

from __future__ import annotations

from pathlib import Path

import made_traces as mt
import pytest

from ratchet.base.errors import TraceError
from ratchet.trace.analysis import Analysis, analyse
from ratchet.trace.compare import diff
from ratchet.trace.show.words import diff_headline


def work(kernel: str, duration: float, extra: list[dict]) -> list[dict]:
    return [
        mt.module("Linear_0", 0, 20), mt.op("aten::addmm", 1, 5), mt.launch(2, 1, 1),
        mt.kernel(kernel, 10, duration, 1), *extra,
    ]  # fmt: skip


def test_what_changed_is_reconciled(tmp_path: Path) -> None:
    before = mt.made(tmp_path, work("Cijk_gemm", 8, [mt.copy(12, 10)]))
    after = mt.made(tmp_path, work("cutlass_gemm", 11, [mt.kernel("fresh", 15, 9)]))
    found = diff(analyse(before), analyse(after))
    rows = {row.op: row for row in found.rows}
    assert (rows["aten::addmm"].state, rows["aten::addmm"].change) == ("slower", 3000)
    assert rows["aten::addmm"].module == "Linear_0"
    assert rows["aten::addmm"].kernels_before == ("Cijk_gemm",)
    assert rows["aten::addmm"].kernels_after == ("cutlass_gemm",)
    assert {op: rows[op].state for op in rows if op != "aten::addmm"} == {
        "Memcpy HtoD (Pageable -> Device)": "gone", "fresh": "new",
    }  # fmt: skip
    assert (found.before.window, found.after.window) == (12_000, 14_000)
    assert sum(r.change for r in found.rows) + found.hidden_change == 2000
    assert sum(found.parts_change.values()) == found.window_change


def test_recordings_of_unlike_many_steps_compare_by_the_step(tmp_path: Path) -> None:
    def steps(count: int, kernel: float) -> Analysis:
        each = ([mt.step(i, 100 * i, 100), mt.op("aten::mm", 100 * i, 9),
                 mt.launch(100 * i + 1, 1, i + 1), mt.kernel("gemm", 100 * i + 5, kernel, i + 1)]
                for i in range(count))  # fmt: skip
        return analyse(mt.made(tmp_path, [one for events in each for one in events]))

    found = diff(steps(2, 60), steps(4, 80))
    (row,) = found.rows
    assert (row.state, row.before, row.after) == ("slower", 60_000, 80_000)
    assert (row.count_before, row.count_after) == (1, 1)
    assert sum(found.parts_change.values()) == found.window_change > 0
    assert " a step where " in diff_headline(found) and "longer" in diff_headline(found)

    def unmarked(count: int) -> Analysis:
        return analyse(mt.made(tmp_path, [
            one for i in range(count) for j, name in enumerate(("mm", "add", "mul"))
            for one in (mt.op(f"aten::{name}", 100 * i + 20 * j, 9),
                        mt.launch(100 * i + 20 * j + 1, 1, 9 * i + j + 1),
                        mt.kernel(name, 100 * i + 20 * j + 5, 5, 9 * i + j + 1))
        ]))  # fmt: skip

    assert "ran most ops 1.5 times as often" in diff(unmarked(2), unmarked(3)).faults[-1]
    assert not diff(unmarked(2), unmarked(2)).faults
    alike = diff(steps(3, 60), steps(3, 80))
    assert alike.rows[0].before == 180_000 and " a step " not in diff_headline(alike)


def test_a_trace_against_itself_changes_nothing(tmp_path: Path) -> None:
    side = analyse(mt.made(tmp_path, work("gemm", 8, [])))
    found = diff(side, side)
    assert {row.state for row in found.rows} == {"same"}
    assert (found.window_change, found.hidden_change, found.idle_change) == (0, 0, 0)


def test_cpu_only_traces_compare_by_operator(tmp_path: Path) -> None:
    sides = [analyse(mt.made(tmp_path, [mt.op("aten::mm", 0, time)])) for time in (5, 9)]
    found = diff(*sides)
    assert [(row.op, row.change) for row in found.rows] == [("aten::mm", 4000)]
    with pytest.raises(TraceError, match="no device work"):
        diff(sides[0], analyse(mt.made(tmp_path, work("gemm", 8, []))))


@pytest.mark.parametrize("model", ["bert-small", "qwen1.5-0.5b"])
def test_across_vendors_modules_and_ops_match(model: str) -> None:
    h100, mi300x = (mt.recorded(f"{device}-{model}") for device in ("h100", "mi300x"))
    found = diff(analyse(h100), analyse(mi300x))
    matched = [row for row in found.rows if row.state not in ("new", "gone")]
    shared = sum(row.before for row in matched)
    assert shared > 0.9 * sum(row.before for row in found.rows)
    assert any(row.kernels_before and row.kernels_after for row in matched)


def convolved(library: str, duration: float) -> list[dict]:
    return [
        mt.module("Conv2d_0", 0, 40),
        mt.op(f"aten::{library}_convolution", 2, 20),
        mt.launch(4, 2, 1),
        mt.kernel(f"{library}_kernel", 10, duration, 1),
        mt.copy(60, 5, size=64),
    ]


def test_back_ends_of_one_op_are_paired(tmp_path: Path) -> None:
    before = mt.made(tmp_path, convolved("cudnn", 8))
    after = mt.made(tmp_path, convolved("miopen", 11))
    found = diff(analyse(before), analyse(after))
    row = next(row for row in found.rows if row.module)
    assert (row.op, row.state) == ("aten::cudnn_convolution / miopen_convolution", "slower")
    assert (row.before, row.after, row.change) == (8000, 11_000, 3000)
    assert (row.kernels_before, row.kernels_after) == (("cudnn_kernel",), ("miopen_kernel",))
    # The same op on both sides keeps its name.
    same = diff(analyse(before), analyse(before))
    assert {row.op for row in same.rows if row.module} == {"aten::cudnn_convolution"}


def test_categories_change_as_the_rows_do(tmp_path: Path) -> None:
    before = mt.made(tmp_path, convolved("cudnn", 8))
    found = diff(analyse(before), analyse(mt.made(tmp_path, convolved("miopen", 11))))
    changes = {row.category: row.change for row in found.categories}
    assert changes == {"convolution": 3000, "copy": 0}
    assert sum(changes.values()) == sum(row.change for row in found.rows)
