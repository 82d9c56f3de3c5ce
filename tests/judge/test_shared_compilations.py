"""What torch.compile made is made once, and a candidate that has it can change nobody else's."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from answers import assert_right

from ratchet.errors import CompilerMissing
from ratchet.judge import isolation, kernel_checks, kernel_timing, kernel_trial, shared_compilations
from ratchet.judge.kernel_checks import OpenProblem
from ratchet.judge.kernel_trial import KernelJudge
from ratchet.judge.verdict import Evidence
from ratchet.judge.workers.compilations import ENVIRONMENT, OWN, SEEN
from ratchet.kernels.kernel import Kernel
from ratchet.kernels.languages import cpp
from ratchet.kernels.problem import Problem
from ratchet.kernels.problem_file import built_in_kernel, load_problem

SOFTMAX = Path(__file__).parent / "kernelbench_like" / "level1" / "3_softmax.py"
pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(isolation.bubblewrap() is None, reason="bubblewrap does not work here"),
]


@pytest.fixture(autouse=True)
def short(few_rounds: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests ask for answers, not for speed."""
    try:
        cpp.find_compiler()
    except CompilerMissing as error:
        pytest.skip(str(error))
    monkeypatch.setattr(kernel_checks, "COMPILE_LIMIT_S", 200.0)
    monkeypatch.setattr(kernel_timing, "LAUNCHES", 1)
    monkeypatch.setattr(kernel_timing, "MIN_LAUNCHES", 1)
    monkeypatch.setattr(kernel_timing, "MIN_ROUNDS", 2)
    monkeypatch.setattr(kernel_timing, "MAX_ROUNDS", 2)


@pytest.fixture
def for_anyone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder for every kernel: a hostile one that has it must do no harm."""
    for module in (shared_compilations, kernel_trial):
        monkeypatch.setattr(module, "is_compiled_reference", lambda *_: True)


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
        if os.path.exists({SEEN!r}) or "TORCHINDUCTOR_CACHE_DIR" in os.environ:
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
import os, pathlib, shutil

def harmed():
    seen, own = pathlib.Path({SEEN!r}), pathlib.Path({OWN!r})
    files = [path for path in seen.rglob("*") if path.is_file()]
    if not files:
        return "nothing to harm"
    attempts = [
        lambda: (seen / "new").write_text("poison"),
        lambda: files[0].write_text("poison"),
        lambda: files[0].unlink(),
        lambda: files[0].rename(seen / "moved"),
        lambda: files[0].chmod(0o777),
        lambda: seen.chmod(0o777),
        lambda: os.link(files[0], "/tmp/linked"),
        lambda: shutil.rmtree(files[0].parent),
    ]
    for number, attempt in enumerate(attempts):
        try:
            attempt()
        except OSError:
            continue
        return f"attempt {{number}} worked"
    for path in own.rglob("*"):
        if path.is_file():
            path.write_text("poison")
    return ""

class ModelNew(Model):
    def forward(self, x):
        if harmed():
            raise RuntimeError(harmed())
        return super().forward(x)
"""


def test_a_hostile_kernel_cannot_write_what_others_read(
    judge: KernelJudge, asked: Problem, for_anyone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: dict[Path, dict[str, str]] = {}
    original = shared_compilations.SharedCompilations.of

    def remembering(
        self: shared_compilations.SharedCompilations,
        kernel: Kernel,
        opened: OpenProblem,
        evidence: list[Evidence],
    ) -> Path | None:
        folder = original(self, kernel, opened, evidence)
        assert folder is not None
        folders[folder] = digests(folder)
        return folder

    monkeypatch.setattr(shared_compilations.SharedCompilations, "of", remembering)
    verdict = judge.judge(answer(asked, HOSTILE), asked, time_limit_s=500)
    assert_right(verdict)
    ((folder, before),) = folders.items()
    assert before and digests(folder) == before
    judge.close()
    assert not folder.exists()


def digests(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(one): hashlib.sha256(one.read_bytes()).hexdigest() for one in files}


def test_the_copy_is_private() -> None:
    assert ENVIRONMENT["TORCHINDUCTOR_CACHE_DIR"] == OWN
    assert OWN.startswith("/tmp/")  # bubblewrap's own, new for every process
