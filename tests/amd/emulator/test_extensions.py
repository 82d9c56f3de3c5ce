"""torch extensions in CUDA and HIP: host code in the sandbox, launches in the emulator."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ratchet.amd.compile.hip_compiler import find_hip, first_error
from ratchet.amd.emulator.extension_build import as_hip, check_module
from ratchet.amd.emulator.linking import device_variables, linked
from ratchet.base.errors import KernelError, RatchetError
from ratchet.judge.court.calls import judge
from ratchet.judge.kernels.kernel_file import load_kernel
from ratchet.judge.sandbox.rocm import find_tool
from ratchet.judge.trial.kernel_trial import why_no_kernels

needs_hip = pytest.mark.skipif(
    find_tool("clang") is None or shutil.which("ld") is None or not find_hip().whole,
    reason="clang, HIP's headers (triton) or rocm-device-libs are not installed",
)
needs_sandbox = pytest.mark.skipif(
    why_no_kernels() is not None, reason="no kernel can be tried on this machine"
)
HERE = Path(__file__).parent / "extensions"


def test_an_extension_binds_its_entries(tmp_path: Path) -> None:
    kernel = load_kernel(HERE / "softmax.cu")
    assert (kernel.language, kernel.entry) == ("hip", "softmax")


def test_cudas_names_become_hips_on_the_same_lines() -> None:
    text = "#include <cuda_runtime.h>\nvoid f() {\n  cudaDeviceSynchronize();\n}\n"
    made = as_hip("f.cu", text)
    assert "hipDeviceSynchronize" in made
    assert made.count("\n") == text.count("\n")


@pytest.mark.parametrize(
    ("said", "made"),
    [
        ("mask.to(at::kCPU)", "mask.cpu()"),
        ("mask.to( torch::DeviceType::CPU )", "mask.cpu()"),
        ("x.options().device(at::kCPU)", "x.options().pinned_memory(true)"),
        ("x.to(y.device())", "x.to(y.device())"),
    ],
)
def test_tensors_for_host_code_are_open_to_it(said: str, made: str) -> None:
    assert f"auto y = {made};" in as_hip("f.hip", f"auto y = {said};\n")


def test_an_extension_without_bindings_is_told() -> None:
    with pytest.raises(KernelError, match="PYBIND11_MODULE"):
        check_module(["__global__ void f() {}"])


def test_the_first_error_keeps_its_file_and_line() -> None:
    said = "/tmp/x/module/../soft.cu:12:5: error: use of undeclared identifier 'y'\n   12 | y"
    assert first_error(said) == "soft.cu:12:5: use of undeclared identifier 'y'"


def test_a_library_that_is_not_here_is_said_with_its_first_name() -> None:
    said = "/tmp/x/k.cu:9:3: error: unknown type name 'hipblasHandle_t'\n    9 | hipblasHandle_t h;"
    assert first_error(said).endswith("(libraries of CUDA and ROCm are not here)")
    own = "/tmp/x/k.cu:9:3: error: use of undeclared identifier 'hipped'"
    assert first_error(own).endswith("'hipped'")


DATA = """\
\t.text
kernel:
\ts_getpc_b64 s[0:1]
\ts_add_u32 s0, s0, table@rel32@lo+4
\ts_addc_u32 s1, s1, table@rel32@hi+12
\t.type\ttable,@object
\t.data
\t.globl\ttable
table:
\t.long\t1065353216                      ; 0x3f800000
\t.short\t2
\t.asciz\t"a\\n\\001"
\t.zero\t3
\t.size\ttable, 13
"""


def at(**addresses: int) -> Any:
    """Return variables that were placed at these addresses."""
    return SimpleNamespace(addresses=addresses, pointer_to=lambda address: address)


def test_variables_get_their_bytes_and_addresses() -> None:
    (found,) = device_variables(DATA).values()
    assert found == b"\0\0\x80\x3f\2\0a\n\1\0\0\0\0"
    text = linked(DATA, at(table=0x1234_0000_5678))
    assert "s_mov_b64 s[0:1], 0" in text
    assert "s_add_u32 s0, s0, 0x5678" in text
    assert "s_addc_u32 s1, s1, 0x1234" in text


def test_a_place_inside_of_a_variable_keeps_its_offset() -> None:
    text = DATA.replace("lo+4", "lo+68").replace("hi+12", "hi+76")
    found = linked(text, at(table=0x1_FFFF_FFF0))
    assert "s_add_u32 s0, s0, 0x30" in found and "s_addc_u32 s1, s1, 0x2" in found
    with pytest.raises(KernelError, match="with an offset"):
        linked(text.replace("rel32", "gotpcrel32"), at(table=64))


def test_variables_of_zeros_may_have_no_label() -> None:
    text = "\t.type\t_ZL3sum,@object\n\t.local\t_ZL3sum\n\t.comm\t_ZL3sum,12,4\n"
    (found,) = device_variables(text).values()
    assert found == bytes(12)


def test_a_function_that_is_not_here_is_named() -> None:
    with pytest.raises(KernelError, match="table is called or read"):
        linked(DATA, at())


@needs_hip
@needs_sandbox
@pytest.mark.compiler
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["softmax.cu", "inline_add.py"])
def test_a_cuda_extension_is_judged_on_gfx942(name: str) -> None:
    problem = HERE / "add_problem.py" if name.endswith(".py") else "softmax"
    verdict = judge(HERE / name, problem, target="gfx942", time_limit_s=900)
    assert verdict.status == "correct", verdict.reason


@needs_hip
@needs_sandbox
@pytest.mark.compiler
@pytest.mark.thorough
@pytest.mark.parametrize("target", ["gfx942", "gfx1100"])
def test_the_example_is_right_on_waves_of_both_widths(target: str) -> None:
    example = Path(__file__).parents[3] / "examples/cuda_softmax/softmax.cu"
    verdict = judge(example, "softmax", target=target, time_limit_s=900)
    assert verdict.status == "correct", verdict.reason


@needs_hip
@needs_sandbox
@pytest.mark.compiler
@pytest.mark.thorough
def test_an_extension_that_does_not_compile_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "softmax.cu"
    text = (HERE / "softmax.cu").read_text()
    path.write_text(text.replace("float most = -INFINITY", "float most = nowhere"))
    verdict = judge(path, "softmax", target="gfx942", time_limit_s=900)
    assert verdict.status == "refused"
    assert "kernel.cu:" in verdict.reason
    assert "nowhere" in verdict.reason


@needs_hip
@needs_sandbox
@pytest.mark.compiler
@pytest.mark.thorough
def test_a_librarys_types_may_stand_beside_kernels(tmp_path: Path) -> None:
    path, text = tmp_path / "softmax.cu", (HERE / "softmax.cu").read_text()
    first = "#include <torch/extension.h>\n"
    assert first in text
    path.write_text(
        text.replace(first, f"{first}#include <cublas_v2.h>\nstatic cublasHandle_t handle;\n", 1)
    )
    verdict = judge(path, "softmax", target="gfx942", time_limit_s=900)
    assert verdict.status == "correct", verdict.reason


NORM = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm = nn.LayerNorm(size)
    def forward(self, x):
        return self.norm(x)
def get_inputs():
    return [torch.rand(4, 128)]
def get_init_inputs():
    return [128]
"""
OF_ONES = """
class ModelNew(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size
    def forward(self, x):
        normed = nn.functional.layer_norm(x, (self.size,))
        return elementwise_add.elementwise_add_cuda(normed, torch.zeros_like(x))
"""


@needs_hip
@needs_sandbox
@pytest.mark.compiler
@pytest.mark.thorough
def test_an_emulated_kernel_that_leaves_the_weights_out_is_told_so(tmp_path: Path) -> None:
    """A public layer norm did, which looked like an error of the emulator's."""
    problem, kernel = tmp_path / "norm.py", tmp_path / "kernel.py"
    problem.write_text(NORM)
    builds = (HERE / "inline_add.py").read_text().partition("class ModelNew")[0]
    kernel.write_text(f"import torch\n{builds}{OF_ONES}")
    verdict = judge(kernel, problem, target="gfx942", time_limit_s=900)
    assert verdict.status == "wrong"
    assert verdict.reason.startswith("weights change between calls; this kernel kept old ones")
    assert "its model has no norm.weight, norm.bias" in verdict.reason


def test_torch_alone_is_not_for_a_target(tmp_path: Path) -> None:
    path = tmp_path / "plain.py"
    path.write_text("def softmax(x, scalars):\n    return x.softmax(-1)\n")
    with pytest.raises(RatchetError, match="Triton, HIP or CUDA"):
        judge(path, "softmax", target="gfx942")
