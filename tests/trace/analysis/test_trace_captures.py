"""Graphs: kernels of a replay get the ops that captured them."""

from __future__ import annotations

from pathlib import Path

import made_traces as mt
import pytest

from ratchet.base.errors import TraceError
from ratchet.trace.analysis.captures import captures, joined
from ratchet.trace.analysis.links import link
from ratchet.trace.answers.report import report
from ratchet.trace.compare import report_run
from ratchet.trace.export import document

LAYERS = 3
SHAPES = {"Input_Dims": [[8, 16], [16, 4]], "Input_type": ["float", "float"]}


def captured(
    names: bool = True, layers: int = LAYERS, graphs: int = 1, more: int = 0
) -> list[dict]:
    """A capture: a product and an element-wise op in each layer, and no kernel of them.

    `more` calls at its end are of no op.
    """
    events: list[dict] = []
    for number in range(more):
        last = mt.launch(8990 + number / 100, 0.005, 0, "hipLaunchKernel")
        last["args"] |= {"kernel": "more"}
        events.append(last)
    for graph in range(graphs):
        at = 10_000 * graph
        events.append(mt.launch(at, 1, 0, "hipStreamBeginCapture"))
        for layer in range(layers):
            start = at + 10 + 50 * layer
            for place, (op, kernel) in enumerate((("aten::mm", "gemm"), ("aten::relu", "relu"))):
                call = mt.launch(start + 20 * place + 5, 2, 0, "hipLaunchKernel")
                call["args"] |= {"kernel": kernel} if names else {}
                about = SHAPES if place == 0 else {"Input_Dims": [[8, 4]], "Input_type": ["float"]}
                events += [mt.op(op, start + 20 * place, 15, **about), call]
        events.append(mt.launch(at + 9000, 1, 0, "hipStreamEndCapture"))
    return events


def replayed(times: int = 2, layers: int = LAYERS, first: str = "gemm", at: int = 0) -> list[dict]:
    """Replays: all kernels of one call have its correlation."""
    events: list[dict] = []
    for number in range(times):
        start, own = at + 10_000 * number, 70 + number
        events.append(mt.launch(start, 5, own, "hipGraphLaunch"))
        for layer in range(layers):
            events += [
                mt.kernel(first, start + 10 + 40 * layer, 20, own),
                mt.kernel("relu", start + 30 + 40 * layer, 10, own),
            ]
    return events


def test_replayed_kernels_have_the_captures_ops(tmp_path: Path) -> None:
    capture = mt.made(tmp_path, captured(), name="capture.json")
    found = report(mt.made(tmp_path, replayed()), capture=capture)
    rows = {row.name: row for row in found.roofline}
    assert set(rows) == {"aten::mm", "aten::relu"}
    product = rows["aten::mm"]
    assert (product.count, product.time) == (2 * LAYERS, 2 * LAYERS * 20_000)
    assert product.flops == 2 * LAYERS * 2 * 8 * 16 * 4
    assert rows["aten::relu"].size_bytes == 2 * LAYERS * 2 * 8 * 4 * 4
    times = {row.category: row.time for row in found.categories if not row.module}
    assert times == {"GEMM": 120_000, "element-wise": 60_000}
    assert document(found)["roofline"]
    kernels = {row.name: row for row in found.kernels}
    assert (kernels["gemm"].op, kernels["gemm"].unlinked) == ("aten::mm", 0)
    assert kernels["gemm"].shapes == "[[8, 16], [16, 4]]" and kernels["relu"].op == "aten::relu"
    alone = report(mt.made(tmp_path, replayed())).kernels
    assert {row.unlinked for row in alone} == {2 * LAYERS}


def test_a_trace_with_both_needs_no_other(tmp_path: Path) -> None:
    events = [*captured(), *replayed(at=50_000)]
    assert {row.name for row in report(mt.made(tmp_path, events)).roofline} == {
        "aten::mm", "aten::relu",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("capture", "replay", "fits"),
    [
        (captured(), replayed(), True),
        (captured(names=False), replayed(), True),  # CUDA's calls name no kernel
        (captured(), replayed(first="another"), False),
        (captured(layers=2), replayed(), False),
        (captured(graphs=2), replayed(), True),
        (replayed(), replayed(), False),
        (captured(layers=50, more=1), replayed(layers=50), True),
        (captured(layers=50, more=3), replayed(layers=50), False),
    ],
    ids=["alike", "unnamed", "another kernel", "shorter", "two alike", "none", "more", "many more"],
)
def test_only_what_fits_is_joined(
    capture: list[dict], replay: list[dict], fits: bool, tmp_path: Path
) -> None:
    trace = mt.made(tmp_path, replay)
    made = mt.made(tmp_path, capture, name="capture.json")
    source = joined(trace, link(trace), made)
    assert int((source >= 0).sum()) == (sum(e["cat"] == "kernel" for e in replay) if fits else 0)
    if len(captures(made)) == 2:  # In turn
        assert len(set(source[source >= 0].tolist())) == 2 * 2 * LAYERS


def test_a_replay_inside_a_compiled_region_has_the_captures_ops(tmp_path: Path) -> None:
    region = mt.op("Torch-Compiled Region: 0/0", -5, 50_000)
    capture = mt.made(tmp_path, captured(), name="capture.json")
    found = report(mt.made(tmp_path, [region, *replayed()]), capture=capture)
    assert {row.name for row in found.roofline} == {"aten::mm", "aten::relu"}
    alone = report(mt.made(tmp_path, [region, *replayed()]))
    assert {row.name for row in alone.roofline} == {"Torch-Compiled Region: 0/0"}


def test_a_capture_of_something_else_is_a_mistake(tmp_path: Path) -> None:
    run = mt.write(tmp_path / "run.json", replayed())
    other = mt.write(tmp_path / "other.json", captured(layers=1))
    with pytest.raises(TraceError, match="captured no graph that"):
        report_run(run, capture=other)
    with pytest.raises(TraceError, match="is a folder: choose one with --rank"):
        report_run(tmp_path, capture=other)
