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
    TunedSize,
    TuneResult,
    aiter_table,
    at_rows,
    narrowed,
    python_text,
    read_grid,
    read_rows,
    tune_report,
    vllm_table,
    write_outputs,
)
from ratchet.base.errors import KernelError
from ratchet.base.show.terminal import print_report
from ratchet.cli import main
from ratchet.judge.api import as_problem
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
    (size,) = found["sizes"]
    (only,) = size["order"]
    assert only["config"] == {"BLOCK": 256, "num_warps": 2, "num_stages": 3}
    assert only["bound_s"] > 0 and only["limit"] == "memory" and only["right"] == "correct"
    assert 0 < only["emulated_workgroups"] < only["workgroups"]
    predicted = only["predicted"]
    assert predicted["device"] == found["device"].removeprefix("AMD ").removeprefix("Instinct ")
    assert 0 < predicted["low_s"] < predicted["time_s"] < predicted["high_s"]
    assert size["shortlist"] == size["order"] and size["rows"] is None
    spilled, failed = (one["dropped"] for one in size["dropped"])
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


def size(*order: RankedConfig, rows: int | None = None) -> TunedSize:
    return TunedSize(rows=rows, order=order, shortlist=order[:1], dropped=())


def result(*sizes: TunedSize) -> TuneResult:
    return TuneResult(
        kernel="k",
        function="k_kernel",
        target="gfx942",
        device="AMD Instinct MI300X",
        case="large",
        sizes=sizes,
    )


@needs_triton
def test_the_python_file_holds_the_shortlist_and_a_perf_model(tmp_path: Path) -> None:
    path = tmp_path / "tuned.py"
    path.write_text(python_text(result(size(ranked(64, 1e-6), ranked(128, 2e-6)))))
    found = runpy.run_path(str(path))
    (config,) = found["CONFIGS"]
    assert config.all_kwargs()["BLOCK"] == 64
    given = {"x": object(), "n": 5, "num_ctas": 1, "num_stages": 2}
    assert found["perf_model"](BLOCK=128, num_warps=4, **given) == 2e-6
    assert found["perf_model"](BLOCK=128, num_warps=8, **given) == math.inf


def test_the_table_names_what_differs() -> None:
    other = replace(ranked(128, 2e-6), config={"BLOCK": 128, "num_warps": 4})
    said = io.StringIO()
    report = tune_report(result(size(ranked(64, 1e-6), other)))
    print_report(report, Console(file=said, width=120, markup=False))
    text = " ".join(said.getvalue().split())
    assert "BLOCK=64 num_stages=2" in text and "All have num_warps=4." in text
    assert "ordered by the lower bound on its time; nothing was timed" in text


def test_without_a_shortlist_nothing_is_written(tmp_path: Path) -> None:
    assert write_outputs(result(size()), tmp_path / "out").paths == {}
    assert not (tmp_path / "out").exists()


def test_the_libraries_tables_have_a_key_for_each_number_of_rows() -> None:
    sizes = [size(ranked(one, 1e-6), rows=one) for one in (1, 16, 100, 9000)]
    found = result(*sizes)
    assert [found["BLOCK"] for found in vllm_table(found).values()] == [1, 16, 100, 9000]
    assert list(vllm_table(found)) == ["1", "16", "100", "9000"]
    blocks = {key: one["BLOCK"] for key, one in aiter_table(found).items()}
    assert blocks == {"M_LEQ_4": 1, "M_LEQ_16": 16, "M_LEQ_128": 100, "any": 9000}
    assert aiter_table(result(size(ranked(64, 1.0)))) == {"any": ranked(64, 1.0).config}
    assert vllm_table(result(size(ranked(64, 1.0)))) == {"1": ranked(64, 1.0).config}


PRODUCT = """
from ratchet import Case, Problem, TensorSpec

def reference(x, w, bias, scalars):
    return (x @ w + bias,)

def spec(*shape):
    return TensorSpec(shape=shape, dtype="float32")

PROBLEM = Problem(name="product", reference="reference", cases=(
    Case(name="square", timed=True, inputs=(spec(64, 64), spec(64, 64), spec(64, 64))),))
"""


def test_rows_replace_m_where_the_reference_needs_it(tmp_path: Path) -> None:
    path = tmp_path / "product.py"
    path.write_text(PRODUCT)
    problem = as_problem(str(path))
    (given,) = problem.cases
    of_one = replace(given, inputs=(*given.inputs[:2], replace(given.inputs[2], shape=(64, 1))))
    for case, bias in ((given, (8, 64)), (of_one, (8, 1))):
        found = at_rows(problem, case, 8)
        assert [one.shape for one in found.inputs] == [(8, 64), (64, 64), bias]
    with pytest.raises(KernelError, match="takes no other number of rows"):
        at_rows(problem, replace(given, inputs=given.inputs[:1]), 8)


def test_rows_are_whole_numbers() -> None:
    assert read_rows("16, 1,16") == (1, 16) and read_rows("") == ()
    with pytest.raises(KernelError, match="write 1,16,4096"):
        read_rows("1,many")


MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) ** 2

def get_inputs():
    return [torch.rand(64, 1024)]

def get_init_inputs():
    return []
"""
ANSWER = """
class ModelNew(torch.nn.Module):
    def forward(self, x):
        return squared_relu(x, ())[0]
"""


@needs_triton
@pytest.mark.skipif(why_no_kernels() is not None, reason="no kernel can be tried on this machine")
def test_a_kernelbench_problem_is_tuned_at_several_numbers_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    Path("answer.py").write_text(KERNEL + ANSWER)
    words = ["tune", "answer.py", "--problem", "model.py", "--config", "BLOCK=256,512"]
    assert main([*words, "--rows", "1,64", "--json"]) == 0
    one, many = json.loads(capsys.readouterr().out)["sizes"]
    assert (one["rows"], many["rows"]) == (1, 64)
    assert {each["workgroups"] for each in one["order"]} == {2, 4}
    assert {each["workgroups"] for each in many["order"]} == {128, 256}
    assert all(each["right"] == "correct" for each in (*one["order"], *many["order"]))
    assert list(json.loads(Path("ratchet-tune/vllm.json").read_text())) == ["1", "64"]
    assert "draws 64 rows" in mistake(capsys, *words, "--rows", "65")


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
