"""Generated code rounds to e4m3 as the torch that runs does, which differs beyond 464."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch

from ratchet.judge.kernels.languages.cpp import find_compiler
from ratchet.write.generator import source
from ratchet.write.generator.triton import source as triton_source

EDGES = [0.0, 2.0**-10, 0.3, 447.0, 448.0, 463.9, 464.0, 464.1, 479.9, 480.0, 1e4, 3e38]
VALUES = [*EDGES, *(-one for one in EDGES), float("inf"), float("-inf"), float("nan")]


def codes_by_cpp(folder: Path) -> list[int]:
    """Return the codes of VALUES by the C++ that a source gets."""
    text = source.prelude(frozenset({"to_e4m3"}))
    code = folder / "codes.cpp"
    code.write_text(
        f"{text}\n"
        'extern "C" void codes(const float* x, unsigned char* y, int n)'
        " { for (int i = 0; i < n; i++) y[i] = r_to_e4m3(x[i]); }\n"
    )
    built = folder / "codes.so"
    command = [str(find_compiler()), "-std=c++17", "-O2", "-march=native", "-fopenmp"]
    subprocess.run([*command, "-shared", "-fPIC", str(code), "-o", str(built)], check=True)
    given, found = (ctypes.c_float * len(VALUES))(*VALUES), (ctypes.c_ubyte * len(VALUES))()
    ctypes.CDLL(str(built)).codes(given, found, len(VALUES))
    return list(found)


@pytest.mark.compiler
def test_compiled_codes_are_those_of_the_torch_that_runs(tmp_path: Path) -> None:
    expected = torch.tensor(VALUES).to(torch.float8_e4m3fn).view(torch.uint8).tolist()
    assert codes_by_cpp(tmp_path) == expected


@pytest.mark.compiler
@pytest.mark.parametrize("beyond", [0x7E, 0x7F])
def test_they_follow_a_torch_that_saturates_and_one_that_does_not(
    beyond: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_e4m3_beyond", lambda: beyond)
    found = dict(zip(VALUES, codes_by_cpp(tmp_path), strict=True))
    assert [found[one] for one in (464.0, 464.1, 1e4, float("inf"))] == [0x7E, *3 * [beyond]]
    assert found[-1e4] == 0x80 | beyond
    nan = codes_by_cpp(tmp_path)[-1]
    assert nan & 0x7F == 0x7F


def test_triton_gets_the_same_code(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    for beyond in (0x7E, 0x7F):
        monkeypatch.setattr(source, "_e4m3_beyond", lambda code=beyond: code)
        text = triton_source.prelude(frozenset({"to_e4m3"}))
        assert f"rest > 0x43E80000, {beyond:#x}" in text and "E4M3_BEYOND" not in text
