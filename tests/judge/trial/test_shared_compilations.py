"""What torch.compile made is made once, and a candidate that has it can change nobody else's."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from answers import assert_right

from ratchet.base.errors import CompilerMissing
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.kernel_file import built_in_kernel
from ratchet.judge.kernels.languages import cpp
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.problem_file import load_problem
from ratchet.judge.sandbox import bubblewrap
from ratchet.judge.sandbox.shared_memory import PackedFiles
from ratchet.judge.trial import launches, open_problem, plan
from ratchet.judge.trial.kernel_trial import KernelJudge
from ratchet.judge.trial.open_problem import OpenProblem, Record
from ratchet.judge.workers.candidate.with_torch import COMPILED, OWN_COMPILATIONS

SOFTMAX = Path(__file__).parents[1] / "kernelbench_like" / "level1" / "3_softmax.py"
pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(bubblewrap.program() is None, reason="bubblewrap does not work here"),
]


@pytest.fixture(autouse=True)
def short(few_rounds: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests ask for answers, not for speed."""
    try:
        cpp.find_compiler()
    except CompilerMissing as error:
        pytest.skip(str(error))
    monkeypatch.setattr(open_problem, "COMPILE_LIMIT_S", 200.0)
    monkeypatch.setattr(plan, "LAUNCHES", 1)
    monkeypatch.setattr(plan, "MIN_LAUNCHES", 1)
    monkeypatch.setattr(plan, "MIN_ROUNDS", 2)
    monkeypatch.setattr(plan, "MAX_ROUNDS", 2)


@pytest.fixture
def for_anyone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder for every kernel: a hostile one that has it must do no harm."""
    monkeypatch.setattr(launches, "is_compiled_reference", lambda *_: True)


@pytest.fixture
def asked() -> Problem:
    return load_problem(SOFTMAX, scale=None)


def answer(asked: Problem, body: str) -> Kernel:
    return Kernel(name="test", language="torch", source=asked.text + body, entry="ModelNew")


def test_torch_compile_is_right_and_compiled_once(judge: KernelJudge, asked: Problem) -> None:
    verdict = judge.judge(built_in_kernel(asked, "torch.compile"), asked, time_limit_s=500)
    assert_right(verdict)
    (ahead,) = [one for one in verdict.evidence if one.check == "compiled ahead"]
    assert ahead.passed and "once" in ahead.detail


def test_other_kernels_get_nothing(judge: KernelJudge, asked: Problem) -> None:
    verdict = judge.judge(
        answer(
            asked,
            f"""
import os

class ModelNew(Model):
    def forward(self, x):
        if os.path.exists({OWN_COMPILATIONS!r}) or "TORCHINDUCTOR_CACHE_DIR" in os.environ:
            raise RuntimeError("it has what others compiled")
        return super().forward(x)
""",
        ),
        asked,
    )
    assert_right(verdict)
    assert "compiled ahead" not in {one.check for one in verdict.evidence}


FOUND = """
from torch._dynamo.utils import counters

class ModelNew(torch.nn.Module):
    def __init__(self, *arguments):
        super().__init__()
        self.inner = Model(*arguments)
        self.inner.compile()

    def forward(self, x):
        y = self.inner(x)
        found = counters["inductor"]
        if not found["fxgraph_cache_hit"] or found["fxgraph_cache_miss"]:
            raise RuntimeError(f"compiled again: {dict(found)}")
        return y
"""


def test_a_process_finds_every_graph(judge: KernelJudge, asked: Problem, for_anyone: None) -> None:
    verdict = judge.judge(answer(asked, FOUND), asked, time_limit_s=500)
    assert_right(verdict)


HOSTILE = f"""
import os, pathlib

def harmed():
    files = [path for path in pathlib.Path({OWN_COMPILATIONS!r}).rglob("*") if path.is_file()]
    if not files:
        return "nothing to harm"
    if any(path.read_bytes() == b"poison" for path in files):
        return "somebody else's poison"
    for path in files:
        path.write_text("poison")
    for number in os.listdir("/proc/self/fd"):
        link = f"/proc/self/fd/{{number}}"
        if os.path.islink(link) and "memfd:files" in os.readlink(link):
            return "it holds what others read"
    return ""

HARMED = harmed()

class ModelNew(Model):
    def forward(self, x):
        if HARMED:
            raise RuntimeError(HARMED)
        return super().forward(x)
"""


def test_a_hostile_kernel_cannot_write_what_others_read(
    judge: KernelJudge, asked: Problem, for_anyone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[Path] = []
    given: list[tuple[PackedFiles, str]] = []
    original = launches.SharedCompilations.of

    def remembering(
        self: launches.SharedCompilations,
        kernel: Kernel,
        opened: OpenProblem,
        record: Record,
    ) -> PackedFiles | None:
        found = original(self, kernel, opened, record)
        assert found is not None and self._folder is not None
        given.append((found, digest(found)))
        folders.append(self._folder)
        return found

    monkeypatch.setattr(launches.SharedCompilations, "of", remembering)
    verdict = judge.judge(answer(asked, HOSTILE), asked, time_limit_s=500)
    assert_right(verdict)
    ((packed, before),) = given
    assert packed.files and digest(packed) == before
    judge.close()
    assert not folders[0].exists()


def digest(packed: PackedFiles) -> str:
    size = os.fstat(packed.descriptor).st_size
    return hashlib.sha256(os.pread(packed.descriptor, size, 0)).hexdigest()


def test_the_copy_is_private() -> None:
    assert COMPILED["TORCHINDUCTOR_CACHE_DIR"] == OWN_COMPILATIONS
    assert OWN_COMPILATIONS.startswith("/tmp/")  # bubblewrap's own, new for every process
