"""What is made of a GPU's profile and of its clock: streams, graphs, whose kernels, whose word."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from judge_problems import silu  # noqa: F401  the problem below names it
from torch._C._autograd import DeviceType

from ratchet.judge.integrity import census as device_work
from ratchet.judge.integrity.census import told_as
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Problem
from ratchet.judge.trial import open_problem, plan
from ratchet.judge.trial.open_problem import DeviceClock
from ratchet.judge.verdict import CandidateFault, Evidence
from ratchet.judge.workers.candidate import census as device_census
from ratchet.judge.workers.candidate.census import DeviceCensus, DeviceEvent, count, results_bytes
from ratchet.judge.workers.device import WorkerDevice

TRACES = Path(os.environ.get("RATCHET_TRACES", Path(__file__).parents[4] / "shared" / "traces"))
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>>"
COPY = "void at::native::elementwise_kernel<128, 2, at::native::direct_copy_kernel_cuda>"
TRITON = """
import triton

@triton.jit
def row_norm(x, y):
    pass

def answer(x, s):
    return (x,)
"""
MARKER = [
    DeviceEvent(name=name, kind="kernel", stream=7, start_ns=at, duration_ns=1)
    for at, name in enumerate(("fill", "add"))
]


def kernel_event(name: str, *, at: int, ns: int = 1000, stream: int = 7) -> DeviceEvent:
    return DeviceEvent(name=name, kind="kernel", stream=stream, start_ns=at, duration_ns=ns)


def runtime(name: str) -> DeviceEvent:
    return DeviceEvent(name=name, kind="cuda_runtime")


def own_problem(*libraries: str) -> Problem:
    asked = Problem(name="x", reference="judge_problems:silu", cases=(), task="own")
    return replace(asked, libraries=libraries)


def kernel(language: str = "torch", source: str = "") -> Kernel:
    return Kernel(name="x", language=language, source=source, entry="answer")  # type: ignore[arg-type]


def told(events: list[DeviceEvent], allocated: tuple[int, ...] = (0, 0, 0)) -> dict[str, Any]:
    """As it comes out of the channel."""
    found: dict[str, Any] = json.loads(json.dumps(count([*MARKER, *events], allocated)))
    return found


def test_work_is_counted_by_name_and_the_marker_is_not() -> None:
    events = [
        kernel_event("mine", at=100),
        kernel_event("mine", at=200),
        DeviceEvent(name="Memcpy DtoD", kind="gpu_memcpy", stream=7, start_ns=300, duration_ns=5),
        *[runtime("cudaLaunchKernel") for _ in range(4)],
        runtime("cudaMalloc"),
    ]
    found = told(events)
    assert found["kernels"] == {"mine": [2, 2000]}
    assert (found["streams"], found["elsewhere"], found["graphs"]) == (1, {}, 0)
    assert found["launches"] == 2


def test_other_streams_and_graphs_are_named() -> None:
    events = [
        kernel_event("here", at=100),
        kernel_event("there", at=90, stream=21),
        DeviceEvent(name="Memset", kind="gpu_memset", stream=22, start_ns=95, duration_ns=7),
        runtime("cudaGraphLaunch"),
        runtime("hipGraphLaunch"),
        runtime("cudaGraphInstantiate"),
    ]
    found = told_as(device_work.DeviceCount, told(events))
    assert set(found.elsewhere) == {"there", "Memset"}
    assert (found.streams, found.graphs) == (3, 2)
    facts = {one.check: one for one in device_work.facts(found)}
    assert facts["streams"].passed is False
    assert "2 launches of captured graphs" in facts["kernels on the GPU"].detail


LAUNCHES = (
    *("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx"),
    *("cudaLaunchCooperativeKernel", "hipLaunchKernel", "hipModuleLaunchKernel"),
    *("hipExtModuleLaunchKernel", "hipExtLaunchKernel", "hipLaunchKernelExC"),
)


@pytest.mark.parametrize("name", LAUNCHES)
def test_launches_of_both_makers_are_known(name: str) -> None:
    assert told([runtime(name) for _ in range(3)])["launches"] == 1  # two are the marker's


@pytest.mark.parametrize(
    ("allocated", "kept"),
    [((10, 10, 10, 10), 0), ((0, 30, 60, 90), 30), ((0, 500, 500, 500), 0), ((5,), 0), ((), 0)],
)
def test_only_what_grows_with_every_call_is_kept(allocated: tuple[int, ...], kept: int) -> None:
    found = told_as(device_work.DeviceCount, told([], allocated))
    assert found.kept_bytes == kept
    facts = {one.check: one.passed for one in device_work.facts(found)}
    assert facts["memory between calls"] is (kept == 0)


def test_results_are_not_kept_memory_but_what_lies_in_the_inputs_is_not_allocated() -> None:
    given = (torch.zeros(1000), (1.5,))
    out = torch.empty(1000)
    assert results_bytes((out, out[10:]), given) == {out.data_ptr(): 4096}
    assert results_bytes(out, given) == {out.data_ptr(): 4096}
    assert results_bytes((given[0].view(10, 100),), given) == {}


LIBRARY = (
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>",
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8>",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64",
    "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1",
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64>>",
    "triton_poi_fused__unsafe_view_mul_silu_2",
    "triton_red_fused_add_mean_mul_pow_rsqrt_0",
    "nvjet_hsh_128x64_64x8_2x1_v_bz_TNT",
    "void cudnn::cnn::conv2d_grouped_direct_kernel",
    "MIOpenBatchNormFwdTrainSpatial",
    "void cub::DeviceReduceKernel<int>",
    "attn_fwd",
)


def judged(
    found: device_work.DeviceCount, problem: Problem | None = None, own: Kernel | None = None
) -> tuple[Evidence, str]:
    """The evidence of whose work it is, and why it is cheating; or "" if it is not."""
    return device_work.judge_own(found, problem or own_problem(), own or kernel())


@pytest.mark.parametrize("name", LIBRARY)
def test_a_librarys_kernel_is_not_the_candidates_own(name: str) -> None:
    events = [kernel_event(name, at=100), kernel_event("mine(float*)", at=200)]
    found = told_as(device_work.DeviceCount, told(events))
    evidence, reason = judged(found)
    assert "asks for its own work" in reason
    assert "50 % of the time in library kernels" in reason
    assert evidence.passed is False and "as its own process tells" in evidence.detail


def test_copies_are_free_and_a_little_of_a_library_too() -> None:
    events = [
        kernel_event("mine(float*)", at=100, ns=800),
        kernel_event(ELEMENTWISE, at=200, ns=200),
        kernel_event(COPY, at=300, ns=90_000),
    ]
    found = told_as(device_work.DeviceCount, told(events))
    evidence, reason = judged(found)
    assert not reason
    assert evidence.passed and evidence.detail.startswith("20 % of the time")


def test_a_matrix_product_is_allowed_by_name() -> None:
    found = told_as(device_work.DeviceCount, told([kernel_event(LIBRARY[3], at=100)]))
    assert judged(found, own_problem("matmul"))[1] == ""
    assert judged(found)[1]


def test_of_triton_only_what_the_source_declares_is_its_own() -> None:
    given = kernel("triton", TRITON)
    mine = told_as(device_work.DeviceCount, told([kernel_event("row_norm", at=100)]))
    assert judged(mine, own=given)[1] == ""
    other = told_as(device_work.DeviceCount, told([kernel_event("some_other_kernel", at=100)]))
    assert judged(other, own=given)[1]
    nothing = told_as(device_work.DeviceCount, told([kernel_event(COPY, at=100)]))
    assert "no kernel ran that does more than copy" in judged(nothing, own=given)[1]


NONSENSE: list[Any] = [
    *(None, [], {}, "x", {"kernels": {}}),
    {**told([]), "streams": -1},
    {**told([]), "graphs": 1.5},
    {**told([]), "launches": True},
    {**told([]), "kernels": {"x": [1]}},
    {**told([]), "kernels": {"x": "ab"}},
    {**told([]), "kernels": [["x", 1]]},
    {**told([]), "elsewhere": None},
]


@pytest.mark.parametrize("answer", NONSENSE)
def test_nonsense_from_a_candidate_is_a_crash(answer: Any) -> None:
    with pytest.raises(CandidateFault) as fault:
        told_as(device_work.DeviceCount, answer)
    assert fault.value.decided.status == "crashed"


def recorded(name: str) -> list[DeviceEvent]:
    path = TRACES / f"{name}.json.gz"
    if not path.is_file():
        pytest.skip(f"no recorded trace {name}: set RATCHET_TRACES to their folder")
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    return [
        DeviceEvent(
            name=one["name"],
            kind=one["cat"],
            stream=int(str(one.get("args", {}).get("stream", 0)), 0),
            start_ns=int(1000 * one["ts"]),
            duration_ns=int(1000 * one.get("dur", 0)),
        )
        for one in events
        if one.get("ph") == "X" and "cat" in one
    ]


@pytest.mark.parametrize(
    ("name", "kernels", "launches"),
    [
        ("h100-bert-small", 60, 34 + 22 + 4),
        ("mi300x-bert-small", 60, 30 + 26 + 4),
        ("mi300x-compile-triton", 12, 7 + 5),
        ("mi250-minitoy-rocm6.2", 14, 12 + 2),
    ],
)
def test_recorded_profiles_are_counted(name: str, kernels: int, launches: int) -> None:
    """Without our marker the first two works of the device are taken for it."""
    events = recorded(name)
    found = told_as(device_work.DeviceCount, count(events, ()))
    counted = sum(times for times, _ in found.kernels.values())
    assert kernels - 2 <= counted <= kernels
    assert found.launches == launches - 2
    assert (found.streams, found.graphs, dict(found.elsewhere)) == (1, 0, {})
    assert "100 % of the time in library kernels" in judged(found)[1]


class OldEvent:
    """An event as torch 2.11 and 2.12 give it, without its kind."""

    def __init__(self, name: str, device: DeviceType, *, mark: bool = False) -> None:
        self.name = lambda: name
        self.device_type = lambda: device
        self.is_user_annotation = lambda: mark
        self.device_resource_id = lambda: 7
        self.start_ns = lambda: 5
        self.duration_ns = lambda: 3


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (OldEvent("mine(float*)", DeviceType.CUDA), "kernel"),
        (OldEvent("Memcpy DtoD (Device -> Device)", DeviceType.CUDA), "gpu_memcpy"),
        (OldEvent("Memset (Device)", DeviceType.CUDA), "gpu_memset"),
        (OldEvent("step", DeviceType.CUDA, mark=True), "gpu_user_annotation"),
        (OldEvent("cudaLaunchKernel", DeviceType.CPU), ""),
    ],
)
def test_the_census_works_with_the_profiler_of_older_torch(event: OldEvent, kind: str) -> None:
    assert device_census._event(event).kind == kind


def test_the_census_runs_where_there_is_no_gpu() -> None:
    census = DeviceCensus(WorkerDevice())

    def run(entry: Callable[..., Any]) -> list[int]:
        return [entry(torch.ones(3)) and 0 for _ in range(2)]

    assert census.take(run, lambda x: (x + 1,)) == [0, 0]
    found = told_as(device_work.DeviceCount, json.loads(json.dumps(census.as_json())))
    assert (found.calls, found.kernels) == (2, {})


# The clocks.


def clock(*pairs: tuple[float, float | None], round_trip_s: float = 0.001) -> DeviceClock:
    made = DeviceClock()
    for arm in ("reference", "again"):
        for _ in range(3):
            made.note(0, arm, 0.02 + round_trip_s, 0.02, trusted=True)
    for wall_s, device_s in pairs:
        made.note(0, "candidate", wall_s, device_s)
    return made


def compared(made: DeviceClock) -> tuple[Evidence, str]:
    return made.compare(0, "timed", candidate="candidate")


def test_clocks_that_agree_say_nothing() -> None:
    evidence, doubt = compared(clock((0.0111, 0.01), (0.0112, 0.01), (0.03, 0.01)))
    assert evidence.passed and not doubt
    assert "0.0112 s a batch by the judge's clock" in evidence.detail


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (((0.02, 0.001), (0.02, 0.001)), "disagree"),
        (((0.01, 0.011), (0.0111, 0.01)), "longer than it took"),
        (((0.0111, 0.01), (0.0111, None)), "not every batch"),
        ((), "not every batch"),
    ],
)
def test_clocks_that_do_not_are_told(
    pairs: tuple[tuple[float, float | None], ...], words: str
) -> None:
    evidence, doubt = compared(clock(*pairs))
    assert evidence.passed is False
    assert words in doubt and "timed" in doubt


def test_a_host_has_no_such_clock_and_no_evidence_against_it_is_made_up() -> None:
    made = DeviceClock()
    made.note(0, "reference", 0.02, None, trusted=True)
    assert made.round_trip_s(0) == 0.0
    assert compared(made)[0].passed is False


def test_the_way_is_that_of_a_launch_and_a_candidate_has_no_say_in_it() -> None:
    made = clock((9.0, 0.001), round_trip_s=0.002)
    assert made.round_trip_s(0) == pytest.approx(0.002)
    made.begin(0)
    assert made.round_trip_s(0) == 0.0
    for round_trip_s in (0.001, 0.0012, 5.0):
        made.note(0, "reference", 0.02 + round_trip_s, 0.02, trusted=True)
    made.note(0, "candidate", 7.0, 0.001)
    assert made.round_trip_s(0) == pytest.approx(0.0012)
    assert made.round_trip_s(1) == 0.0


@pytest.mark.parametrize(("saved_s", "believed"), [(0.0011, True), (0.0009, False), (-1.0, False)])
def test_a_win_is_worth_more_than_what_a_process_could_save_of_its_round_trip(
    saved_s: float, believed: bool
) -> None:
    evidence, doubt = clock(round_trip_s=0.002).exceeds_round_trip(0, "timed", saved_s)
    assert evidence.passed is believed and ("its round trip" in doubt) is not believed
    assert DeviceClock().exceeds_round_trip(0, "timed", 0.1)[1] == ""


def rest(alone: float, beside: float, candidate: float) -> str:
    batches = [alone, alone * 1.01, alone * 0.99, alone * 3]
    return open_problem.undisturbed(
        "timed", alone=batches, beside_s=beside, candidate_s=candidate, least=1.05
    )[1]


def test_a_reference_that_was_slowed_down_is_no_rival() -> None:
    assert rest(1.0, 1.05, 0.5) == ""
    assert "kept the device busy" in rest(1.0, 2.0, 0.5)
    assert all("not clearly than it is alone" in rest(1.0, 1.1, one) for one in (1.02, 0.97))
    assert rest(1.0, 1.1, 0.9) == ""
    assert rest(1.0, 1.1, 1.2) == ""  # slower than either: nothing was won


def test_batches_on_a_gpu_are_longer_and_larger() -> None:
    short = plan.calls_per_batch(1e-5, 1e3)
    limit = 20 << 30
    assert plan.calls_per_batch(1e-5, 1e3, gpu_bytes=limit) > short
    assert plan.calls_per_batch(1e-9, 1.0, gpu_bytes=limit) == plan.GPU_MAX_CALLS
    assert plan.calls_per_batch(1.0, 1e12, gpu_bytes=limit) == 1
    large = plan.calls_per_batch(1e-5, 64 << 20, gpu_bytes=limit)
    assert large > 300 and large * (64 << 20) <= limit
