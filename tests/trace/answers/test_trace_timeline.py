"""Bins of the window, groups and sums of a comparison, what a trace without a device answers."""

from __future__ import annotations

from pathlib import Path

import made_traces as mt
import pytest

from ratchet.trace.analysis import analyse
from ratchet.trace.answers.ceilings import named_ceilings
from ratchet.trace.answers.report import report
from ratchet.trace.answers.work import work
from ratchet.trace.compare import compare, diff, side, together
from ratchet.trace.read import read


def layers(duration: float, count: int = 2) -> list[dict]:
    """Layers of one class, each with a product; the last has a kernel of its own."""
    events = [mt.module("Net_0", 0, 100 * count)]
    for i in range(count):
        at = 100 * i
        events += [
            mt.module(f"Block_{i}", at + 1, 90), mt.op("aten::mm", at + 2, 20),
            mt.launch(at + 3, 1, i + 1),
            mt.kernel(f"gemm_{i}" if i == count - 1 else "gemm", at + 10, duration, i + 1),
        ]  # fmt: skip
    return events


@pytest.mark.parametrize(
    "name", ["mi300x-resnet-ddp-rank0of8", "v100-oldnames-unlinked-nccl", "made"]
)
def test_the_bins_sum_to_the_identity(tmp_path: Path, name: str) -> None:
    path = mt.write(tmp_path / "a.json", layers(7)) if name == "made" else mt.real_trace(name)
    found = report(read(path))
    line, whole = found.timeline, found.identity
    sums = {lane.sort: lane.total for lane in line.together}
    assert sums.get("compute", 0) == whole.compute
    assert sums.get("communication", 0) == whole.communication
    assert sums.get("copy", 0) == whole.copy
    assert (line.start, line.end - line.start) == (whole.start, whole.window)
    assert all(len(lane.busy) == line.bins for lane in (*line.together, *line.lanes))
    busy = {(row.stream): row.busy for row in found.streams}
    for lane in line.lanes:
        assert lane.total <= busy[int(lane.name.removeprefix("stream "))]


def test_layers_are_one_group(tmp_path: Path) -> None:
    before, after = (analyse(mt.made(tmp_path, layers(time))) for time in (5, 8))
    found = diff(before, after)
    assert {row.module for row in found.rows} == {"Net_0 > Block_0", "Net_0 > Block_1"}
    (group,) = found.groups
    assert (group.module, group.modules, group.change) == ("Net > Block", 2, 6000)
    assert (group.count_before, group.count_after, group.state) == (2, 2, "slower")


def test_ranks_are_compared_by_their_sums(tmp_path: Path) -> None:
    one, other = (side(analyse(mt.made(tmp_path, layers(time)))) for time in (5, 9))
    found = compare(together("before", [one, one]), together("after", [one, other]))
    assert (found.before.name, len(found.before.ranks)) == ("before", 2)
    assert sum(row.change for row in found.rows) == 8000
    assert found.after.window == one.window + other.window


def test_a_cpu_trace_has_modules_and_a_roofline(tmp_path: Path) -> None:
    events = [
        mt.module("Linear_0", 0, 30),
        mt.op("aten::linear", 1, 25),
        mt.op("aten::mm", 2, 20, Input_Dims=[[64, 64], [64, 64]], Input_type=["float", "float"]),
    ]
    found = report(mt.made(tmp_path, events), named_ceilings("H100"))
    assert [(row.path, row.forward) for row in found.modules] == [("Linear_0", 25_000)]
    row, unknown = found.roofline
    assert (unknown.name, unknown.known) == ("aten::linear", False)
    assert (row.name, row.time, row.flops) == ("aten::mm", 20_000, 2 * 64**3)
    assert row.least > 0 and row.roof_flops_per_s > 0


def test_attention_on_the_cpu_takes_heads_before_tokens() -> None:
    dims, kinds = "[[2, 4, 128, 16], [2, 4, 96, 16], [2, 4, 96, 16]]", '["float", "float", "float"]'
    found = work("aten::_scaled_dot_product_flash_attention_for_cpu", dims, kinds)
    assert found is not None and found.flops == 4 * (2 * 4 * 128 * 16) * 96
