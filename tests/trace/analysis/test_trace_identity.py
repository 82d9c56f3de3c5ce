"""The identity, to the nanosecond, against a brute-force sweep."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import made_traces as mt
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.trace.analysis import Identity, analyse, communicates
from ratchet.trace.answers.report import report
from ratchet.trace.read.columns import DEVICE_KINDS, Kind, Trace

PARTS = ("compute", "exposed_communication", "exposed_copy", "idle")


def sweep(trace: Trace, start: int, end: int) -> dict[str, int]:
    """The parts of one window by walking over every boundary."""
    links = analyse(trace).links
    talk = communicates(trace)
    edges: list[tuple[int, int, int]] = []
    for row in np.flatnonzero(np.isin(trace.kind, DEVICE_KINDS) & ~links.carried_in).tolist():
        sort = 2 if trace.kind[row] != Kind.KERNEL else 1 if talk[row] else 0
        edges.append((int(trace.start[row]), 1, sort))
        edges.append((int(trace.start[row] + trace.duration[row]), -1, sort))
    edges += [(start, 0, 0), (end, 0, 0)]
    open_now, parts, before = [0, 0, 0], dict.fromkeys(PARTS, 0), None
    for time, change, sort in sorted(edges):
        if before is not None and start <= before < time <= end:
            place = next((i for i in range(3) if open_now[i]), 3)
            parts[PARTS[place]] += time - before
        open_now[sort] += change
        before = time
    return parts


def parts(found: Identity) -> dict[str, int]:
    return dict(zip(PARTS, found.parts, strict=True))


WORK = st.lists(
    st.tuples(
        st.sampled_from(["gemm", "ncclDevKernel_AllReduce", "copy"]),
        st.integers(0, 400_000),
        st.integers(0, 60_000),
    ),
    min_size=1,
    max_size=25,
)


@settings(deadline=None)
@given(WORK, st.lists(st.integers(0, 400), min_size=0, max_size=3, unique=True))
def test_every_window_matches_a_sweep(work: list[tuple[str, int, int]], marks: list[int]) -> None:
    events = [mt.step(i, mark, 10) for i, mark in enumerate(sorted(marks))]
    for number, (name, start, duration) in enumerate(work, start=1):
        events.append(mt.launch(start / 2000, 0.5, number))
        make = mt.copy if name == "copy" else None
        at, length = start / 1000, duration / 1000
        events.append(make(at, length, number) if make else mt.kernel(name, at, length, number))
    with TemporaryDirectory() as folder:
        trace = mt.made(Path(folder), events)
    found = report(trace)
    whole = found.identity
    assert parts(whole) == sweep(trace, whole.start, whole.start + whole.window)
    assert sum(whole.parts) == whole.window
    for one in found.steps:
        assert parts(one) == sweep(trace, one.start, one.start + one.window)
    if marks:
        assert len(found.steps) == len(marks), "the last step is kept"
        totals = [sum(step.parts[i] for step in found.steps) for i in range(4)]
        assert totals == list(whole.parts), "the steps tile the window"


@pytest.mark.parametrize("name", mt.REAL_NAMES)
def test_the_identity_holds_on_every_recorded_trace(name: str) -> None:
    trace = mt.recorded(name)
    found = report(trace)
    whole = found.identity
    assert trace.faults == ()
    assert sum(whole.parts) == whole.window > 0
    assert parts(whole) == sweep(trace, whole.start, whole.start + whole.window)
    if found.steps:
        assert [sum(s.parts[i] for s in found.steps) for i in range(4)] == list(whole.parts)
    idle = found.idle
    causes = idle.data_loading + idle.synchronisation + idle.host_bound + idle.kernel_gap
    assert causes == whole.idle


def test_mi300x_resnet_is_exact() -> None:
    whole = report(mt.recorded("mi300x-resnet-ddp-rank0of8")).identity
    assert whole.compute == 19_234_094
    assert whole.overlap is not None and round(whole.overlap, 4) == 0.2525


def test_communication_that_no_op_links_to_counts() -> None:
    whole = report(mt.recorded("v100-oldnames-unlinked-nccl")).identity
    assert whole.exposed_communication == 73_298_000


def test_work_of_before_the_recording_is_left_out_and_counted(tmp_path: Path) -> None:
    events = [mt.kernel("before", 0, 10, 90), mt.launch(5, 1, 1), mt.kernel("mine", 20, 5, 1)]
    events.append(mt.kernel("unlinked", 22, 8, 91))
    found = report(mt.made(tmp_path, events))
    assert (found.carried_in.count, found.carried_in.time) == (1, 10_000)
    assert found.carried_in.kernels == {"before": 10_000}
    assert (found.identity.start, found.identity.window) == (20_000, 10_000)
    assert {row.name: row.unlinked for row in found.kernels} == {"mine": 1, "unlinked": 1}


def test_on_a_cpu_compute_is_the_time_in_operators_over_threads(tmp_path: Path) -> None:
    events = [
        mt.op("aten::linear", 0, 10), mt.op("aten::mm", 2, 5), mt.op("aten::relu", 8, 12, tid=2),
        mt.op("c10d::allreduce_", 30, 10), mt.op("aten::copy_", 32, 2),
    ]  # fmt: skip
    whole = report(mt.made(tmp_path, events)).identity
    assert parts(whole) == {
        "compute": 20_000, "exposed_communication": 10_000, "exposed_copy": 0, "idle": 10_000,
    }  # fmt: skip


def test_steps_without_any_launch_fall_back_to_their_marks(tmp_path: Path) -> None:
    events = [mt.step(1, 0, 50), mt.step(2, 50, 50), mt.kernel("a", 10, 20), mt.kernel("b", 60, 10)]
    steps = report(mt.made(tmp_path, events)).steps
    assert [(s.window, s.compute) for s in steps] == [(40_000, 20_000), (20_000, 10_000)]


def test_several_devices_in_one_process_stand_apart(tmp_path: Path) -> None:
    events = [mt.kernel("a", 0, 10), mt.kernel("b", 5, 25)]
    events[1]["args"]["device"] = 1
    found = report(mt.made(tmp_path, events))
    assert (found.identity.compute, found.identity.window) == (30_000, 30_000)
    assert [(d.label, d.compute, d.window) for d in found.by_device] == [
        ("device 0", 10_000, 10_000), ("device 1", 25_000, 25_000),
    ]  # fmt: skip


VLLM = "execute_{}_context_{}(sq0sk0)_generation_{}(sq32sk5)"


@pytest.mark.parametrize(
    ("marks", "labels"),
    [
        ([VLLM.format(3, 0, 3), VLLM.format(5, 1, 4)], ["1: decode 3", "2: prefill 1, decode 4"]),
        (["execute_context_1(888_788544)_generation_0(0)"], ["1: prefill 1"]),
        (["step[DECODE bs=3]", "step[EXTEND]"], ["1: step[DECODE bs=3]", "2: step[EXTEND]"]),
        (["execute_diffusion_1_256x256"], ["1: execute_diffusion_1_256x256"]),
        (["ProfilerStep#4", "ProfilerStep#5"], ["ProfilerStep#4", "ProfilerStep#5"]),
        (["forward"], []),
    ],
)  # fmt: skip
def test_marks_of_inference_are_steps(marks: list[str], labels: list[str], tmp_path: Path) -> None:
    events = []
    for number, name in enumerate(marks):
        start = 100.0 * number
        events += [
            mt.span("user_annotation", name, start, 90),
            mt.span("user_annotation", "step[DECODE bs=7]", start + 1, 50),
            mt.launch(start + 5, 1, number + 1), mt.kernel("gemm", start + 20, 30, number + 1),
        ]  # fmt: skip
    found = report(mt.made(tmp_path, events if labels else events[:1] + events[2:]))
    assert [step.label for step in found.steps] == labels
    assert sum(step.window for step in found.steps) == (found.identity.window if labels else 0)


@pytest.mark.parametrize(
    ("kernel", "operation"),
    [
        ("EpDispatchIntraNodeKernel_bf16", "all_to_all"),
        ("void mori::moe::EpCombineInterNodeKernel<hip_bfloat16>(args)", "all_to_all"),
        ("mori_shmem_barrier_all", "unknown"),
        ("void c10d::symmetric_memory::multimem_all_gather_kernel<16>(char*)", "all_gather"),
        ("multimem_one_shot_all_reduce_kernel", "all_reduce"),
        ("void multimem_one_shot_reduce_kernel<float, 16>(float*)", "reduce"),
        ("void aiter::allreduce_fusion_kernel_2stage_mxfp4<8>()", "all_reduce"),
        ("void aiter::allgather_lastdim<c10::BFloat16, 8>()", "all_gather"),
        ("void aiter::reduce_scatter_cross_device_store<8>()", "reduce_scatter"),
        ("void aiter::reduce_scatter_split_middim_naive<8>()", "reduce_scatter"),
        ("_reduce_scatter_kernel", "reduce_scatter"),
        ("allreduce_prototype_twoshot<half>", "all_reduce"),
        ("scatter_reduce_kernel", ""), ("fused_all_gather_matmul_kernel", ""),
        ("gather_kernel", ""), ("memory_kernel", ""), ("MoriaKernel", ""), ("hipMultimem", ""),
        ("void at::native::index_reduce_func<float>", ""), ("StepDispatchKernel", ""),
    ],
)  # fmt: skip
def test_kernels_that_communicate(kernel: str, operation: str, tmp_path: Path) -> None:
    """An empty operation says that it does not."""
    found = report(mt.made(tmp_path, [mt.launch(1, 1, 1), mt.kernel(kernel, 10, 5, 1)]))
    assert [row.operation for row in found.collectives] == ([operation] if operation else [])
    assert found.identity.communication == (5000 if operation else 0)
