"""The code behind work: lines of Python, compiled regions, fused ops."""

from __future__ import annotations

from pathlib import Path

import made_traces as mt
import pytest

from ratchet.trace.answers.report import report
from ratchet.trace.answers.sources import fused_ops

LAUNCHED = {"Input_Dims": [[4, 8], [8, 4]], "Input_type": ["float", "float"]}


def frame(text: str, start: float, duration: float) -> dict:
    return mt.span("python_function", text, start, duration)


def test_work_has_its_line_and_its_region(tmp_path: Path) -> None:
    events = [
        frame("src/train.py(3): step", 0, 90),
        frame("torch/nn/modules/module.py(9): _call_impl", 1, 80),
        frame("/opt/lib/python3.11/site-packages/model/net.py(7): forward", 2, 70),
        frame("/opt/lib/python3.11/contextlib.py(8): inner", 3, 65),
        frame("/tmp/torchinductor_me/ab/cab.py(12): call", 4, 60),
        frame("<built-in method run>", 5, 50),
        mt.op("Torch-Compiled Region: 0/1", 6, 40),
        mt.op("aten::mm", 8, 20, **{"Sequence number": 5, **LAUNCHED}),
        mt.launch(10, 2, 1), mt.kernel("gemm", 100, 30, 1),
        mt.op("autograd::engine::evaluate_function: MmBackward0", 200, 40, mt.AUTOGRAD,
              **{"Sequence number": 5}),
        mt.op("aten::t", 210, 20, mt.AUTOGRAD, Input_Dims=[[8, 8]], Input_type=["float"]),
        mt.launch(212, 2, 2) | {"tid": mt.AUTOGRAD}, mt.kernel("copy", 240, 7, 2),
        mt.op("aten::relu", 300, 20, Input_Dims=[[4, 4]], Input_type=["float"]),
        mt.launch(302, 2, 3), mt.kernel("relu", 330, 5, 3),
    ]  # fmt: skip
    rows = {row.name: row for row in report(mt.made(tmp_path, events)).roofline}
    line = "/opt/lib/python3.11/site-packages/model/net.py(7): forward"
    assert (rows["aten::mm"].region, rows["aten::mm"].source) == (
        "Torch-Compiled Region: 0/1", line,
    )  # fmt: skip
    backward = next(row for row in rows.values() if row.kernel == "copy")
    assert (backward.region, backward.source) == ("", line)  # the forward's
    assert (rows["aten::relu"].region, rows["aten::relu"].source) == ("", "")


@pytest.mark.parametrize(
    ("kernel", "ops"),
    [
        ("triton_poi_fused_gelu_view_3", ("gelu", "view")),
        ("triton_per_fused_native_layer_norm_add_7", ("native_layer_norm", "add")),
        ("triton_red_fused__unsafe_view_mul_silu_12", ("_unsafe_view", "mul", "silu")),
        ("triton_poi_fused_novel_thing_add_0", ("novel", "thing", "add")),
        ("triton_poi_fused_0", ()),
        ("gemm_fused_add_3", ()),
        ("", ()),
    ],
)
def test_inductors_names_tell_the_fused_ops(kernel: str, ops: tuple[str, ...]) -> None:
    assert fused_ops(kernel) == ops
