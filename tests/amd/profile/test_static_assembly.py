"""What is read from text alone: assembly, limits of occupancy, loops of TTIR, answers of tools."""

from __future__ import annotations

import importlib.util
import json
import math

import pytest

from ratchet.amd import profile as inspection
from ratchet.amd.architectures import (
    ARCHITECTURES,
    find_architectures,
    occupancy,
)
from ratchet.amd.compile import assembly
from ratchet.amd.compile.process import CompiledKernel, read_profile
from ratchet.amd.profile import find_case, inspect_kernel, kernel_facts
from ratchet.amd.profile.dot_work import DotCounter, dot_work
from ratchet.amd.targets import interpreted
from ratchet.base.devices import catalogue
from ratchet.base.errors import JudgeError, KernelError
from ratchet.judge.kernels.kernel import TARGETS, Kernel
from ratchet.judge.problems.problem import Case, Problem, TensorSpec, Tier
from ratchet.judge.targets import small_cases
from ratchet.judge.verdict import CandidateFault

TEXT = """
	.text
first:                                  ; @first
	s_load_dwordx2 s[0:1], s[4:5], 0x0
	global_load_dwordx4 v[0:3], v[4:5], off
	global_load_ushort v6, v[4:5], off      ; one at a time
.LBB0_1:
	s_waitcnt vmcnt(0)
	ds_read_b128 v[8:11], v12
.LBB0_2:                                ; inner
	v_mfma_f32_32x32x8_bf16 a[0:15], v[0:1], v[2:3], a[0:15]
	v_exp_f32_e32 v3, v3
	s_cbranch_scc1 .LBB0_2
	s_waitcnt lgkmcnt(0)
	s_barrier
	s_cbranch_vccnz .LBB0_1
	buffer_store_dwordx2 v[0:1], v4, s[0:3], 0 offen
	scratch_store_dword off, v1, s32
	s_endpgm
.Lfunc_end0:
	.section	.AMDGPU.csdata,"",@progbits
; Occupancy: 4
second:
	v_add_f32_e32 v0, v1, v2
	s_endpgm
	.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     16
    .args:
      - .name:           x
        .offset:         0
    .group_segment_fixed_size: 2048
    .name:           first
    .private_segment_fixed_size: 24
    .sgpr_count:     22
    .sgpr_spill_count: 1
    .vgpr_count:     116
    .vgpr_spill_count: 5
  - .agpr_count:     0
    .name:           second
    .vgpr_count:     3
  - .name:           not_there
amdhsa.target:   amdgcn-amd-amdhsa--gfx950
...
	.end_amdgpu_metadata
"""


def test_registers_spills_and_loops_are_read() -> None:
    first, second = assembly.parse(TEXT)
    assert (first.name, second.name) == ("first", "second")
    counts = ("vgpr_count", "agpr_count", "vgpr_spill_count", "sgpr_spill_count")
    assert sum(first.number(name) for name in counts[2:]) == 6
    assert [first.number(name) for name in counts[:2]] == [116, 16]
    assert len(first.instructions) == 14
    assert len(second.instructions) == 2
    depths = [one.depth for one in first.instructions]
    assert depths == [0, 0, 0, 1, 1, 2, 2, 2, 1, 1, 1, 0, 0, 0]
    assert [one.name for one in first.hot_loop()] == [
        "v_mfma_f32_32x32x8_bf16",
        "v_exp_f32_e32",
        "s_cbranch_scc1",
    ]


def test_a_branch_back_from_behind_the_end_is_no_loop() -> None:
    """Where a kernel's loop may run no trip, LLVM puts what is left to do in a block at the end."""
    block = [".LBB0_9:", "\tv_mov_b32 v0, 0", "\ts_cbranch_execnz .LBB0_1", "\ts_branch .LBB0_2"]
    cold = TEXT.replace(".Lfunc_end0:", "\n".join([*block, ".Lfunc_end0:"]))
    assert cold != TEXT
    (first, _), (plain, _) = assembly.parse(cold), assembly.parse(TEXT)
    assert first.loops == plain.loops
    assert first.hot_loop() == plain.hot_loop()


def test_facts_of_one_kernel() -> None:
    kernel = CompiledKernel(name="first", num_warps=4, shared_bytes=4096, texts={"amdgcn": TEXT})
    facts = kernel_facts.amd_facts(kernel, ARCHITECTURES["gfx950"])
    assert facts is not None
    found = facts.document
    assert found["lds_bytes"] == 4096
    assert found["scratch_bytes"] == 24
    assert found["occupancy_waves"] == 4
    assert found["global_load_bits"] == {"16": 1, "128": 1}
    assert found["global_store_bits"] == {"64": 1}
    assert found["instructions"]["transcendental"] == 1
    assert found["instructions"]["scratch"] == 1
    assert found["waits"] == {"total": 2, "in_loops": 2, "drains": 1, "drains_in_loops": 1}
    (row,) = found["matrix_instructions"]
    assert (row["shape"], row["cycles"], row["count"], row["in_loops"]) == ([32, 32, 8], 32, 1, 1)
    assert row["older_shape"] is True
    assert row["faster_shape"] in ("v_mfma_f32_32x32x16_bf16", "v_mfma_f32_16x16x32_bf16")
    assert len(found["notes"]) == 3
    assert (
        kernel_facts.amd_facts(
            CompiledKernel(name="other", texts={"amdgcn": TEXT}), ARCHITECTURES["gfx950"]
        )
        is None
    )


@pytest.mark.parametrize("text", ["", "\0" * 100, ".amdgpu_metadata\n  - .name: x", "x:\n" * 999])
def test_text_that_is_no_assembly_gives_no_kernel(text: str) -> None:
    assert assembly.parse(text) == []


def test_an_endless_text_is_not_read() -> None:
    assert assembly.parse(TEXT + "\n" * assembly.MAX_LINES) == []


def test_endless_loops_of_hostile_text_are_cut() -> None:
    lines = "".join(f".LBB{n}:\n\ts_branch .LBB{n}\n" for n in range(3000))
    text = f"k:\n{lines}\n.amdgpu_metadata\namdhsa.kernels:\n  - .name: k\n.end_amdgpu_metadata"
    (kernel,) = assembly.parse(text)
    assert len(kernel.loops) == assembly.MAX_LOOPS


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("v_mfma_f32_16x16x16_f16", "matrix"),
        ("v_wmma_f32_16x16x16_bf16", "matrix"),
        ("v_rcp_f32_e32", "transcendental"),
        ("v_pk_fma_f32", "vector"),
        ("global_load_b128", "global_load"),
        ("buffer_load_dwordx4", "global_load"),
        ("global_store_short", "global_store"),
        ("global_atomic_add_f32", "global_atomic"),
        ("ds_write_b64", "lds"),
        ("scratch_load_dword", "scratch"),
        ("s_wait_loadcnt", "wait"),
        ("s_barrier", "barrier"),
        ("s_barrier_signal", "barrier"),
        ("s_cbranch_execz", "branch"),
        ("s_load_dwordx8", "scalar_load"),
        ("s_add_u32", "scalar"),
        ("image_load", "other"),
    ],
)
def test_classes_of_instructions(name: str, expected: str) -> None:
    assert kernel_facts.class_of(name) == expected
    assert expected in kernel_facts.CLASSES


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("global_load_dwordx4", 128),
        ("buffer_load_dword", 32),
        ("global_load_ubyte", 8),
        ("global_load_d16_b16", 16),
        ("global_load_short_d16_hi", 16),
        ("global_store_b96", 96),
        ("global_load_lds_dwordx4", 128),
        ("v_add_f32_e32", None),
        ("buffer_gl0_inv", None),
    ],
)
def test_widths_of_accesses(name: str, bits: int | None) -> None:
    assert kernel_facts.access_bits(name) == bits


@pytest.mark.parametrize(
    ("target", "vgprs", "waves"),
    [
        ("gfx90a", 1, 8),
        ("gfx90a", 64, 8),
        ("gfx942", 65, 7),
        ("gfx942", 128, 4),
        ("gfx942", 129, 3),
        ("gfx950", 256, 2),
        ("gfx950", 512, 1),
        ("gfx1100", 96, 16),
        ("gfx1100", 97, 12),
        ("gfx1201", 256, 5),
    ],
)
def test_registers_limit_occupancy(target: str, vgprs: int, waves: int) -> None:
    found = occupancy(ARCHITECTURES[target], vgprs=vgprs, lds_bytes=0, workgroup_waves=1)
    assert found.waves_per_simd == waves
    assert (found.limit == "none") == (waves == ARCHITECTURES[target].max_waves_per_simd)


def test_lds_and_workgroups_limit_occupancy() -> None:
    cdna3, cdna4 = ARCHITECTURES["gfx942"], ARCHITECTURES["gfx950"]
    by_lds = occupancy(cdna3, vgprs=32, lds_bytes=20_000, workgroup_waves=4)
    assert (by_lds.waves_per_simd, by_lds.workgroups, by_lds.limit) == (3, 3, "lds")
    narrow = occupancy(cdna3, vgprs=32, lds_bytes=13_000, workgroup_waves=1)
    assert (narrow.waves_per_simd, narrow.workgroups) == (2, 5)
    more = occupancy(cdna4, vgprs=32, lds_bytes=20_000, workgroup_waves=4)
    assert more.waves_per_simd == 8
    too_much = occupancy(cdna3, vgprs=32, lds_bytes=70_000, workgroup_waves=4)
    assert (too_much.waves_per_simd, too_much.limit) == (0, "lds")
    too_wide = occupancy(cdna3, vgprs=256, lds_bytes=0, workgroup_waves=16)
    assert (too_wide.waves_per_simd, too_wide.limit) == (0, "registers")


def test_occupancy_never_grows_with_what_a_kernel_takes() -> None:
    for one in ARCHITECTURES.values():
        for waves in (1, 4, 8):
            by_vgprs = [
                occupancy(one, vgprs=n, lds_bytes=0, workgroup_waves=waves).waves_per_simd
                for n in range(1, 513, 3)
            ]
            by_lds = [
                occupancy(one, vgprs=40, lds_bytes=n, workgroup_waves=waves).waves_per_simd
                for n in range(1, one.lds_bytes_per_workgroup + 9000, 1000)
            ]
            assert by_vgprs == sorted(by_vgprs, reverse=True)
            assert by_lds == sorted(by_lds, reverse=True)
            assert by_lds[-1] == 0


def test_an_unknown_target_is_one_line_with_the_known() -> None:
    with pytest.raises(KernelError, match="target 'gfx999' is not known: use one of gfx90a, gfx"):
        find_architectures(["gfx942", "gfx999"])
    assert [one.name for one in find_architectures(["gfx950", "gfx950"])] == ["gfx950"]
    assert TARGETS == ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")


TTIR = """
module {
  tt.func public @kernel(%a: !tt.ptr<bf16> {tt.divisibility = 16 : i32}, %k: i32, %flag: i32) {
    %c0 = arith.constant 0 : i32
    %c32 = arith.constant 32 : i32
    %c31 = arith.constant 31 : i32
    %zero = arith.constant dense<0.000000e+00> : tensor<64x16xf32>
    %pid = tt.get_program_id x : i32
    %more = arith.addi %k, %c31 : i32
    %trips = arith.divsi %more, %c32 : i32
    %one = arith.constant 1 : i32
    %sums = scf.for %i = %c0 to %trips step %one iter_args(%s = %zero) -> (tensor<64x16xf32>) : i32 {
      %l = tt.load %p : tensor<64x32x!tt.ptr<bf16>>
      %d = tt.dot %l, %r, %s, inputPrecision = tf32 : tensor<64x32xbf16> * tensor<32x16xbf16> -> tensor<64x16xf32>
      scf.yield %d : tensor<64x16xf32>
    }
    BODY
    tt.return
  }
}
"""  # noqa: E501
ONE_DOT = 2.0 * 64 * 16 * 32


def work(body: str, *, k: int = 100, grid: tuple[int, int, int] = (6, 1, 1)) -> tuple[float, bool]:
    found = dot_work(TTIR.replace("BODY", body), grid, [None, k, 1])
    assert found is not None
    return found.flops / ONE_DOT, found.exact


DOT = "%d = tt.dot %l, %r, %s : tensor<64x32xf16> * tensor<32x16xf16> -> tensor<64x16xf32>"


def test_loops_with_known_bounds_are_counted() -> None:
    assert work("") == (6 * 4, True)
    assert work("", k=0) == (0, True)
    assert work("", grid=(3, 5, 2)) == (30 * 4, True)


def test_bounds_that_depend_on_the_program_are_counted_one_by_one() -> None:
    body = f"""
    %end = arith.addi %pid, %one : i32
    %t = scf.for %j = %c0 to %end step %one iter_args(%s = %zero) -> (tensor<64x16xf32>) : i32 {{
      {DOT}
      scf.yield %d : tensor<64x16xf32>
    }}"""
    assert work(body, k=0) == (1 + 2 + 3 + 4 + 5 + 6, True)
    many, exact = work(body, k=0, grid=(10_000, 1, 1))
    assert not exact  # sampled
    assert many == pytest.approx(10_000 * 10_001 / 2, rel=0.03)


def test_where_the_count_is_cut_the_longest_programs_do_not_stand_for_all() -> None:
    body = f"""
    %last = arith.constant 6000 : i32
    %end = arith.subi %last, %pid : i32
    %t = scf.for %j = %c0 to %end step %one iter_args(%s = %zero) -> (tensor<64x16xf32>) : i32 {{
      %u = scf.for %h = %c0 to %one step %one iter_args(%r = %zero) -> (tensor<64x16xf32>) : i32 {{
        {DOT}
      }}
    }}"""
    counted, exact = work(body, k=0, grid=(4000, 1, 1))
    assert not exact
    assert counted == pytest.approx(sum(6000 - place for place in range(4000)), rel=0.2)


def test_branches_are_followed_where_their_condition_is_known() -> None:
    both = f"""
    %c = arith.cmpi slt, %pid, %one : i32
    %t = scf.if %c -> (tensor<64x16xf32>) {{
      {DOT}
      {DOT}
      scf.yield %d : tensor<64x16xf32>
    }} else {{
      {DOT}
      scf.yield %d : tensor<64x16xf32>
    }}"""
    assert work(both, k=0) == (2 + 5, True)
    unknown = both.replace("arith.cmpi slt, %pid", "arith.cmpi slt, %loaded")
    assert work(unknown, k=0) == (0, False)


def test_a_bound_read_from_memory_makes_the_sum_a_lower_bound() -> None:
    body = f"""
    %n = tt.load %lengths : !tt.ptr<i32>
    %t = scf.for %j = %c0 to %n step %one iter_args(%s = %zero) -> (tensor<64x16xf32>) : i32 {{
      {DOT}
    }}"""
    assert work(body) == (6 * 4, False)


def test_text_that_is_no_ttir_has_no_work() -> None:
    assert dot_work("", (1, 1, 1), []) is None
    assert dot_work("\n".join("tt.dot" for _ in range(9)), (1, 1, 1), []) is None


def test_endless_loops_of_a_hostile_kernel_are_cut() -> None:
    deep = "%t = scf.for %j = %c0 to %k step %one iter_args(%s = %zero) -> (f32) : i32 {\n"
    body = deep * 8 + DOT + "\n}" * 8
    flops, exact = work(body, k=10**9, grid=(10**6, 1, 1))
    assert not exact
    assert math.isfinite(flops)


def test_bounds_follow_their_formula() -> None:
    launch = inspection.LaunchWork(
        dot_flops=2.0 * 4096**3,
        flops_per_simd_per_cycle=512.0,
        waves=1 << 20,
        tensor_bytes=3 * 4096 * 4096 * 2,
    )
    found = {one["device"]: one for one in inspection.bounds("gfx942", [launch])}
    assert {"MI300A", "MI300X", "MI325X"} <= set(found)
    device = catalogue.load()["MI300X"]
    peak, bandwidth = device.peak_flops_per_s("matrix_bf16"), device.memory_bytes_per_s()
    assert peak is not None and bandwidth is not None
    one = found["MI300X"]
    assert one["matrix_s"] == pytest.approx(2.0 * 4096**3 / peak, rel=1e-3)
    assert one["memory_s"] == pytest.approx(3 * 4096 * 4096 * 2 / bandwidth)
    assert one["time_s"] == max(one["matrix_s"], one["memory_s"])
    assert one["limit"] == "matrix"
    assert one["estimate"] is True
    few = inspection.LaunchWork(
        dot_flops=launch.dot_flops, flops_per_simd_per_cycle=512.0, waves=4, tensor_bytes=0
    )
    (slow,) = [one for one in inspection.bounds("gfx942", [few]) if one["device"] == "MI300X"]
    assert slow["matrix_s"] == pytest.approx(one["matrix_s"] * 304, rel=1e-3)
    assert inspection.bounds("gfx942", []) == []


def test_alike_launches_are_counted_once_and_not_for_ever() -> None:
    text, grid = TTIR.replace("BODY", ""), (6, 1, 1)
    counter = DotCounter(60.0)
    assert counter.count(text, grid, [None, 100, 1]) is counter.count(text, grid, [{}, 100, 1])
    assert counter.count(text, grid, [None, 0, 1]) != counter.count(text, grid, [None, 100, 1])
    assert DotCounter(0.0).count(text, grid, [None, 100, 1]) is None


MCA = {
    "CodeRegions": [
        {
            "Instructions": ["v_add", "v_mfma"],
            "ResourcePressureView": {
                "ResourcePressureInfo": [
                    {"InstructionIndex": 0, "ResourceIndex": 0, "ResourceUsage": 99},
                    {"InstructionIndex": 2, "ResourceIndex": 0, "ResourceUsage": 1},
                    {"InstructionIndex": 2, "ResourceIndex": 1, "ResourceUsage": 8},
                ]
            },
            "SummaryView": {"Iterations": 10, "Instructions": 20, "TotalCycles": 120},
        }
    ],
    "TargetInfo": {"Resources": ["HWVALU", "HWXDL"]},
}


def test_mca_gives_cycles_and_the_busiest_resource() -> None:
    found = kernel_facts.mca_summary({"json": json.dumps(MCA), "left_out": 1})
    assert found["cycles_per_pass"] == 12
    assert found["instructions"] == 2
    assert found["critical_resource"] == "HWXDL"
    assert found["left_out"] == 1


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"CodeRegions": []}', "9" * 9])
def test_nonsense_of_mca_is_no_answer(text: str) -> None:
    assert set(kernel_facts.mca_summary({"json": text})) == {"error"}


GOOD = {
    "kernels": {"k": {"name": "k", "num_warps": 4, "texts": {}}},
    "launches": [
        {
            "kernel": "k",
            "grid": [2, 3, 1],
            "arguments": [7, {"bytes": 64, "place": [16, [4, 4]]}, None] * 2,
            "tuning": False,
        }
    ],
    "error": None,
}


def test_a_worker_s_answer_is_checked() -> None:
    profile = read_profile(GOOD)
    (launch,) = profile.launches
    assert launch.programs == 6
    assert launch.tensor_bytes == 64  # the same tensor twice


@pytest.mark.parametrize(
    "change",
    [
        {"kernels": []},
        {"launches": [{"kernel": "other", "grid": [1, 1, 1], "arguments": []}]},
        {"launches": [{"kernel": "k", "grid": [1], "arguments": []}]},
        {"launches": [{"kernel": "k", "grid": [1, 1, "x"], "arguments": []}]},
        {"launches": [{"kernel": "k", "grid": [1, 1, 1], "arguments": [{"bytes": -5}]}]},
        {"kernels": {"k": {"name": "k", "num_warps": 10**9}}},
        {"error": "text"},
    ],
)
def test_nonsense_of_a_worker_is_a_fault(change: dict[str, object]) -> None:
    with pytest.raises(JudgeError, match="the profile's process"):
        read_profile(GOOD | change)


def test_without_triton_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    kernel = Kernel(name="k", language="triton", source="", entry="k")
    with pytest.raises(CandidateFault, match="triton is not installed") as fault:
        interpreted(kernel)
    assert fault.value.decided.status == "unmeasured"
    case = Case(name="one", inputs=())
    with pytest.raises(KernelError, match="triton is not installed"):
        inspect_kernel(kernel, Problem(name="p", reference="m:f", cases=(case,)), ["gfx942"])


def test_a_problem_without_cases_has_none_to_launch() -> None:
    with pytest.raises(KernelError, match="problem 'p' has no case: give one"):
        find_case(Problem(name="p", reference="m:f", cases=()))


def test_the_largest_timed_case_of_the_largest_tier_is_taken() -> None:
    def case(name: str, tier: Tier, size: int, *, timed: bool = True) -> Case:
        spec = TensorSpec(shape=(size,), dtype="float32")
        return Case(name=name, inputs=(spec,), timed=timed, tier=tier)

    cases = (
        case("small", "ci", 10),
        case("middle", "cpu", 500),
        case("wide", "cpu", 700),
        case("untimed", "gpu", 9000, timed=False),
    )
    problem = Problem(name="p", reference="m:f", cases=cases)
    assert find_case(problem).name == "wide"
    assert find_case(problem, "small").name == "small"
    assert [one.name for one in small_cases(problem).cases] == ["small"]
    whole = Problem(name="p", reference="m:f", cases=cases[1:])
    assert small_cases(whole) == whole
