"""Emulated verdicts that the ledger answers by their texts, and those that it must not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ratchet.amd import targets
from ratchet.base.errors import KernelError
from ratchet.base.process.channel import Message
from ratchet.cli import main
from ratchet.judge.court import calls, machines
from ratchet.judge.court.calls import texts_key
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems import file_keeper
from ratchet.judge.problems.problem import Problem
from ratchet.judge.revision import revision
from ratchet.judge.terms import Terms
from ratchet.judge.verdict import Status, Verdict

PROBLEM = """
from ratchet import Case, Problem, TensorSpec

def reference(x, scalars):
    return (x + x,)

PROBLEM = Problem(name="doubled", reference="reference", cases=(
    Case(name="rows", timed=True, inputs=(TensorSpec(shape=(4, 8), dtype="float32"),)),))
"""
KERNEL = """
import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, at < n), at < n)

def doubled(x, scalars):
    y = torch.empty_like(x)
    kernel[(1,)](x, y, x.numel(), BLOCK=32)
    return (y,)
"""
WORDS = ["problem.py", "kernel.py", "--target", "gfx942", "--json"]
WITHOUT_TORCH = """
import sys
from ratchet.cli import main
main(sys.argv[1:])
sys.exit("torch is imported" if "torch" in sys.modules else 0)
"""


class StrawJudge:
    """Stands in for KernelJudge, and for its worker that reads a problem's file."""

    def __init__(self, *, threads: int | None = None) -> None:
        self.status: Status = "correct"
        self.judged: list[str | None] = []
        """The target of each verdict that was given."""

    def __call__(self, *, threads: int | None = None) -> StrawJudge:
        return self

    def begin(self, language: str) -> None: ...

    def close(self) -> None: ...

    def describe(self, request: Message, limit_s: float) -> Message:
        return file_keeper.answer(request)

    def judge(self, kernel: Kernel, problem: Problem, **terms: Any) -> Verdict:
        self.judged.append(terms["target"])
        return Verdict(
            status=self.status,
            reason="made up",
            environment={"judge": revision(terms["target"])},
            isolation="none",
            kernel_hash=kernel.hash,
            problem_hash=problem.hash,
        )


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StrawJudge:
    """A judge of straw; a problem, a kernel and a ledger in the working folder."""
    made = StrawJudge()
    monkeypatch.setattr(machines, "KernelJudge", made)
    monkeypatch.setattr(targets, "make_ready", lambda *_: None)
    monkeypatch.setenv("RATCHET_LEDGER", str(tmp_path / "ledger.db"))
    monkeypatch.chdir(tmp_path)
    Path("problem.py").write_text(PROBLEM)
    Path("kernel.py").write_text(KERNEL)
    return made


def answered(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    main(["judge", *words])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_same_texts_are_judged_once(
    judge: StrawJudge, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not answered(capsys, *WORDS)["recalled"]
    again = answered(capsys, *WORDS)
    assert again["recalled"] and again["kernel"] == "kernel" and again["problem"] == "doubled"
    other = [word.replace("gfx942", "gfx1100") for word in WORDS]
    assert not answered(capsys, *other)["recalled"]
    assert answered(capsys, *WORDS)["recalled"]  # the newest by that GPU's code
    assert not answered(capsys, *WORDS, "--fresh")["recalled"]
    assert judge.judged == ["gfx942", "gfx1100", "gfx942"]


@pytest.mark.parametrize("name", ["problem.py", "kernel.py"])
def test_a_changed_text_is_judged_anew(
    name: str, judge: StrawJudge, capsys: pytest.CaptureFixture[str]
) -> None:
    answered(capsys, *WORDS)
    path = Path(name)
    path.write_text(f"{path.read_text()}\n# changed\n")
    assert not answered(capsys, *WORDS)["recalled"]
    assert len(judge.judged) == 2


@pytest.mark.parametrize("status", ["crashed", "refused", "unmeasured"])
def test_an_answer_that_may_be_the_machines_is_asked_for_again(
    status: Status, judge: StrawJudge, capsys: pytest.CaptureFixture[str]
) -> None:
    judge.status = status
    for _ in range(2):
        assert not answered(capsys, *WORDS)["recalled"]
    assert len(judge.judged) == 2


def test_several_kernels_are_one_document(
    judge: StrawJudge, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("other.py").write_text(KERNEL.replace("2 *", "3 *"))
    words = ["problem.py", "kernel.py", "other.py", *WORDS[2:]]
    found = answered(capsys, *words)["verdicts"]
    assert [(one["kernel"], one["recalled"]) for one in found] == [
        ("kernel", False),
        ("other", False),
    ]
    assert all(one["recalled"] for one in answered(capsys, *words)["verdicts"])


def test_a_verdict_by_texts_imports_no_torch(
    judge: StrawJudge, capsys: pytest.CaptureFixture[str]
) -> None:
    answered(capsys, *WORDS)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, "judge", *WORDS],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["recalled"]


def key(problem: str = PROBLEM, kernel: str = KERNEL, **changes: Any) -> str | None:
    """The key of two texts, which are written into the working folder."""
    Path("problem.py").write_text(problem)
    language = changes.pop("language", "triton")
    given = Kernel(name="k", language=language, source=kernel, entry="doubled")
    target = changes.pop("target", "gfx942")
    path = changes.pop("path", "problem.py")
    return texts_key(path, given, Terms(target=target, **changes))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_all_that_decides_is_in_the_key(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    first = key()
    assert first is not None and key() == first
    others = [
        *(key(PROBLEM + "\n"), key(kernel=KERNEL + "\n"), key(target="gfx1100")),
        *(key(entry="other"), key(tier="ci"), key(scale=0.5), key(task="own")),
        *(key(frozen_weights=True), key(path="squared_relu")),
    ]
    monkeypatch.setattr(calls, "package_state", lambda: "another version of Ratchet")
    others.append(key())
    assert None not in others and len({first, *others}) == 1 + len(others)


@pytest.mark.parametrize(
    "line",
    [
        "import helpers",
        "from . import helpers",
        "import os",
        "weights = open('weights.bin').read()",
        "import torch; weights = torch.load('weights.pt')",
        "import numpy as np; table = np.fromfile('table.bin')",
        "exec('import helpers')",
    ],
)
def test_a_problem_that_may_read_more_has_no_key(line: str, here: None) -> None:
    assert key(f"{line}\n{PROBLEM}") is None


@pytest.mark.parametrize("line", ["import helpers", "from helpers import rows", "exec('')"])
def test_a_kernel_that_may_read_more_has_no_key(line: str, here: None) -> None:
    assert key(kernel=f"{line}\n{KERNEL}") is None


@pytest.mark.parametrize("language", ["torch", "hip"])
def test_without_a_compiler_there_is_no_key_and_the_verdict_says_so(
    language: str, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(target: str) -> str:
        raise KernelError("there is no clang")

    monkeypatch.setattr(targets, "toolchain", missing)
    assert key(kernel="# no imports", language=language) is None
