"""Recordings that lack a sort of event are reported all the same, every answer of them."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import cut_traces as ct
import made_traces as mt
import numpy as np
import pytest
from rich.console import Console

from ratchet.base.show.page import render_page
from ratchet.base.show.terminal import print_report
from ratchet.trace.answers.report import Report, report
from ratchet.trace.export import document, report_tables
from ratchet.trace.read import without_device_work
from ratchet.trace.read.columns import DEVICE_KINDS, Kind, Trace
from ratchet.trace.show import trace_report

SMALL = ("mi250-minitoy-rocm6.2", "mi300x-compile-triton", "h100-bert-small")
"""Of several profilers, and quickly read. rocprofv3-908 holds nothing but GPU events."""
CUTS: dict[str, Callable[[Trace], Trace]] = {
    "no kernels": lambda t: ct.without(t, Kind.KERNEL),
    "no copies": lambda t: ct.without(t, Kind.COPY, Kind.FILL),
    "no ops": lambda t: ct.without(t, Kind.OP),
    "no ops or GPU events": lambda t: ct.without(t, Kind.OP, *DEVICE_KINDS),
    "runtime only": lambda t: ct.only(t, Kind.RUNTIME),
    "no runtime": lambda t: ct.without(t, Kind.RUNTIME),
    "GPU only": lambda t: ct.only(t, *DEVICE_KINDS),
    "no marks": lambda t: ct.without(t, Kind.ANNOTATION),
    "marks only": lambda t: ct.only(t, Kind.ANNOTATION),
    "one GPU event": lambda t: ct.kept(
        t, ~np.isin(t.kind, DEVICE_KINDS) | (np.arange(len(t)) == t.rows(*DEVICE_KINDS)[0])
    ),
    "no links": lambda t: replace(
        t, correlation=np.full(len(t), -1), external=np.full(len(t), -1)
    ),
    "no devices": lambda t: replace(t, devices=()),
    "no streams": lambda t: replace(
        t, stream=np.full_like(t.stream, -1), device=np.full_like(t.device, -1)
    ),
    "no times": lambda t: replace(t, duration=np.zeros_like(t.duration)),
    "one in seven": lambda t: ct.kept(t, np.arange(len(t)) % 7 == 0),
}  # fmt: skip


def everything(trace: Trace) -> tuple[Report, str]:
    """Every answer in every form; what the terminal shows of it."""
    found = report(trace)
    assert document(found)
    report_tables([found])
    assert render_page(trace_report(found))
    said = io.StringIO()
    print_report(trace_report(found), Console(file=said, width=80, markup=False))
    return found, said.getvalue()


@pytest.mark.parametrize("name", [one for one in mt.REAL_NAMES if one != "rocprofv3-908"])
def test_a_recorded_trace_without_its_gpu_events(name: str) -> None:
    found, said = everything(without_device_work(ct.without(mt.recorded(name), *DEVICE_KINDS)))
    assert found.identity.window == sum(found.identity.parts) > 0
    assert not found.kernels and not found.streams
    assert "Why the device was idle" not in said and "kernel gap" not in said
    assert any("no GPU events" in fault for fault in found.faults) and "no GPU events" in said


@pytest.mark.parametrize("name", SMALL)
def test_a_recorded_trace_without_another_sort_of_event(name: str) -> None:
    whole = mt.recorded(name)
    for cut in CUTS.values():
        trace = cut(whole)
        if len(trace):
            found, _ = everything(trace)
            assert sum(found.identity.parts) == found.identity.window


def test_a_blocking_call_without_device_work(tmp_path: Path) -> None:
    """As CUPTI's range profiler leaves it: counters in place of kernels."""
    events = [
        mt.op("aten::mm", 0, 20), mt.launch(2, 3, 1),
        mt.span("cuda_runtime", "cudaDeviceSynchronize", 6, 10, correlation=2),
        mt.span("cuda_profiler_range", "gemm", 4, 8, 0, smsp__inst_executed__sum=7),
    ]  # fmt: skip
    found, said = everything(mt.made(tmp_path, events))
    assert found.identity.parts == (20_000, 0, 0, 0)
    assert "no GPU events on a cuda run" in said


def mtia(folder: Path, *, work: bool = True) -> Trace:
    """A run on MTIA as Kineto wrote it before its categories were the same for all accelerators."""
    about = {"distributedInfo": {"backend": "mtia:hccl", "rank": 0, "world_size": 1}}
    call = mt.launch(2, 3, 1, "runFunction - job_prep_and_submit_for_execution")
    ran = mt.kernel("fused_mlp", 10, 30, 1) | {"cat": "mtia_ccp_events"}
    events = [mt.op("aten::mm", 0, 20), call | {"cat": "mtia_runtime"}, *([ran] if work else [])]
    return mt.made(folder, events, **about)


def test_a_run_on_mtia(tmp_path: Path) -> None:
    found, said = everything(mtia(tmp_path))
    assert found.platform == "mtia" and found.identity.parts == (30_000, 0, 0, 0)
    assert [(row.name, row.op) for row in found.kernels] == [("fused_mlp", "aten::mm")]
    assert [(row.limit, row.full) for row in found.queues] == [(0, 0)]
    assert "an MTIA device" in said and "cuda" not in said.lower() and not found.faults


def test_a_run_on_mtia_without_device_work(tmp_path: Path) -> None:
    found, said = everything(mtia(tmp_path, work=False))
    (fault,) = found.faults
    assert "on a mtia run with 1 runtime calls" in fault and "ProfilerActivity.MTIA" in fault
    assert "cuda" not in said.lower()


def test_a_cpu_s_gaps_are_not_a_device_s(tmp_path: Path) -> None:
    found, said = everything(mt.made(tmp_path, [mt.op("aten::mm", 0, 5), mt.op("b", 95, 5)]))
    assert found.identity.idle == 90_000
    page = render_page(trace_report(found))
    for text in (said, page):
        assert "Why the device was idle" not in text and "kernel gap" not in text


def test_a_device_without_a_name_is_not_looked_up(tmp_path: Path) -> None:
    shaped = mt.op("aten::mm", 0, 20, Input_Dims=[[8, 8], [8, 8]], Input_type=["float", "float"])
    events = [shaped, mt.launch(2, 3, 1), mt.kernel("gemm", 10, 30, 1)]
    for about in ({}, {"deviceProperties": [{"id": 0}]}):
        found, _ = everything(mt.made(tmp_path, events, **about))
        assert [row.ceiling for row in found.roofline] == ["the trace names no device"]
