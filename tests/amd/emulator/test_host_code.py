"""Host code from any C++ compiler: what it asks of HIP reaches the emulator, without clang."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from small_assembly import text_of
from torch.overrides import TorchFunctionMode

from ratchet.amd.compile.hip_compiler import RUNTIME_SOURCES
from ratchet.amd.compile.process import hip_interface
from ratchet.amd.emulator import loading
from ratchet.amd.emulator.hip_build import compiled_machine
from ratchet.amd.emulator.hip_loading import HipProgram
from ratchet.base.errors import KernelError
from ratchet.judge.workers.candidate.results import ResultForm

needs_gcc = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
FLAGS = ("-shared", "-fPIC", "-O1", "-w", "-fpermissive")
HOST = r"""
#include <stddef.h>
#include "ratchet_abi.h"
struct dim3 { unsigned x, y, z; };
extern "C" {
void** __hipRegisterFatBinary(const void*);
void __hipRegisterFunction(void**, const void*, char*, const char*, unsigned, void*, void*, void*,
                           void*, int*);
int hipLaunchKernel(const void*, dim3, dim3, void**, size_t, void*);
int hipMalloc(void**, size_t);
int hipFree(void*);
int ratchet_hip_copy(void*, const void*, uint64_t, int);
int ratchet_hip_fact(const char*);
}
static char kernel;
__attribute__((constructor)) static void known() {
  __hipRegisterFunction(__hipRegisterFatBinary(0), &kernel, 0, "small", 0, 0, 0, 0, 0, 0);
}
RATCHET_ENTRY sums(const ratchet_tensor* t, int64_t, const double* scalars, int64_t) {
  const void* in = t[0].data;
  void *out = 0, *arguments[] = {&in, &out};
  if (ratchet_hip_fact("compute_units") != 304 || hipMalloc(&out, 512)) return 2;
  const unsigned threads = scalars[0];
  hipLaunchKernel(&kernel, {1, 1, 1}, {threads, 1, 1}, arguments, 0, 0);
  ratchet_hip_copy(t[1].data, out, 512, 3);
  return hipFree(out);
}
"""
DESCRIBED = "\t.amdhsa_kernel small\n\t.end_amdhsa_kernel\n"
FORM = ResultForm(shape=(128,), dtype=torch.float32, device=torch.device("cpu"))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> HipProgram:
    folder = tmp_path_factory.mktemp("host")
    (folder / "ratchet_abi.h").write_text(hip_interface())
    source, made = folder / "host.cpp", folder / "host.so"
    source.write_text(HOST)
    command = ["g++", *FLAGS, "-o", str(made), str(source), str(RUNTIME_SOURCES[0])]
    subprocess.run(command, check=True)
    text = text_of("v_add_f32_e32 v4, v1, v2\nv_mul_f32_e32 v5, v2, v3") + DESCRIBED
    device = {"name": "AMD Instinct MI300X", "units": 304}
    host = Path(made).read_bytes()
    return HipProgram(text, host, "sums", compiled_machine("gfx942"), device=device)


@needs_gcc
@pytest.mark.compiler
def test_a_launch_reads_and_writes_the_gpus_memory(program: HipProgram) -> None:
    x = torch.arange(192.0)
    (found,) = program(x, (64.0,), [FORM], [])
    a, b, c = x.view(3, 64)
    assert torch.equal(found, torch.cat([a + b, b * c]))


@needs_gcc
@pytest.mark.compiler
def test_the_first_error_is_told_and_the_next_call_is_well(program: HipProgram) -> None:
    x = torch.ones(192)
    with pytest.raises(KernelError, match="2048 x 1 x 1 threads cannot be launched"):
        program(x, (2048.0,), [FORM], [])
    (found,) = program(x, (64.0,), [FORM], [])
    assert found.tolist() == [2.0] * 64 + [1.0] * 64


def test_new_memory_costs_one_turn_of_the_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn costs as much as a small operation."""
    called: list[object] = []

    class Counting(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> object:
            called.append(func)
            return func(*args, **(kwargs or {}))

    for place, name in loading.UNWRITTEN:
        owner = getattr(torch, place) if place else torch
        monkeypatch.setattr(owner, name, getattr(owner, name))  # it is put back
    loading.poison_new_memory()
    with Counting():
        made = torch.empty(3)
    assert len(called) == 1 and made.isnan().all()
