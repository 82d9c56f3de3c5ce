"""The notes that ship say what the catalogue, the compiler's limits and arithmetic say."""

from __future__ import annotations

import re
from importlib import resources

import numpy as np
import pytest

from ratchet.amd.architectures import ARCHITECTURES, occupancy
from ratchet.base.devices import matrix

NOTES = resources.files("ratchet.write.knowledge").joinpath("notes")
AMD = NOTES.joinpath("amd.md").read_text("utf-8")
X86 = NOTES.joinpath("x86.md").read_text("utf-8")


def test_every_section_names_its_source() -> None:
    for text in (AMD, X86, NOTES.joinpath("judge.md").read_text("utf-8")):
        parts = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
        assert parts
        for part in parts if text in (AMD, X86) else parts[-1:]:
            assert re.search(r"^Sources?: \S", part, re.MULTILINE), part[:40]
        assert max(map(len, text.splitlines())) <= 130


def test_the_occupancy_steps_are_the_compilers() -> None:
    registers, waves = (
        [int(one) for one in re.findall(r"\d+", line)]
        for line in re.findall(r"^\| (?:VGPRs per lane|waves per SIMD).*$", AMD, re.MULTILINE)
    )
    for most, wanted in zip(registers, waves, strict=True):
        for gfx in ("gfx90a", "gfx942", "gfx950"):
            target = ARCHITECTURES[gfx]
            at = occupancy(target, vgprs=most, lds_bytes=0, workgroup_waves=4)
            assert at.waves_per_simd == wanted
            beyond = occupancy(target, vgprs=most + 1, lds_bytes=0, workgroup_waves=4)
            assert beyond.waves_per_simd < wanted


def test_the_occupancy_of_rdna_too() -> None:
    [line] = re.findall(r"^96 gives.*$", AMD, re.MULTILINE)
    for most, wanted in re.findall(r"(\d+) gives (\d+)", line):
        found = occupancy(ARCHITECTURES["gfx1100"], vgprs=int(most), lds_bytes=0, workgroup_waves=4)
        assert found.waves_per_simd == int(wanted)


@pytest.mark.parametrize(
    ("gfx", "shape", "cycles"),
    [
        *(("gfx90a", (32, 32, 8), 64), ("gfx90a", (16, 16, 16), 32)),
        *(("gfx942", (32, 32, 8), 32), ("gfx942", (16, 16, 16), 16)),
        *(("gfx950", (32, 32, 16), 32), ("gfx950", (16, 16, 32), 16)),
        *(("gfx950", (32, 32, 8), 32), ("gfx950", (16, 16, 16), 16)),
        *(("gfx1100", (16, 16, 16), 32), ("gfx1201", (16, 16, 16), 16)),
    ],
)
def test_the_cycles_are_the_tables(gfx: str, shape: tuple[int, int, int], cycles: int) -> None:
    found = {
        one.cycles
        for one in matrix.load()
        if (one.gfx, one.shape, one.in_type, one.sparse) == (gfx, shape, "bf16", False)
        and one.out_type == "fp32"
        and "_1k" in one.name + "_1k" * (gfx != "gfx90a")
    }
    assert found == {cycles}
    m, n, k = shape
    assert f"{m}x{n}x{k}" in AMD


def _fast_exp(x: np.ndarray) -> np.ndarray:
    """The note's function, with the numbers of its text, in float32."""
    code = X86[X86.index("static inline float fast_exp") :]
    high, low = (np.float32(one) for one in re.findall(r"n \* ([\d.e-]+)f", code))
    found = re.findall(r"float p = (\S+)f;|p = p \* r \+ (\S+)f;", code)
    start, *rest = (np.float32(first or then) for first, then in found)
    assert len(rest) == 5
    n = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    r = (x - n * high) + n * low
    p = np.full_like(x, start)
    for one in rest:
        p = p * r + one
    p = p * r * r + r + np.float32(1)
    scale = ((n.astype(np.int32) + 127) << 23).view(np.float32)
    return p * scale


def test_the_exponential_of_the_note_errs_by_two_ulp() -> None:
    x = np.linspace(-87.3, 88.3, 2_000_001).astype(np.float32)
    wanted = np.exp(x.astype(np.float64))
    error = np.abs(_fast_exp(x).astype(np.float64) - wanted) / np.spacing(wanted.astype(np.float32))
    assert error.max() <= 2.0
