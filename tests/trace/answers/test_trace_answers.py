"""Links, tables, collectives, idle causes, memory, compile, precision and roofline."""

from __future__ import annotations

import json
from pathlib import Path

import made_traces as mt
import pytest

from ratchet.base.devices import ceilings
from ratchet.base.devices.ceilings import Ceilings, Roofline
from ratchet.trace import compare
from ratchet.trace.analysis import KERNEL
from ratchet.trace.answers.ceilings import Rooflines
from ratchet.trace.answers.collectives import bus_factor, operation_of
from ratchet.trace.answers.precision import precision_of_kernel
from ratchet.trace.answers.report import Report, report
from ratchet.trace.export import document


def one_layer() -> list[dict]:
    """A module's forward on one thread and its backward on the autograd thread."""
    return [
        mt.module("Net_0", 0, 40), mt.module("Linear_0", 1, 30),
        mt.op("aten::linear", 2, 20, Sequence_number=5),
        mt.op("aten::addmm", 3, 15, Sequence_number=5, Input_Dims=[[2], [4, 8], [8, 2]],
              Input_type=["float", "float", "float"]),
        mt.launch(4, 2, 1), mt.kernel("sgemm_tn", 10, 6, 1),
        mt.op("autograd::engine::evaluate_function: AddmmBackward0", 50, 20, tid=mt.AUTOGRAD,
              Sequence_number=5),
        mt.op("aten::mm", 52, 10, tid=mt.AUTOGRAD, Input_Dims=[[2, 4], [4, 8]],
              Input_type=["float", "float"]),
        mt.span("cuda_runtime", "cudaLaunchKernel", 53, 1, mt.AUTOGRAD, correlation=2),
        mt.kernel("sgemm_nt", 60, 9, 2),
    ]  # fmt: skip


def made_report(folder: Path, events: list[dict], **around: object) -> Report:
    return report(mt.made(folder, events, **around))


def test_kernels_know_their_op_shapes_and_module(tmp_path: Path) -> None:
    found = made_report(tmp_path, one_layer())
    rows = {row.name: row for row in found.kernels}
    assert (rows["sgemm_tn"].op, rows["sgemm_tn"].shapes) == (
        "aten::addmm",
        "[[2], [4, 8], [8, 2]]",
    )
    assert rows["sgemm_tn"].module == "Net_0 > Linear_0"
    assert (rows["sgemm_nt"].op, rows["sgemm_nt"].module) == ("aten::mm", "Net_0 > Linear_0")
    assert [row.unlinked for row in found.kernels] == [0, 0]


def test_modules_sum_forward_and_backward(tmp_path: Path) -> None:
    rows = {row.path: row for row in made_report(tmp_path, one_layer()).modules}
    for path in ("Net_0", "Net_0 > Linear_0"):
        assert (rows[path].forward, rows[path].backward, rows[path].recompute) == (6000, 9000, 0)


def test_ops_have_own_time_and_device_time(tmp_path: Path) -> None:
    rows = {row.name: row for row in made_report(tmp_path, one_layer()).ops}
    assert rows["aten::linear"].cpu_own == 5000
    assert rows["aten::addmm"].cpu_own == 13_000, "without its launch"
    assert (rows["aten::addmm"].device, rows["aten::addmm"].launches) == (6000, 1)
    assert rows["aten::mm"].backward and not rows["aten::addmm"].backward


def test_external_ids_link_where_the_launch_is_missing(tmp_path: Path) -> None:
    events = [mt.op("aten::add", 0, 5, External_id=77), mt.kernel("k", 3, 2, 9)]
    events[1]["args"]["External id"] = 77
    assert made_report(tmp_path, events).kernels[0].op == "aten::add"
    events[1]["args"]["correlation"] = 77
    assert made_report(tmp_path, events).kernels[0].op == "", "an old profiler's correlation id"


def test_checkpointed_forwards_are_recompute(tmp_path: Path) -> None:
    events = [
        *one_layer(), mt.module("Linear_0", 54, 6, mt.AUTOGRAD),
        mt.op("aten::addmm", 55, 3, tid=mt.AUTOGRAD),
        mt.span("cuda_runtime", "cudaLaunchKernel", 56, 1, mt.AUTOGRAD, correlation=3),
        mt.kernel("sgemm_tn", 80, 5, 3),
    ]  # fmt: skip
    found = made_report(tmp_path, events)
    assert (found.recompute.device, found.recompute.share) == (5000, 0.25)
    again = {row.path: row.recompute for row in found.modules}
    assert again == {"Net_0": 5000, "Net_0 > Linear_0": 5000}


def test_a_collective_has_bytes_bandwidth_and_exposed_time(tmp_path: Path) -> None:
    said = {"Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000,
            "Group size": 4, "dtype": "BFloat16", "Process Group Name": "dp"}  # fmt: skip
    events = [mt.kernel("ncclDevKernel_AllReduce_Sum_bf16", 0, 10, 1, 9, **said),
              mt.kernel("gemm", 4, 20, 2)]  # fmt: skip
    row = made_report(tmp_path, events).collectives[0]
    assert (row.operation, row.group, row.ranks, row.size_bytes) == ("all_reduce", "dp", 4, 2000)
    assert (row.duration, row.exposed) == (10_000, 4000)
    assert row.algorithm_bandwidth == pytest.approx(2000 / 10e-6)
    assert row.bus_bandwidth == pytest.approx(1.5 * 2000 / 10e-6)
    assert not row.linked


def test_bus_factors_are_those_of_nccl_tests() -> None:
    assert bus_factor("all_reduce", 8) == 1.75
    assert bus_factor("reduce_scatter", 8) == 0.875
    assert bus_factor("broadcast", 8) == 1
    assert bus_factor("all_reduce", 0) == 0


@pytest.mark.parametrize(
    ("name", "operation"),
    [("ncclDevKernel_ReduceScatter_Sum", "reduce_scatter"), ("nccl:all_to_all", "all_to_all"),
     ("_allgather_base", "all_gather"), ("ncclKernel_SendRecv_RING", "send_recv"),
     ("cross_device_reduce_1stage", "all_reduce"), ("ncclDevKernel_Generic", "unknown")],
)  # fmt: skip
def test_operations_by_name(name: str, operation: str) -> None:
    assert operation_of(name) == operation


def test_communication_kernels_by_name() -> None:
    for name in ("ncclKernel_AllReduce", "ncclDevKernel_Generic", "rcclKernel", "oneccl_x",
                 "mscclpp_all", "cross_device_reduce_2stage"):  # fmt: skip
        assert KERNEL.search(name), name
    for name in ("hipMemcpyKernel", "hip_gemm", "vectorized_elementwise", "reduce_kernel"):
        assert not KERNEL.search(name), name


def test_idle_time_has_one_cause(tmp_path: Path) -> None:
    events = [
        mt.launch(0, 1, 1), mt.kernel("a", 10, 10, 1),
        mt.launch(1, 1, 2), mt.kernel("b", 22, 8, 2),  # queued: a gap of 2
        mt.launch(38, 2, 3), mt.kernel("c", 42, 8, 3),  # late: 30 to 40, then 2 of delay
        mt.span("cuda_runtime", "cudaDeviceSynchronize", 5, 28, correlation=90),  # 3 of those
        mt.span("user_annotation", "enumerate(DataLoader)#_next_data", 52, 6),
        mt.launch(58, 1, 4), mt.kernel("d", 60, 5, 4),  # 50 to 59 late, 6 of it loading
    ]  # fmt: skip
    found = made_report(tmp_path, events)
    idle = found.idle
    assert found.identity.idle == 24_000
    assert (idle.data_loading, idle.synchronisation) == (6000, 3000)
    assert (idle.host_bound, idle.kernel_gap) == (7000 + 3000, 2000 + 2000 + 1000)
    assert (idle.gaps, idle.longest) == (3, 12_000)
    launches = found.launches
    assert (launches.count, launches.cpu, launches.small) == (4, 5000, 3)


def test_marks_streams_and_copies(tmp_path: Path) -> None:
    events = [
        mt.span("user_annotation", "forward", 0, 20), mt.span("user_annotation", "inner", 2, 5),
        mt.launch(3, 1, 1), mt.kernel("a", 10, 10, 1), mt.launch(8, 1, 2), mt.kernel("b", 22, 8, 2),
        mt.launch(25, 1, 3), mt.copy(30, 5, 3, size=1000), mt.step(1, 0, 40),
    ]  # fmt: skip
    found = made_report(tmp_path, events)
    marks = {row.name: (row.count, row.cpu, row.device, row.launches) for row in found.annotations}
    assert marks == {"forward": (1, 20_000, 18_000, 2), "inner": (1, 5000, 10_000, 1)}
    stream = found.streams[0]
    assert (stream.stream, stream.count, stream.busy, stream.longest_queue) == (7, 2, 18_000, 2)
    assert stream.mean_queue == pytest.approx(12 / 25), "counted inside the window alone"
    assert [(row.count, row.size_bytes) for row in found.copies] == [(1, 1000)]
    assert found.copies[0].bytes_per_s == pytest.approx(1000 / 5e-6)


def test_memory_peak_by_what_ran(tmp_path: Path) -> None:
    events = [
        *one_layer(), mt.allocation(5, 1000, 1, 6000), mt.allocation(6, 500, 2, 6500),
        mt.allocation(7, -500, 2, 6000), mt.allocation(55, 3000, 3, 9000),
        mt.allocation(58, -3000, 3, 6000),
    ]  # fmt: skip
    memory = made_report(tmp_path, events).memory
    assert memory is not None
    assert (memory.peak_bytes, memory.peak_time) == (9000, 55_000)
    assert memory.at_peak == {"forward": 1000, "backward": 3000, "before the recording": 5000}
    assert (memory.allocations, memory.frees, memory.churn_bytes) == (3, 2, 3500)
    assert memory.peak_reserved_bytes == 18_000


def test_compiled_regions_breaks_and_recompilations(tmp_path: Path) -> None:
    events = [
        mt.op("Torch-Compiled Region: 0/0", 0, 5), mt.op("Torch-Compiled Region: 0/2", 6, 5),
        mt.op("Torch-Compiled Region: 1/0", 12, 5),
        mt.op("## Call CompiledFxGraph fabc ##", 13, 2),
        mt.op("_compile.inner (dynamo_timed)", 20, 9),
    ]  # fmt: skip
    found = made_report(tmp_path, events).compiled
    assert found is not None
    assert (found.regions, found.graphs, found.calls) == (2, 1, 3)
    assert (found.graph_breaks, found.recompilations, found.compile_time) == (1, 2, 9000)
    notes = {"graph_break": {"print": 2}, "recompile": {"size changed": 3}}
    noted = made_report(tmp_path, events, ratchet_compile=json.dumps(notes)).compiled
    assert noted is not None and noted.break_reasons == {"print": 2}
    assert (noted.graph_breaks, noted.recompilations) == (2, 3)
    assert made_report(tmp_path, one_layer()).compiled is None


@pytest.mark.parametrize(
    ("name", "precision"),
    [("volta_sgemm_128x32_nn", "fp32"), ("sm80_xmma_gemm_tf32f32_tf32f32_f32_f32_tn_n", "tf32"),
     ("ampere_bf16_s16816gemm_bf16_128x64", "bf16"),
     ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV", "bf16"), ("Cijk_Ailk_Bljk_SB_Bias_AS", "fp32"),
     ("ampere_fp16_s16816gemm_fp16", "fp16"), ("nvjet_e4m3_tst", "fp8"), ("attn_fwd", "unknown")],
)  # fmt: skip
def test_a_matrix_kernel_states_its_precision(name: str, precision: str) -> None:
    assert precision_of_kernel(name) == precision


def test_precision_of_each_matmul(tmp_path: Path) -> None:
    rows = made_report(tmp_path, one_layer()).matmuls
    assert [(r.op, r.inputs, r.kernel, r.time) for r in rows] == [
        ("aten::mm", "fp32", "fp32", 9000), ("aten::addmm", "fp32", "fp32", 6000),
    ]  # fmt: skip


def test_roofline_says_what_could_be_won(tmp_path: Path) -> None:
    ceilings = Rooflines(of={"fp32": Roofline(flops_per_s=1e9, bytes_per_s=1e12)}, source="made")
    rows = report(mt.made(tmp_path, one_layer()), ceilings).roofline
    mm = next(row for row in rows if row.name == "aten::mm")
    assert (mm.flops, mm.bound, mm.least) == (128, "compute", 128)
    assert (mm.could_win, mm.ceiling) == (9000 - 128, "made")
    unknown = made_report(tmp_path, one_layer()).roofline[0]
    assert (unknown.bound, unknown.least, unknown.could_win) == ("unknown", 0, 0)
    assert unknown.ceiling == "the trace names no device"


def test_a_pipeline_stage_has_a_bubble(tmp_path: Path) -> None:
    def stage(mark: str) -> Report:
        events = [mt.span("user_annotation", mark, 0, 5), mt.launch(1, 1, 1),
                  mt.kernel("ncclDevKernel_SendRecv", 10, 10, 1, 9),
                  mt.launch(2, 1, 2), mt.kernel("gemm", 16, 14, 2)]  # fmt: skip
        return made_report(tmp_path, events)

    bubble = stage("nccl:recv 0<-1").bubble
    assert bubble is not None
    assert (bubble.waiting, bubble.idle, bubble.share) == (6000, 0, 0.3)
    assert stage("nccl:all_to_all").bubble is None
    untold = stage("forward")  # NCCL's kernel is the same for both
    assert untold.bubble is None
    assert [one.operation for one in untold.collectives] == ["send_recv or all_to_all"]


def test_the_document_has_the_promised_keys(tmp_path: Path) -> None:
    found = json.loads(json.dumps(document(made_report(tmp_path, one_layer()))))
    assert set(found["identity_ns"]) == {"compute", "exposed_communication", "exposed_copy", "idle"}
    assert sum(found["identity_ns"].values()) == found["window_ns"]
    assert found["communication"]["overlap"] is None
    assert {"kernels", "collectives", "advice", "window_is"} <= set(found)
    assert found["kernels"][0]["mean"] == 9000


@pytest.mark.parametrize("low", [1e3, 1e12])
def test_an_operator_above_this_machines_ceiling_has_it_measured_anew(
    low: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The product does 14 MFLOP/s."""

    def rates(flops_per_s: float) -> Ceilings:
        return Ceilings(
            gemm_flops_per_s={"bf16": flops_per_s, "fp32": flops_per_s},
            copy_bytes_per_s={"dram": 1e11}, triad_bytes_per_s={"dram": 1e11},
        )  # fmt: skip

    def measured(device: object, *, again: str = "", folder: None = None) -> Ceilings:
        return rates(1e11 if again else low)

    for module in (ceilings, compare):
        monkeypatch.setattr(module, "measure", measured)
    found = compare.report_here(mt.write(tmp_path / "made.json", one_layer()))
    assert isinstance(found, Report)
    (mm,) = {row.roof_flops_per_s for row in found.roofline if row.name == "aten::mm"}
    assert mm == max(low, 1e11)
