"""Kernels compiled for GPUs that are not here, with the launches that they would make."""

from __future__ import annotations

import functools
import importlib.util
import io
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import static_kernels as given
from rich.console import Console

from ratchet.amd.architectures import ARCHITECTURES
from ratchet.amd.compile import tools
from ratchet.amd.profile import inspect_kernel, inspection_report
from ratchet.base.devices import catalogue
from ratchet.base.errors import KernelError
from ratchet.base.show.terminal import print_report
from ratchet.judge.kernels.kernel import TARGETS, Kernel
from ratchet.judge.sandbox import isolation
from ratchet.judge.sandbox.rocm import find_tool
from ratchet.judge.trial.kernel_trial import KernelJudge, why_no_kernels
from ratchet.judge.verdict import PredictedTime

needs_sandbox = pytest.mark.skipif(
    why_no_kernels() is not None,
    reason="no kernel can be tried on this machine",
)
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)
pytestmark = needs_sandbox
THOROUGH = (pytest.mark.thorough,)
CDNA, RDNA = ("gfx90a", "gfx942", "gfx950"), ("gfx1100", "gfx1201")


@functools.cache
def profile(name: str, *targets: str, case: str | None = None) -> dict[str, Any]:
    kernel = given.triton_kernel(name, given.KERNELS[name])
    return inspect_kernel(kernel, given.problem(name), targets, case=case)


def inspect_source(body: str, name: str = "add", **options: Any) -> dict[str, Any]:
    kernel = given.triton_kernel(name, body)
    found = inspect_kernel(kernel, given.problem(name), ["gfx942"], **options)
    return {**found, **found["targets"]["gfx942"]}


def only(found: dict[str, Any], target: str) -> dict[str, Any]:
    """The one kernel that is left on a target when tuning is over."""
    assert found["targets"][target]["error"] is None
    (kept,) = [one for one in found["targets"][target]["kernels"] if one["launches"]]
    return kept  # type: ignore[no-any-return]


@needs_triton
def test_a_prediction_stands_beside_the_bound_of_its_device() -> None:
    kernel = given.triton_kernel("add", given.KERNELS["add"])
    found = inspect_kernel(kernel, given.problem("add"), ["gfx942"], predicts=True)
    bounds = {one["device"]: one for one in found["targets"]["gfx942"]["bounds"]}
    time = bounds["MI300X"]["predicted"]
    assert time["device"] == "MI300X" and time["low_s"] < time["time_s"] < time["high_s"]
    assert "predicted" not in bounds["MI300A"]
    said = io.StringIO()
    print_report(inspection_report(found), Console(file=said, width=100, markup=False))
    assert PredictedTime(**time).words in said.getvalue()


@needs_triton
@pytest.mark.parametrize("target", TARGETS)
def test_a_matmul_uses_the_matrix_units_of_every_target(target: str) -> None:
    found = profile("matmul", *TARGETS)
    assert list(found["targets"]) == list(TARGETS)
    kept = only(found, target)
    rows = kept["matrix_instructions"]
    prefix = "v_mfma_f32_" if target in CDNA else "v_wmma_f32_"
    assert rows and all(row["name"].startswith(prefix) and row["cycles"] > 0 for row in rows)
    assert sum(row["in_loops"] for row in rows) > 0
    assert kept["vgprs"] > 0 and kept["sgprs"] > 0
    assert 1 <= kept["occupancy_waves"] <= kept["max_waves"]
    assert kept["spills"] == 0 and kept["scratch_bytes"] == 0
    assert kept["lds_bytes"] > 0


@needs_triton
def test_every_configuration_of_an_autotuner_is_compiled_and_the_launch_is_the_real_one() -> None:
    found = profile("matmul", *TARGETS)
    for target in TARGETS:
        kernels = found["targets"][target]["kernels"]
        assert sorted(one["constants"]["M"] for one in kernels) == [32, 64, 128]
        assert all(one["tuned"] for one in kernels)
        kept = only(found, target)
        tile = kept["constants"]
        assert kept["grid"] == [4096 // tile["M"], 8192 // tile["N"], 1]
        assert kept["num_warps"] == {32: 2, 64: 4, 128: 4}[tile["M"]]
        assert kept["signature"]["a"] == "*bf16"
        assert kept["dot_flops"] == 2 * 4096 * 2048 * 8192
        assert kept["dot_flops_exact"] is True


@needs_triton
def test_bounds_follow_from_the_launch_and_the_catalogue() -> None:
    found = profile("matmul", *TARGETS)["targets"]["gfx942"]
    bounds = {one["device"]: one for one in found["bounds"]}
    assert {"MI300A", "MI300X", "MI325X"} == set(bounds)
    peak = catalogue.load()["MI300X"].peak_flops_per_s("matrix_bf16")
    assert peak is not None
    least = 2 * 4096 * 2048 * 8192 / peak
    assert least * 0.997 <= bounds["MI300X"]["matrix_s"] <= 4 * least
    assert bounds["MI300X"]["estimate"] is True
    assert "max(" in bounds["MI300X"]["formula"]


@needs_triton
def test_a_copying_kernel_is_bound_by_memory_and_its_loads_are_wide() -> None:
    found = profile("add", "gfx942", "gfx1100")
    for target in ("gfx942", "gfx1100"):
        kept = only(found, target)
        assert set(kept["global_load_bits"]) == {"128"}
        assert set(kept["global_store_bits"]) == {"128"}
        assert kept["tensor_bytes"] == 3 * 4 * 8192 * 8192
        assert kept["matrix_instructions"] == []
        assert kept["grid"] == [8192 * 8192 // 1024, 1, 1]
        assert {one["limit"] for one in found["targets"][target]["bounds"]} == {"memory"}
    (one,) = [b for b in found["targets"]["gfx942"]["bounds"] if b["device"] == "MI300X"]
    assert one["time_s"] == pytest.approx(3 * 4 * 8192 * 8192 / 5.3e12)


@needs_triton
def test_a_case_may_be_chosen_and_small_ones_launch_small_grids() -> None:
    kept = only(profile("add", "gfx942", case="small"), "gfx942")
    assert kept["grid"] == [math.ceil(3 * 700 / 1024), 1, 1]
    with pytest.raises(KernelError, match="has no case 'no': it has small, large"):
        profile("add", "gfx942", case="no")


@needs_triton
def test_reductions_use_lds_and_transcendental_instructions() -> None:
    kept = only(profile("softmax", "gfx942"), "gfx942")
    assert kept["grid"] == [8192, 1, 1]
    assert kept["waves_per_workgroup"] == 8
    assert kept["lds_bytes"] > 0
    assert kept["instructions"]["transcendental"] > 0
    assert kept["instructions"]["barrier"] > 0
    assert kept["waits"]["total"] > 0


@needs_triton
def test_work_of_programs_with_loops_of_their_own_length_is_counted() -> None:
    kept = only(profile("attention", "gfx942", "gfx950"), "gfx950")
    tiles = sum(range(1, 4096 // 64 + 1))
    per_head = tiles * 2 * (2 * 64 * 64 * 64)
    assert kept["dot_flops"] == pytest.approx(2 * 16 * per_head, rel=1e-9)
    assert kept["spills"] == 0
    assert all(not row["older_shape"] for row in kept["matrix_instructions"])


@needs_triton
def test_a_kernel_that_holds_too_much_spills_and_says_so() -> None:
    kept = only(profile("spill", "gfx1100"), "gfx1100")
    assert kept["spills"] > 0
    assert kept["scratch_bytes"] > 0
    assert kept["instructions"]["scratch"] > 0
    assert any("spilled" in note for note in kept["notes"])


@needs_triton
def test_each_target_has_its_own_limit_on_shared_memory() -> None:
    """Triton asks a driver once and remembers; in a process of its own."""
    script = """
from triton.compiler.compiler import max_shared_mem
from ratchet.amd.architectures import ARCHITECTURES
from ratchet.amd.compile.fake_driver import FakeDriver
for name in ("gfx942", "gfx950", "sm_90"):
    FakeDriver(ARCHITECTURES[name], units=1).install()
    print(max_shared_mem(0))
"""
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert run.stdout.split() == [str(64 << 10), str(160 << 10), str(227 << 10)], run.stderr[-500:]


@needs_triton
def test_llvm_mca_gives_cycles_where_it_is_installed() -> None:
    if tools.find_mca(ARCHITECTURES["gfx942"]) is None:
        pytest.skip("no llvm-mca that knows gfx942 is installed")
    kept = only(profile("matmul", *TARGETS), "gfx942")
    assert "error" not in kept["mca"], kept["mca"]
    assert kept["mca"]["cycles_per_pass"] > 0
    assert kept["mca"]["critical_resource"] in kept["mca"]["resource_cycles"]


@needs_triton
def test_nvidia_s_compiler_tells_registers_and_spills() -> None:
    kept = only(profile("matmul", "sm_90"), "sm_90")
    assert kept["registers"] > 16
    assert kept["spills"] == 0
    assert any("mma" in row["name"] for row in kept["matrix_instructions"])


@needs_triton
def test_a_kernel_that_launches_nothing_is_told() -> None:
    found = inspect_source("def add(x, y, scalars):\n    return (x + y,)\n")
    assert found["kernels"] == []
    assert found["error"] is None
    assert "launches nothing" in found["reason"]


@needs_triton
def test_an_entry_that_raises_is_told_with_what_it_launched_before() -> None:
    found = inspect_source(given.ADD.replace("return (out,)", "raise ValueError('so it is')"))
    assert found["error"] == "the entry raised ValueError: so it is"
    assert len(found["kernels"]) == 1


@needs_triton
def test_an_entry_with_other_arguments_is_told_once_with_what_it_takes() -> None:
    kernel = given.triton_kernel("add", given.ADD.replace(", scalars", ""))
    found = inspect_kernel(kernel, given.problem("add"), ["gfx942", "gfx1100"])
    said = io.StringIO()
    print_report(inspection_report(found), Console(file=said, width=400, markup=False))
    assert said.getvalue().count("takes the tensors of a case, then its scalars") == 1
    assert "gfx942, gfx1100: the entry raised TypeError: add()" in said.getvalue()


@needs_triton
def test_an_entry_that_reads_values_gets_some() -> None:
    body = given.ADD.replace(
        "out = torch.empty_like(x)",
        "assert x.is_cuda and x.device.type == 'cuda' and x.abs().max().item() > 0\n"
        "    out = torch.empty(x.shape, device='cuda')",
    )
    small = inspect_source(body, case="small")
    assert small["error"] is None
    assert small["kernels"][0]["launches"] == 1
    large = inspect_source(body)
    assert large["error"] is not None


@needs_triton
def test_what_one_target_cannot_do_is_told_for_it_alone() -> None:
    body = given.ADD.replace("BLOCK=1024", "BLOCK=1024 if torch.version.hip else 1 // 0")
    kernel = given.triton_kernel("add", body)
    found = inspect_kernel(kernel, given.problem("add"), ["sm_90", "gfx942"])["targets"]
    assert "ZeroDivisionError" in found["sm_90"]["error"]
    assert found["gfx942"]["error"] is None


@needs_triton
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("import os\nos._exit(7)\n", "exit code 7"),
        ("while True: pass\n", "did not answer"),
        pytest.param("def other(): pass\n", "defines no function 'add'", marks=THOROUGH),
        pytest.param("def add(:\n", "SyntaxError", marks=THOROUGH),
    ],
)
def test_a_hostile_source_ends_in_an_error_and_in_time(body: str, said: str) -> None:
    found = inspect_source(body, time_limit_s=10.0 if "while" in body else 120.0)
    assert found["kernels"] == []
    assert said in found["error"]


@needs_triton
def test_without_time_nothing_is_started() -> None:
    found = inspect_source(given.ADD, time_limit_s=0.0)
    assert found["error"] == "no time was left to compile for this target"
    assert "reason" not in found


def test_a_language_without_gpu_code_is_refused() -> None:
    kernel = Kernel(name="k", language="cpp", source="", entry="k")
    with pytest.raises(KernelError, match="kernels in cpp have no GPU code"):
        inspect_kernel(kernel, given.problem("add"), ["gfx942"])


def test_an_unknown_target_is_refused() -> None:
    kernel = given.triton_kernel("add", given.ADD)
    with pytest.raises(KernelError, match="target 'gfx1' is not known: use one of gfx90a"):
        inspect_kernel(kernel, given.problem("add"), ["gfx1"])


needs_hip = pytest.mark.skipif(
    find_tool("hipcc") is None and find_tool("clang") is None,
    reason="neither hipcc nor clang is installed",
)


@needs_hip
def test_a_hip_kernel_is_compiled_without_rocm() -> None:
    targets = ("gfx90a", "gfx942", "gfx1100")
    found = inspect_kernel(given.hip_kernel(), given.problem("add"), targets)
    for target in targets:
        assert found["targets"][target]["error"] is None, found
        (one,) = found["targets"][target]["kernels"]
        assert one["name"] == "row_scale"
        assert one["vgprs"] > 0
        assert one["lds_bytes"] == 64
        assert one["instructions_in_loops"]["global_load"] == 1
        assert one["instructions"]["transcendental"] >= 2
        assert one["occupancy_waves"] == one["max_waves"]


@needs_hip
def test_a_hip_source_that_does_not_compile_says_why() -> None:
    kernel = given.hip_kernel(given.HIP.replace("rsqrtf(sum)", "no_such(sum)"))
    found = inspect_kernel(kernel, given.problem("add"), ["gfx942"])["targets"]["gfx942"]
    assert "does not compile" in found["error"]
    assert "no_such" in found["error"]


@needs_hip
def test_the_compiler_of_a_hostile_source_sees_no_file_of_the_host(tmp_path: Path) -> None:
    if isolation.mechanism() == "rlimits":
        pytest.skip("no wall: the file system is the machine's own")
    (tmp_path / "secret.h").write_text("#error this is the secret\n")
    kernel = given.hip_kernel(f'#include "{tmp_path}/secret.h"\n' + given.HIP)
    found = inspect_kernel(kernel, given.problem("add"), ["gfx942"])["targets"]["gfx942"]
    assert "file not found" in found["error"] or "Permission denied" in found["error"]
    assert "this is the secret" not in found["error"]


@needs_hip
@pytest.mark.usefixtures("profiled")
def test_a_verdict_on_a_hip_kernel_carries_its_profile() -> None:
    with KernelJudge() as judge:
        verdict = judge.judge(given.hip_kernel(), given.problem("add"))
    assert verdict.status == "unmeasured"
    assert verdict.static is not None
    assert verdict.static["targets"]["gfx942"]["kernels"][0]["name"] == "row_scale"
