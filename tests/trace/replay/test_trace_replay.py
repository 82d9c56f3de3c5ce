"""Calls out of a trace: grouped, built again as recorded, run in a process of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import made_traces as mt
import pytest
import torch

from ratchet.base.errors import TraceError
from ratchet.trace.analysis.analyse import analyse
from ratchet.trace.read.file import read
from ratchet.trace.replay.calls import calls, costly_ops
from ratchet.trace.replay.rebuild import Unbuildable, build
from ratchet.trace.replay.recorded import Recorded
from ratchet.trace.replay.replay import ReplayRow, replay

GIB = 2**30


def recorded(op: str, *inputs: tuple[Any, str, Any, str]) -> Recorded:
    """(sizes, type, strides, value) of each input."""
    dims, types, strides, values = zip(*inputs, strict=True)
    return Recorded(op=op, dims=dims, types=types, strides=strides, values=values)


def tensor(sizes: list[int], kind: str = "float", strides: list[int] | None = None) -> tuple:
    return (sizes, kind, strides, "")


def plain(value: str, kind: str = "Scalar") -> tuple:
    return ([], kind, [], value)


NOTHING = plain("", "")


def event(op: str, start: float, dims: list, types: list, values: list | None = None) -> dict:
    inputs = {"Input Dims": dims, "Input type": types, "Input Strides": [[] for _ in dims]}
    inputs |= {"Concrete Inputs": values} if values else {}
    return mt.span("cpu_op", op, start, 8, **inputs)


def test_calls_are_grouped_by_their_inputs(tmp_path: Path) -> None:
    events = [
        *(event("aten::mm", 10 * i, [[4, 8], [8, 2]], ["float", "float"]) for i in range(3)),
        event("aten::mm", 30, [[5, 8], [8, 2]], ["float", "float"]),
        event("aten::mul", 40, [[4], []], ["float", "Scalar"], ["", "2."]),
        mt.launch(11, 1, 1), mt.kernel("gemm", 50, 7, 1), mt.launch(32, 1, 2),
        mt.kernel("gemm", 60, 9, 2), mt.kernel("epilogue", 70, 2, 2),
    ]  # fmt: skip
    path = mt.write(tmp_path / "a.json.gz", events)
    found = analyse(read(path))
    assert costly_ops(found, 5) == ("aten::mm",)
    first, second = calls(path, found, ["aten::mm"], print)
    assert (first.recorded.dims[0], first.count, first.time) == ([5, 8], 1, 11_000)
    assert (second.recorded.dims[0], second.count, second.time) == ([4, 8], 3, 7000)
    assert first.recorded.types == ("float", "float") and first.recorded.values is None
    (times,) = calls(path, found, ["aten::mul"], print)
    assert (times.recorded.values, times.time) == (("", "2."), 0)
    with pytest.raises(TraceError, match="has no call of aten::bmm"):
        calls(path, found, ["aten::bmm"], print)
    bare = mt.write(tmp_path / "bare.json", [mt.op("aten::mm", 0, 5)])
    with pytest.raises(TraceError, match="record_shapes=True"):
        calls(bare, analyse(read(bare)), ["aten::mm"], print)


def test_tensors_have_the_recorded_sizes_strides_and_types() -> None:
    made = build(
        recorded("aten::addmm", tensor([3], "c10::BFloat16", [1]),
                 tensor([4, 8], "c10::BFloat16", [8, 1]), tensor([8, 3], "c10::BFloat16", [1, 8]),
                 plain("1"), plain("0.5")),
        "cpu", GIB,
    )  # fmt: skip
    bias, left, right = made.arguments
    assert made.keywords == {"beta": 1, "alpha": 0.5}
    assert (right.shape, right.stride(), right.dtype) == ((8, 3), (1, 8), torch.bfloat16)
    assert made.size_bytes == 2 * (3 + 32 + 24)
    torch.testing.assert_close(
        made.call(*made.arguments, **made.keywords), torch.addmm(bias, left, right, alpha=0.5)
    )


@pytest.mark.parametrize(
    ("call", "shape"),
    [
        (recorded("aten::expand", tensor([1, 3]), plain("[4, -1]", "ScalarList"), plain("False")),
         (4, 3)),
        (recorded("aten::mul", tensor([2, 3]), tensor([], "double")), (2, 3)),
        (recorded("aten::add", tensor([2, 3]), plain("1."), plain("1")), (2, 3)),
        (recorded("aten::mean", tensor([2, 3]), plain("[-1]", "ScalarList"), plain("True"),
                  NOTHING), (2, 1)),
        (recorded("aten::empty", plain("[2, 5]", "ScalarList"), plain("6"), plain("0"), NOTHING,
                  NOTHING, NOTHING), (2, 5)),
        (recorded("aten::embedding", tensor([9, 4]), tensor([2, 3], "long int"), plain("-1"),
                  plain("False"), plain("False")), (2, 3, 4)),
        (recorded("aten::gather", tensor([4, 9]), plain("1"), tensor([4, 2], "long int"),
                  plain("False")), (4, 2)),
        (recorded("aten::conv2d", tensor([2, 3, 8, 8]), tensor([5, 3, 3, 3]), NOTHING,
                  plain("[1, 1]", "ScalarList"), plain("[0, 0]", "ScalarList"),
                  plain("[1, 1]", "ScalarList"), plain("1")), (2, 5, 6, 6)),
        (recorded("aten::gelu", tensor([4]), plain("tanh", "")), (4,)),
        (recorded("aten::mm", tensor([0, 3]), tensor([3, 2])), (0, 2)),
        (recorded("aten::nll_loss", tensor([6, 5]), tensor([6], "long int"), NOTHING, plain("1"),
                  plain("-100")), ()),
    ],
    ids=lambda value: value.op if isinstance(value, Recorded) else "",
)  # fmt: skip
def test_a_call_runs_as_it_ran(call: Recorded, shape: tuple[int, ...]) -> None:
    made = build(call, "cpu", GIB)
    for _ in range(3):
        assert tuple(made.call(*made.arguments, **made.keywords).shape) == shape


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (recorded("ratchet::mine", tensor([2])), "not an aten op"),
        (recorded("aten::from_file", plain("/etc/passwd", "")), "more than its tensors"),
        (recorded("aten::no_such_op", tensor([2])), "has no such op"),
        (recorded("aten::mm", tensor([2, 2])), "takes 1 inputs"),
        (recorded("aten::cat", ([[2], [3]], "TensorList", [], ""), plain("0")), "list's tensors"),
        (recorded("aten::mm", tensor([2, 2]), plain("3")), "is a tensor"),
        (recorded("aten::mm", tensor([2, 2]), ([], "struct Thing", [], "")), "struct Thing"),
        (recorded("aten::softmax", tensor([2]), NOTHING, NOTHING), "is not in the trace"),
        (recorded("aten::mm", tensor([1 << 20, 1 << 20]), tensor([1 << 20, 1])), "GiB"),
        (recorded("aten::sum", tensor([2]), plain("[x]", "ScalarList"), plain("True"), NOTHING),
         "not a number"),
    ],
)  # fmt: skip
def test_what_cannot_be_built_says_why(call: Recorded, why: str) -> None:
    with pytest.raises(Unbuildable, match=why):
        build(call, "cpu", GIB)


def test_indices_stay_inside_what_they_index() -> None:
    made = build(
        recorded("aten::embedding_dense_backward", tensor([40, 4]), tensor([40], "long int"),
                 plain("7"), plain("-1"), plain("False")),
        "cpu", GIB,
    )  # fmt: skip
    assert made.arguments[1].min() >= 0 and made.arguments[1].max() < 7


def test_a_trace_is_replayed(tmp_path: Path) -> None:
    """One process: a product, one that torch refuses, one that cannot be built."""
    events = [
        event("aten::mm", 0, [[64, 32], [32, 16]], ["float", "float"], ["", ""]),
        event("aten::mm", 10, [[64, 32], [31, 16]], ["float", "float"], ["", ""]),
        event("aten::cat", 20, [[[2], [3]], []], ["TensorList", "Scalar"], ["", "0"]),
    ]
    path = mt.write(tmp_path / "a.json", events)
    found = replay(path, ("aten::mm", "aten::cat"), device="cpu")
    rows: dict[str, ReplayRow] = {json.dumps(json.loads(r.shapes)): r for r in found.rows}
    good = rows["[[64, 32], [32, 16]]"]
    assert (good.outcome, good.why, good.count, good.traced) == ("timed", "", 1, 8000)
    assert good.here and good.shortest and 0 < good.shortest <= good.here
    assert good.ratio == good.traced / good.here
    bad = rows["[[64, 32], [31, 16]]"]
    assert bad.outcome == "failed" and "mat1" in bad.why and bad.ratio is None
    assert rows["[[[2], [3]], []]"].outcome == "not rebuilt"
    assert (found.device, found.traced_on, found.left_out) == ("CPU", "a CPU", 0)
    with pytest.raises(TraceError, match="--device tpu"):
        replay(path, ("aten::mm",), device="tpu")


def test_a_call_that_kills_its_process_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for the process: it dies of the second call."""
    script = (
        "import json,sys\n"
        "print(json.dumps({'device': 'CPU', 'torch': 'x', 'threads': 1}), flush=True)\n"
        "for line in sys.stdin:\n"
        "    if '[5,8]' in line: sys.exit(3)\n"
        "    print(json.dumps({'outcome': 'timed', 'why': '', 'time_ns': 5, 'shortest_ns': 4}),"
        " flush=True)\n"
    )
    module = tmp_path / "stand_in.py"
    module.write_text(script)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("ratchet.trace.replay.replay.WORKER", "stand_in")
    events = [event("aten::mm", 10 * i, [[i, 8], [8, 2]], ["float", "float"]) for i in (4, 5, 6)]
    found = replay(mt.write(tmp_path / "a.json", events), ("aten::mm",), device="cpu")
    assert [(row.outcome, row.why) for row in found.rows] == [
        ("timed", ""), ("failed", "its process crashed"), ("timed", ""),
    ]  # fmt: skip
