"""Programs that the judge compiles for the emulator: what is kept, and what is refused."""

from __future__ import annotations

import contextlib
import functools
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ratchet.amd.compile.hip_compiler import (
    RUNTIME_SOURCES,
    HipSources,
    compile_sources,
    find_hip,
    runtime_objects,
)
from ratchet.amd.emulator import hip_build
from ratchet.base.errors import KernelError
from ratchet.base.process import Clock
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.sandbox.rocm import find_tool

CLOCK = Clock.of(600.0)
HTOD = re.compile(r"(hipMemcpyHtoD\(hipDeviceptr_t \w+, )const void\*")
ORDER = {"name": "e", "sources": ["k.hip"], "files": {"k.hip": "int one;\n"}}
needs_whole_hip = pytest.mark.skipif(
    find_tool("clang") is None or not find_hip().whole,
    reason="clang, HIP's headers or rocm-device-libs are not installed",
)
needs_clang = pytest.mark.skipif(find_tool("clang") is None, reason="clang is not installed")


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[HipSources]:
    """An empty cache, and what would be compiled into it."""
    asked: list[HipSources] = []

    def compile_one(sources: HipSources, *_: object) -> tuple[list[str], bytes]:
        asked.append(sources)
        return [f"; {len(asked)}"], b"library"

    monkeypatch.setenv("RATCHET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hip_build, "_compiled", compile_one)
    monkeypatch.setattr(hip_build, "precompiled", lambda *_, **__: None)
    return asked


@needs_clang
def test_a_program_is_compiled_once_and_a_changed_one_again(compiled: list[HipSources]) -> None:
    def built(source: str, **changes: object) -> str:
        kernel = Kernel(name="k", language="hip", source=source, entry="k")
        return hip_build.build_hip(kernel, str(changes.get("target", "gfx942")), CLOCK)[0]

    first = built("int a;")
    assert built("int a;") == first and len(compiled) == 1
    assert built("int b;") != first
    assert built("int a;", target="gfx1100") != first
    assert len(compiled) == 3


@needs_whole_hip
@pytest.mark.compiler
@pytest.mark.parametrize("major", [5, 6])
def test_our_runtime_is_compiled_with_headers_of_an_older_hip(tmp_path: Path, major: int) -> None:
    tools = find_hip()
    assert tools.headers is not None
    headers = tmp_path / "include"
    shutil.copytree(tools.headers / "hip", headers / "hip")
    api, versions = headers / "hip" / "hip_runtime_api.h", headers / "hip" / "hip_version.h"
    text, told = HTOD.subn(r"\1void*", api.read_text())
    assert told == 1
    if major < 6:  # without the names of a revision, and what it brought
        text = text.replace("hipGetDevicePropertiesR0600", "hipGetDeviceProperties")
        text = re.sub(r"(sharedMemPerBlockOptin|regsPerMultiprocessor);", r"later_\1;", text)
    api.write_text(text)
    versions.write_text(
        re.sub(r"(define HIP_VERSION_MAJOR) \d+", rf"\1 {major}", versions.read_text())
    )
    made = runtime_objects(replace(tools, headers=headers), tmp_path)
    assert [one.stem for one in made] == [one.stem for one in RUNTIME_SOURCES]


SQUARES = """
#include <hip/hip_runtime.h>
#include "ratchet_abi.h"

__global__ void square(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x] * expf(1.f); }

RATCHET_ENTRY squares(const ratchet_tensor* t, int64_t, const double*, int64_t) {
  square<<<1, 64>>>((const float*)t[0].data, (float*)t[1].data);
  return RATCHET_DONE;
}
"""


@needs_whole_hip
@pytest.mark.thorough
def test_precompiled_headers_change_no_instruction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RATCHET_CACHE", str(tmp_path / "cache"))
    given: list[str | None] = []

    def compile_one(sources: HipSources, *_: object) -> tuple[list[str], bytes]:
        given.append(sources.precompiled)
        made = compile_sources(sources, tmp_path / str(len(given)))
        return list(made.assemblies), made.host

    monkeypatch.setattr(hip_build, "_compiled", compile_one)
    kernel = Kernel(name="k", language="hip", source=SQUARES, entry="squares")
    found = [hip_build.build_hip(kernel, "gfx942", CLOCK)[0]]
    monkeypatch.setattr(hip_build, "precompiled", lambda *_, **__: None)
    found.append(hip_build.build_hip(kernel, "gfx942", CLOCK)[0])
    assert given[0] is not None and Path(given[0], "host.pch").exists() and given[1] is None
    code, without = (re.findall(r"^\t[sv]_\w.*?(?=\s*;|$)", one, re.MULTILINE) for one in found)
    assert code == without and len(code) > 5


@needs_clang
def test_an_order_is_compiled_once(compiled: list[HipSources]) -> None:
    build = functools.partial(hip_build.build_ordered, "gfx942", CLOCK, None)
    for options in ([], [], ["-DN=2"]):
        with contextlib.closing(build({**ORDER, "options": options})) as packed:
            assert [name for name, _, _ in packed.files] == ["0.s", hip_build.PROGRAM]
    assert len(compiled) == 2


@needs_clang
@pytest.mark.parametrize(
    ("order", "told"),
    [
        ({**ORDER, "options": ["-fplugin=/tmp/own.so"]}, "no macro and no folder"),
        ({**ORDER, "options": 3}, "nonsense"),
        ({**ORDER, "files": {"k.hip": "x" * (9 << 20)}}, "give less"),
        ("everything", "nonsense"),
    ],
)
def test_what_a_candidate_may_not_order(
    order: object, told: str, compiled: list[HipSources]
) -> None:
    with pytest.raises(KernelError, match=told):
        hip_build.build_ordered("gfx942", CLOCK, None, order)
    assert not compiled


@pytest.mark.parametrize("name", ["../out.hip", "/tmp/out.hip", "a/../../out.hip"])
def test_a_source_stays_in_its_folder(name: str, tmp_path: Path) -> None:
    sources = HipSources(target="gfx942", files={name: ""}, units=(name,))
    with pytest.raises(KernelError, match="leaves its folder"):
        compile_sources(sources, tmp_path / "in")
