"""The parts of gpu_check.sh that judge, from end to end on a GPU of which only the memory is there.

How fast anything is decides nothing here: each part must print its lines, and leave its figures.
"""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_gpu import FakeDriver, build_driver, open_to_all

from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.trial import plan, sample
from ratchet.judge.trial.compiling import Toolchain
from ratchet.judge.trial.kernel_trial import KernelJudge

pytestmark = pytest.mark.compiler
BENCHMARKS = Path(__file__).parents[3] / "benchmarks" / "gpu"
INTERPRETED = """
import os
os.environ["TRITON_INTERPRET"] = "1"
import triton
from ratchet.amd.architectures import ARCHITECTURES
from ratchet.amd.compile import triton_source
triton_source.repair_interpreter()
pretended = ARCHITECTURES[triton_source.PRETENDED]
triton_source.InterpreterDriver(pretended, units=1).install()
"""


@pytest.fixture
def fake(
    tmp_path: Path, few_rounds: None, judge: KernelJudge, monkeypatch: pytest.MonkeyPatch
) -> FakeDriver:
    """Let every judge find the fake GPU by the name of `cuda`."""
    found = build_driver("cuda", open_to_all(tmp_path))
    accelerator = replace(found.accelerator, batch_bytes=1 << 30)
    monkeypatch.setattr(KernelJudge, "_find_gpu", lambda *_: accelerator)
    monkeypatch.setattr(plan, "GPU_MAX_CALLS", 4)
    monkeypatch.setattr(sample, "ALONE_BATCHES", 2)
    monkeypatch.syspath_prepend(BENCHMARKS)  # also for the reference's process
    return found


def rows_of(
    name: str, words: list[str], capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch
) -> list[dict[str, Any]]:
    """Run a part; return its lines."""
    patch.setattr(sys, "argv", [f"{name}.py", *words])
    importlib.import_module(name).main()
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def failed_figures(part: str, rows: list[dict[str, Any]]) -> set[str]:
    """Return the figures that a part's rows do not tell."""
    figures = importlib.import_module("gpu_figures")
    lines = [figures.line_of(one, rows) for one in figures.FIGURES if one.part == part]
    return {one["figure"] for one in lines if "failed" in one}


def test_the_clock(
    fake: FakeDriver, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = importlib.import_module("gpu_clock")
    monkeypatch.setattr(clock, "SIZES", dict.fromkeys(clock.SIZES, 64))
    *rows, last = rows_of("gpu_clock", ["--verdicts", "1"], capsys, monkeypatch)
    assert [(one["problem"], one["kernel"]) for one in rows] == [
        ("activation", "same"),
        *((chain, kernel) for chain in ("short chain", "chain") for kernel in ("same", "shorter")),
    ]
    for row in rows:
        assert row["status"] in ("proven", "correct", "unmeasured"), row
        assert row["ratio"] is None or row["calls"] >= 1
        assert "libcuda" not in row["reason"]
    assert {*last["all"]} == {f"{one['problem']}, {one['kernel']}" for one in rows}
    if all(row["ratio"] is not None for row in rows):  # noise may hide a time
        assert failed_figures("clock", rows) <= {"a kernel 1.15x as fast: seconds until proven"}


def test_the_screening(
    fake: FakeDriver, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_LIBCUDA_PATH", str(fake.path.parent))
    screening = importlib.import_module("gpu_screening")
    write = screening.kernels_of

    def interpreted(*given: Any) -> list[Kernel]:
        return [
            replace(one, source=one.source.replace("import triton\n", INTERPRETED, 1))
            for one in write(*given)
        ]

    monkeypatch.setattr(screening, "kernels_of", interpreted)
    monkeypatch.setattr(Toolchain, "kernels", lambda *_: None)  # Triton is imported after that
    words = ["--kernels", "3", "--tier", "ci", "--time-limit", "240"]
    rows = rows_of("gpu_screening", words, capsys, monkeypatch)
    assert rows[-1]["screened"] == 3 and rows[-1]["right"] == 3, rows[-1]["others"]
    assert not failed_figures("screening", rows)
