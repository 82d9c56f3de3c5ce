"""The generator's GEMM on each instruction set that this CPU has, AMX by emulation too."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ratchet.base.devices.probe import probe
from ratchet.judge.kernels.languages.cpp import HEADERS, find_compiler
from ratchet.write.generator.schedule import Choices
from ratchet.write.generator.source import prelude

pytestmark = pytest.mark.compiler
EVERYTHING = os.environ.get("RATCHET_TEST") == "all"
CHECK = Path(__file__).parent / "gemm_check.cpp"
TERMS = 3e-6
"""Largest error of a sum in float32, relative to the sum of its terms' sizes."""


@pytest.mark.parametrize(
    ("march", "needs", "macros"),
    [
        ("native", "", ()),
        pytest.param("x86-64", "avx", (), marks=pytest.mark.thorough),
        pytest.param("haswell", "avx2", (), marks=pytest.mark.thorough),
        # test_linear and test_attention run AMX's emulation too.
        pytest.param("haswell", "avx2", ("-DRATCHET_AMX_EMULATE",), marks=pytest.mark.thorough),
        pytest.param("skylake-avx512", "avx512vl", (), marks=pytest.mark.thorough),
        pytest.param("cooperlake", "avx512_bf16", (), marks=pytest.mark.thorough),
    ],
)
def test_products_are_right_on_each_instruction_set(
    tmp_path: Path, march: str, needs: str, macros: tuple[str, ...]
) -> None:
    if needs and needs not in probe("cpu").isa:
        pytest.skip(f"this CPU has no {needs}")
    blocks = "\n".join(Choices.read((("columns", "256"), ("depth", "192"))).blocks)
    source, program = tmp_path / "check.cpp", tmp_path / "check"
    text = "\n".join([blocks, prelude(frozenset({"gemm"})), CHECK.read_text(encoding="utf-8")])
    source.write_text(text, encoding="utf-8")
    flags = ("-O1", f"-march={march}", "-fopenmp", "-std=c++17", f"-I{HEADERS}", *macros)
    subprocess.run([find_compiler(), *flags, source, "-o", program], check=True, timeout=120)
    few = () if EVERYTHING or march == "native" else ("few",)
    told = subprocess.run(
        [program, *few],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_WAIT_POLICY": "passive"},  # the cores are shared with other tests
    )
    cases, worst = told.stdout.split()
    assert int(cases) == (504 if few else 576)
    assert float(worst) < TERMS
