"""`ratchet tune`: an order by the lower bound, a shortlist, and what was dropped."""

from __future__ import annotations

import importlib.util
import io
import json
import math
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
from commands import mistake
from rich.console import Console

from ratchet.amd.emulator.launch import sampling_step
from ratchet.amd.profile.tuning import (
    RankedConfig,
    TunedKernel,
    TuneResult,
    narrowed,
    python_text,
    read_grid,
    tune_report,
    write_outputs,
)
from ratchet.base.errors import KernelError
from ratchet.base.show.terminal import print_report
from ratchet.cli import main
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.trial.kernel_trial import why_no_kernels

HAS_TRITON = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed")
KERNEL = """
import torch
import triton
import triton.language as tl

@triton.autotune(
    configs=[
        triton.Config({"BLOCK": 65536}, num_warps=1),
        triton.Config({"BLOCK": 256}, num_warps=2),
        triton.Config({"BLOCK": 1000}, num_warps=2),
    ],
    key=["n"],
)
@triton.jit
def squared_relu_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = tl.maximum(tl.load(x + at, at < n, 0.0), 0.0)
    tl.store(y + at, kept * kept, at < n)

def squared_relu(x, scalars):
    x = x.contiguous()
    y = torch.empty_like(x)
    squared_relu_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
    return (y,)
"""


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "squared_relu.py").write_text(KERNEL)
    return "squared_relu.py"


@needs_triton
@pytest.mark.skipif(why_no_kernels() is not None, reason="no kernel can be tried on this machine")
def test_what_spills_or_does_not_compile_is_dropped_and_the_rest_is_ordered(
    kernel: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", kernel, "--tier", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (only,) = found["order"]
    assert only["config"] == {"BLOCK": 256, "num_warps": 2, "num_stages": 3}
    assert only["bound_s"] > 0 and only["limit"] == "memory" and only["right"] == "correct"
    assert 0 < only["emulated_workgroups"] < only["workgroups"]
    predicted = only["predicted"]
    assert predicted["device"] == found["device"].removeprefix("AMD ").removeprefix("Instinct ")
    assert 0 < predicted["low_s"] < predicted["time_s"] < predicted["high_s"]
    assert found["shortlist"] == found["order"]
    spilled, failed = (one["dropped"] for one in found["dropped"])
    assert spilled.startswith("spills ") and "power of 2" in failed
    assert json.loads(Path("ratchet-tune/aiter.json").read_text()) == {"any": only["config"]}
    assert main(["tune", kernel, "--tier", "cpu", "--config", "NAME=1"]) == 2
    line = capsys.readouterr().err
    assert "squared_relu_kernel has no such parameter: use one of BLOCK, num_warps" in line
    Path(kernel).write_text("\n".join(KERNEL.split("@triton.autotune")[0].splitlines()) + PLAIN)
    assert "no kernel of the file has @triton.autotune" in mistake(capsys, "tune", kernel)


PLAIN = "\n@triton.jit" + KERNEL.partition("@triton.jit")[2]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--target", "gfx000"], "use one of gfx90a"),
        (["--config", "BLOCK"], "write BLOCK_M=64,128"),
        (["--config", "BLOCK=1", "--config", "BLOCK=2"], "given twice"),
        (["--time-limit", "soon"], "soon"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], told: str, kernel: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told in mistake(capsys, "tune", kernel, *words)


def test_a_grid_has_the_values_of_each_name() -> None:
    assert read_grid(["BLOCK_M=64, 128", "EVEN=True", "MODE=.cg"]) == {
        "BLOCK_M": [64, 128],
        "EVEN": [True],
        "MODE": [".cg"],
    }
    with pytest.raises(KernelError, match="is not NAME=VALUE"):
        read_grid(["=1"])


@pytest.mark.parametrize("grid", [(1, 1, 1), (640, 1, 1), (32, 32, 4), (7, 11, 1)])
def test_a_sample_is_spread_over_the_grid(grid: tuple[int, int, int]) -> None:
    step = sampling_step(grid, 16)
    groups = math.prod(grid)
    assert min(groups, 16) <= -(-groups // step) <= groups
    columns = {at % grid[0] for at in range(0, groups, step)}
    assert len(columns) >= min(grid[0], 16) - 1
    assert sampling_step(grid, 0) == 1


def ranked(block: int, bound_s: float) -> RankedConfig:
    return RankedConfig(config={"BLOCK": block, "num_warps": 4, "num_stages": 2}, bound_s=bound_s)


def result(*order: RankedConfig) -> TuneResult:
    return TuneResult(
        kernel="k",
        function="k_kernel",
        target="gfx942",
        device="AMD Instinct MI300X",
        case="large",
        order=order,
        shortlist=order[:1],
        dropped=(),
    )


@needs_triton
def test_the_python_file_holds_the_shortlist_and_a_perf_model(tmp_path: Path) -> None:
    path = tmp_path / "tuned.py"
    path.write_text(python_text(result(ranked(64, 1e-6), ranked(128, 2e-6))))
    found = runpy.run_path(str(path))
    (config,) = found["CONFIGS"]
    assert config.all_kwargs()["BLOCK"] == 64
    given = {"x": object(), "n": 5, "num_ctas": 1, "num_stages": 2}
    assert found["perf_model"](BLOCK=128, num_warps=4, **given) == 2e-6
    assert found["perf_model"](BLOCK=128, num_warps=8, **given) == math.inf


def test_the_table_names_what_differs() -> None:
    other = replace(ranked(128, 2e-6), config={"BLOCK": 128, "num_warps": 4})
    said = io.StringIO()
    report = tune_report(result(ranked(64, 1e-6), other))
    print_report(report, Console(file=said, width=120, markup=False))
    text = " ".join(said.getvalue().split())
    assert "BLOCK=64 num_stages=2" in text and "All have num_warps=4." in text
    assert "ordered by the lower bound on its time; nothing was timed" in text


def test_without_a_shortlist_nothing_is_written(tmp_path: Path) -> None:
    assert write_outputs(result(), tmp_path / "out").paths == {}
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("tuner", "place", "told"),
    [
        ("", 1, "k_kernel.configs = k_kernel.configs[1:1 + 1]"),
        (".fn", None, "k_kernel.fn.configs = [_ratchet_triton.Config({'BLOCK': 64}"),
        (None, None, "k_kernel = _RatchetChosen(k_kernel, {'BLOCK': 64, 'num_warps': 4"),
    ],
)
def test_a_kernel_is_narrowed_to_one_configuration(
    tuner: str | None, place: int | None, told: str
) -> None:
    tuned = TunedKernel(name="k_kernel", tuner=tuner, arguments=[], constants=[], configs=[])
    given = Kernel(name="k", language="triton", source="x = 1", entry="k")
    made = narrowed(given, tuned, ranked(64, 1.0).config, place)
    assert told in made.source
    compile(made.source, "kernel.py", "exec")
