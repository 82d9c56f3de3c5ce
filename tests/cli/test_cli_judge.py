"""`ratchet judge` and `ratchet inspect` as a user calls them: verdicts, tables and mistakes."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from answers import RIGHT, is_right_answer
from commands import mistake, needs_judge

from ratchet.cli import main
from ratchet.judge.trial import plan

TRIES = 3
"""Machines may be busy."""
LIKE = Path(__file__).parents[1] / "judge" / "kernelbench_like"
SQUARED_RELU = r"""
#include <cstdint>
struct tensor { void* data; int64_t dtype, ndim, size[6], stride[6]; };
extern "C" int64_t squared_relu(const tensor* t, int64_t, const double*, int64_t) {
    const tensor &x = t[0], &y = t[1];
    int64_t elements = 1;
    for (int64_t d = x.ndim - 1; d >= 0; --d) {
        if (x.size[d] != 1 && x.stride[d] != elements) return 1;
        elements *= x.size[d];
    }
    if (x.dtype != 0) return 1;
    const float* from = (const float*)x.data;
    float* to = (float*)y.data;
    for (int64_t i = 0; i < elements; ++i) {
        const float kept = from[i] > 0 ? from[i] : 0;
        to[i] = FACTOR kept * kept;
    }
    return 0;
}
"""
RELU = """
import torch
from torch import nn

class ModelNew(nn.Module):
    def forward(self, x):
        return torch.clamp(x, min=0)
"""


@pytest.fixture(autouse=True)
def short(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, one_judge: None, loaded_once: None
) -> None:
    """Few rounds, a ledger and a folder of this test's own."""
    monkeypatch.setenv("RATCHET_LEDGER", str(tmp_path / "ledger.db"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan, "LAUNCHES", 2)
    monkeypatch.setattr(plan, "MIN_ROUNDS", 2)
    monkeypatch.setattr(plan, "MAX_ROUNDS", 2)
    monkeypatch.setattr(plan, "LOOKS", 1)


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """A right kernel of the suite's squared_relu."""
    path = tmp_path / "squared_relu.cpp"
    path.write_text(SQUARED_RELU.replace("FACTOR", ""))
    return path


@needs_judge
def test_a_verdict_as_json(kernel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(TRIES):
        code = main(["judge", "squared_relu", str(kernel), "--tier", "ci", "--json"])
        verdict = json.loads(capsys.readouterr().out)
        if verdict["status"] != "unmeasured":
            break
    assert verdict["status"] in RIGHT, verdict["reason"]
    assert code == (0 if verdict["status"] == "proven" else 1)
    assert {"reason", "evidence", "speedup", "static", "environment"} <= set(verdict)
    assert {"check", "passed", "detail"} == set(verdict["evidence"][0])
    assert {"vs_reference", "vs_compile"} == set(verdict["speedup"])
    against = verdict["speedup"]["vs_reference"]
    assert {"ratio", "low", "high", "confidence"} == set(against)
    assert round(against["confidence"], 3) == 0.983
    assert verdict["environment"]["tier"] == "ci"
    assert Path(verdict["paths"]["page"]).read_text().startswith("<!doctype html>")


@needs_judge
def test_a_wrong_kernel_is_an_answer_and_no_mistake(
    kernel: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel.write_text(SQUARED_RELU.replace("FACTOR", "1.01f *"))
    assert main(["judge", "squared_relu", str(kernel), "--tier", "ci"]) == 1
    shown = capsys.readouterr().out
    assert "wrong" in shown and "Traceback" not in shown


@needs_judge
def test_a_clone_of_kernelbench_comes_to_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clone, answers = tmp_path / "a clone" / "KernelBench" / "level1", tmp_path / "answers"
    clone.mkdir(parents=True)
    answers.mkdir()
    for name in ("1_relu.py", "3_softmax.py"):
        shutil.copy(LIKE / "level1" / name, clone / name)
    (clone / "4_broken.py").write_text("this is no Python")
    (answers / "1_relu.py").write_text(RELU)
    command = ["judge", "--kernelbench", str(clone.parents[1]), "--level", "1", "--eager-only"]
    code = main([*command, "--scale", "auto", "--candidate", str(answers), "--json"])
    table = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in table["rows"]}
    row = rows["1_relu"]
    assert is_right_answer(row["status"], row["reason"]), row
    assert rows["3_softmax"]["status"] == "unanswered"
    assert all(row["reason"] for row in rows.values())
    assert "4_broken" in rows and code == 1


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (("judge",), "one of PROBLEM KERNEL"),
        (("judge", "squared_relu"), "kernel"),
        (("judge", "squared_rleu", "k.cpp"), "squared_relu"),
        (("judge", "--suite", "trainin"), "training"),
        (("judge", "--suite", "training", "--candidate", "nobody"), "nobody"),
        (("judge", "--suite", "training", "--tier", "huge"), "huge"),
        (("judge", "--suite", "training", "--time-limit", "soon"), "soon"),
        (("judge", "--kernelbench", "."), "level 1"),
        (("judge", "--kernelbench", ".", "--scale", "2"), "2"),
        (("judge", "--kernelbench", ".", "--candidate", "library"), "library"),
    ],
)
def test_mistakes_in_the_call(
    words: tuple[str, ...], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert word in mistake(capsys, *words)


def test_a_target_that_does_not_exist(kernel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "gfx000" in mistake(capsys, "inspect", "squared_relu", str(kernel), "--target", "gfx000")


@needs_judge
@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("return x.new_zeros(4)", "does not depend on input 0"),
        ("return x * torch.rand(4)", "nondeterministic"),
    ],
    ids=["constant", "not deterministic"],
)
def test_a_problem_that_is_read_and_no_good(
    text: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("problem.py").write_text(
        "import torch\nfrom torch import nn\nclass Model(nn.Module):\n"
        f"    def forward(self, x):\n        {text}\n"
        "def get_inputs():\n    return [torch.randn(4)]\n"
        "def get_init_inputs():\n    return []\n"
    )
    Path("kernel.py").write_text(RELU)
    assert main(["judge", "problem.py", "kernel.py", "--json"]) == 1
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["status"] == "refused"
    assert word in verdict["reason"], verdict["reason"]


def test_the_help_says_where_a_hip_kernel_goes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", "--help"]) == 0
    words = " ".join(re.sub(r"[^\w.]+", " ", capsys.readouterr().out).split())
    assert "with target also .hip" in words
