"""The C interface and the cpp language: layout, cache, compilers that are missing or complain."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ratchet.base.errors import CompilerMissing, KernelError
from ratchet.judge import abi
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.languages import cpp
from ratchet.judge.kernels.library import sources

COPY = """
#include "ratchet_abi.h"
RATCHET_ENTRY report(const ratchet_tensor* t, int64_t count, const double* s, int64_t n) {
    if (n != 2) return RATCHET_DECLINED;
    int64_t* out = (int64_t*)t[count - 1].data;
    out[0] = sizeof(ratchet_tensor);
    out[1] = t[0].dtype; out[2] = t[0].ndim; out[3] = t[0].size[1]; out[4] = t[0].stride[0];
    out[5] = (int64_t)(s[0] * s[1]);
    out[6] = ratchet_is_contiguous(t);
    return RATCHET_DONE;
}
"""


@pytest.fixture
def kernel() -> Kernel:
    return Kernel(name="report", language="cpp", source=COPY, entry="report")


@pytest.mark.compiler
@pytest.mark.parametrize("header", ['"ratchet_abi.h"', "<ratchet_abi.h>"])
def test_a_source_includes_the_header_by_its_name(
    header: str, kernel: Kernel, tmp_path: Path
) -> None:
    source = "#include <cmath>\n" + COPY.replace('"ratchet_abi.h"', header)
    path = cpp.compile_kernel(replace(kernel, source=source), cache=tmp_path)
    assert cpp.load(path, "report")


@pytest.mark.compiler
def test_header_and_ctypes_agree(kernel: Kernel, tmp_path: Path) -> None:
    entry = cpp.load(cpp.compile_kernel(kernel, cache=tmp_path), "report")
    out = (ctypes.c_int64 * 7)()
    words = abi.words(0, abi.DTYPE_CODES["bfloat16"], (3, 5), (7, 1))
    words += abi.words(ctypes.addressof(out), abi.DTYPE_CODES["int64"], (7,), (1,))
    assert entry(abi.pack_tensors(words), 2, abi.pack_scalars((3.0, 4.0)), 2) == 0
    assert list(out) == [ctypes.sizeof(abi.RatchetTensor), 1, 2, 5, 7, 12, 0]
    assert entry(abi.pack_tensors(words), 2, abi.pack_scalars((3.0,)), 1) == 1


@pytest.mark.compiler
def test_the_header_has_every_dtype() -> None:
    names = {"F32": "float32", "BF16": "bfloat16", "F64": "float64", "I64": "int64"}
    names |= {"I32": "int32", "BOOL": "bool", "F16": "float16", "U8": "uint8", "I8": "int8"}
    names |= {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
    listed = sources.self_contained("ratchet_abi.h").partition("enum {")[2].partition("}")[0]
    codes = re.findall(r"RATCHET_(\w+) = (\d+)", listed)
    assert {names[name]: int(code) for name, code in codes} == abi.DTYPE_CODES
    sizes = {name: getattr(torch, name).itemsize for name in abi.DTYPE_CODES}
    assert sizes == abi.ITEM_BYTES


def test_the_cache_is_used_and_mended(kernel: Kernel, tmp_path: Path) -> None:
    path = cpp.compile_kernel(kernel, cache=tmp_path)
    first = path.stat().st_mtime_ns
    assert cpp.compile_kernel(kernel, cache=tmp_path) == path
    assert path.stat().st_mtime_ns == first
    for damage in (b"", b"not a library", path.read_bytes()[:-1]):
        path.unlink()  # a new file: a library that is loaded must not change under its process
        path.write_bytes(damage)
        cpp.load(cpp.compile_kernel(kernel, cache=tmp_path), "report")
    path.with_suffix(".sha256").unlink()
    cpp.load(cpp.compile_kernel(kernel, cache=tmp_path), "report")
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".sha256", ".so"]


@pytest.mark.compiler
def test_another_schedule_is_another_library(kernel: Kernel, tmp_path: Path) -> None:
    one = replace(kernel, schedule=(("isa", "portable"),))
    other = replace(kernel, schedule=(("isa", "portable"), ("tile", "32")))
    assert len({kernel.hash, one.hash, other.hash}) == 3
    paths = {cpp.compile_kernel(k, cache=tmp_path) for k in (kernel, one, other)}
    assert len(paths) == 3
    assert cpp.macros(other) == ("-DRATCHET_ISA_PORTABLE", "-DRATCHET_TILE=32")


def test_a_schedule_cannot_smuggle_options(kernel: Kernel) -> None:
    with pytest.raises(KernelError, match="cannot be a macro"):
        cpp.macros(replace(kernel, schedule=(("tile", "1 -fplugin=x.so"),)))


@pytest.mark.compiler
def test_a_source_that_does_not_compile_says_where(kernel: Kernel, tmp_path: Path) -> None:
    broken = replace(kernel, source=kernel.source + "\nint x = nonsense;\n")
    with pytest.raises(KernelError, match=r"line .*nonsense") as raised:
        cpp.compile_kernel(broken, cache=tmp_path)
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.compiler
def test_an_entry_that_is_not_there_is_named(kernel: Kernel, tmp_path: Path) -> None:
    path = cpp.compile_kernel(kernel, cache=tmp_path)
    with pytest.raises(KernelError, match="no entry 'other'"):
        cpp.load(path, "other")


def test_no_compiler_is_one_line_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable in ("RATCHET_CXX", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CompilerMissing, match=r"install one.*RATCHET_CXX"):
        cpp.find_compiler()
    monkeypatch.setenv("RATCHET_CXX", "no-such-compiler")
    with pytest.raises(CompilerMissing, match="RATCHET_CXX=no-such-compiler"):
        cpp.find_compiler()


def test_other_languages_are_not_compiled_here(kernel: Kernel) -> None:
    with pytest.raises(KernelError, match="written in triton"):
        cpp.compile_kernel(replace(kernel, language="triton"))
    with pytest.raises(KernelError, match="'fortran'"):
        Kernel(name="x", language="fortran", source="", entry="x")  # type: ignore[arg-type]


def test_a_kernel_survives_json(kernel: Kernel) -> None:
    again = Kernel.from_json(replace(kernel, schedule=(("isa", "amx"),)).as_json())
    assert again.hash == replace(kernel, schedule=(("isa", "amx"),)).hash
    with pytest.raises(KernelError, match="not a kernel's JSON"):
        Kernel.from_json({"name": "x"})


def test_library_sources_hold_all_of_their_headers() -> None:
    text = sources.self_contained("gated_activation.cpp")
    assert '#include "' not in text
    assert text.count("static inline vf vexp(") == 1
    with pytest.raises(KernelError, match="target 'mmx'"):
        sources.language_for("mmx")
