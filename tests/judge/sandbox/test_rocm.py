"""Compilers and ROCm outside the system's folders: found by the judge, and shown to a sandbox."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ratchet.amd.compile import hip_compiler
from ratchet.amd.compile.process import PROFILE_WORKER
from ratchet.amd.emulator import hip_build
from ratchet.base.errors import KernelError
from ratchet.base.process import Clock
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.sandbox import bubblewrap, rocm, view
from ratchet.judge.sandbox.isolation import make_sandbox
from ratchet.judge.sandbox.view import TORCH_WORKER
from ratchet.judge.trial.kernel_trial import why_no_kernels

HERE = {name: os.environ.get(name) for name in (rocm.CLANG, rocm.ROCM, rocm.BITCODE)}
CLANG, DEVICE_LIBRARIES = rocm.find_tool("clang"), rocm.bitcode_folder()


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without ROCm, and a PATH without programs.

    What this process remembers of the machine is asked for first, with the PATH that it has.
    """
    bubblewrap.program(), view.fixed_layout(), view.closed_to_others()
    for name in HERE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(rocm, "OPT", tmp_path / "opt")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))


def program(path: Path, text: str = "#!/bin/sh\n") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def linked_rocm(folder: Path, real: Path) -> Path:
    """Make a ROCm that holds links alone, into a folder elsewhere."""
    clang = program(real / "llvm-real" / "bin" / "clang-19")
    (real / "bitcode").mkdir()
    (real / "bitcode" / "ocml.bc").touch()
    (real / "wmma" / "rocwmma").mkdir(parents=True)
    for place, target in (
        ("llvm/bin/clang", Path(clang)),
        ("amdgcn/bitcode", real / "bitcode"),
        ("include/rocwmma", real / "wmma" / "rocwmma"),
    ):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).symlink_to(target)
    return folder


def test_a_rocm_of_links_is_found_and_shown_with_what_they_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, real = linked_rocm(tmp_path / "rocm-6", tmp_path / "real"), tmp_path / "real"
    monkeypatch.setenv("ROCM_PATH", str(own))
    assert rocm.find_tool("clang") == str(own / "llvm/bin/clang")
    assert rocm.bitcode_folder() == own / "amdgcn/bitcode"
    assert rocm.include_folders() == [own / "include"]
    shown = {Path(one) for one in rocm.folders_to_show()}
    assert not [one for one in shown if own in one.parents]
    assert {own, real / "llvm-real", real / "bitcode", real / "wmma" / "rocwmma"} <= shown
    assert tmp_path not in shown and real not in shown


@pytest.mark.parametrize("inside", [False, True])
def test_a_sandbox_finds_what_the_judge_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    """By conda's PATH, with device libraries beside its clang; then by what it is told."""
    conda = tmp_path / "conda"
    clang, mca = (program(conda / "bin" / one) for one in ("clang-20", "llvm-mca"))
    (conda / "lib/clang/20/lib/amdgcn/bitcode").mkdir(parents=True)
    (conda / "lib/clang/20/lib/amdgcn/bitcode/ocml.bc").touch()
    monkeypatch.setenv("PATH", str(conda / "bin"))
    if inside:
        told = rocm.told({"PATH": "/usr/local/bin:/usr/bin:/bin"})
        assert told["PATH"] == f"{conda / 'bin'}:/usr/local/bin:/usr/bin:/bin"
        for name, value in told.items():
            monkeypatch.setenv(name, value)
    assert rocm.find_tool("clang") == clang
    assert mca in rocm.installed("llvm-mca")
    assert rocm.bitcode_folder() == conda / "lib/clang/20/lib/amdgcn/bitcode"
    assert str(conda) in rocm.folders_to_show()


def test_the_newest_rocm_comes_first_and_variables_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = (tmp_path / "opt" / one for one in ("rocm-6.4.1", "rocm-6.10.0"))
    for one in (old, new):
        program(one / "llvm/bin/clang")
    assert rocm.find_tool("clang") == str(new / "llvm/bin/clang")
    monkeypatch.setenv("ROCM_PATH", str(old))
    assert rocm.find_tool("clang") == str(old / "llvm/bin/clang")
    asked = program(tmp_path / "own" / "clang")
    monkeypatch.setenv("RATCHET_CLANG", asked)
    assert rocm.find_tool("clang") == asked
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    (libraries / "ocml.bc").touch()
    monkeypatch.setenv("HIP_DEVICE_LIB_PATH", str(libraries))
    assert rocm.bitcode_folder() == libraries


def test_a_clang_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KernelError, match="install it or set RATCHET_CLANG"):
        hip_compiler.find_hip()
    monkeypatch.setenv("RATCHET_CLANG", "/nowhere/clang")
    with pytest.raises(KernelError, match="RATCHET_CLANG=/nowhere/clang is no program"):
        hip_compiler.find_hip()


def test_a_home_is_not_shown_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    (home / ".secret").mkdir(parents=True)
    program(home / "bin" / "clang")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", str(home / "bin"))
    assert rocm.folders_to_show() == [str(home / "bin")]


@pytest.mark.skipif(why_no_kernels() is not None, reason="no sandbox works here")
@pytest.mark.parametrize("module", [PROFILE_WORKER, TORCH_WORKER])
def test_only_the_worker_that_compiles_sees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    clang = program(tmp_path / "llvm" / "bin" / "clang")
    monkeypatch.setenv("RATCHET_CLANG", clang)
    sandbox = make_sandbox(
        module,
        threads=1,
        memory_bytes=1 << 34,
        limit_s=9,
        cross_compiles=module == PROFILE_WORKER,
    )
    told = sandbox.environment.get("RATCHET_CLANG") == clang
    shown = str(tmp_path / "llvm") in " ".join(sandbox.program)
    assert told == shown == (module == PROFILE_WORKER)
    sandbox.clean()


SOURCE = """
#include <hip/hip_runtime.h>
#include <rocfake/half_of.hpp>
#include "ratchet_abi.h"
__global__ void halve(const float* x, float* y) { y[threadIdx.x] = half_of(x[threadIdx.x]); }
RATCHET_ENTRY halve_all(const ratchet_tensor* t, int64_t, const double*, int64_t) {
  halve<<<1, 64>>>((const float*)t[0].data, (float*)t[1].data);
  return RATCHET_DONE;
}
"""
WRAPPER = '#!/bin/sh\nexec {clang} -DOF_THE_FAKE_ROCM "$@"\n'
HEADER = """
#ifndef OF_THE_FAKE_ROCM
#error another clang
#endif
template <typename T> __device__ T half_of(T x) { return x / 2; }
"""


@pytest.mark.skipif(
    CLANG is None or DEVICE_LIBRARIES is None or hip_compiler.hip_headers() is None,
    reason="clang, HIP's headers or rocm-device-libs are not installed",
)
@pytest.mark.skipif(why_no_kernels() is not None, reason="no sandbox works here")
@pytest.mark.compiler
@pytest.mark.thorough
def test_a_rocm_elsewhere_compiles_in_the_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clang, its device libraries and a header of one of its libraries, all behind links."""
    assert DEVICE_LIBRARIES is not None
    fake, real = tmp_path / "rocm", tmp_path / "real"
    program(real / "bin" / "clang", WRAPPER.format(clang=CLANG))
    shutil.copytree(DEVICE_LIBRARIES, real / "bitcode")
    (real / "include" / "rocfake").mkdir(parents=True)
    (real / "include" / "rocfake" / "half_of.hpp").write_text(HEADER)
    for place, target in (
        ("llvm/bin/clang", "bin/clang"),
        ("amdgcn/bitcode", "bitcode"),
        ("include/rocfake", "include/rocfake"),
    ):
        (fake / place).parent.mkdir(parents=True, exist_ok=True)
        (fake / place).symlink_to(real / target)
    monkeypatch.setenv("ROCM_PATH", str(fake))
    monkeypatch.setenv("RATCHET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(hip_build, "precompiled", lambda *_, **__: None)
    kernel = Kernel(name="halve", language="hip", source=SOURCE, entry="halve_all")
    assembly, host = hip_build.build_hip(kernel, "gfx942", Clock.of(600.0))
    assert "v_mul_f32" in assembly and host
