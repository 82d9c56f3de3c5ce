"""The benchmark's large trace: every copy later than the one before, with ids of its own."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import made_traces as mt
import pytest

from ratchet.trace.analysis.links import link
from ratchet.trace.read import read
from ratchet.trace.read.columns import Kind

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "trace" / "make_large_trace.py"


def test_copies_are_later_and_linked_inside_themselves(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("make_large_trace", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    events = [mt.op("aten::mm", 1, 8), mt.launch(2, 1, 11), mt.kernel("gemm", 5, 10, 11)]
    small = mt.write(tmp_path / "small.json.gz", events, deviceProperties=[{"id": 0, "name": "x"}])
    large = tmp_path / "large.json"
    count = script.write(small, large, 10_000)
    assert large.stat().st_size == pytest.approx(10_000, rel=0.2)
    trace = read(large)
    assert (len(trace), trace.faults) == (3 * count, ())
    kernels = trace.rows(Kind.KERNEL)
    launches = link(trace).launch[kernels]
    assert launches.tolist() == trace.rows(Kind.RUNTIME).tolist()
    assert (trace.start[kernels] - trace.start[launches] == 3000).all()
