"""The judge on a real GPU: skipped, visibly, where there is none. Nothing here asks how fast."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest
import torch
from answers import assert_right

from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Case, Problem, TensorSpec
from ratchet.judge.trial.kernel_trial import KernelJudge
from ratchet.judge.verdict import Verdict

pytestmark = [
    pytest.mark.gpu(
        twin="judge/trial/test_judge_device.py::test_an_honest_kernel_is_right_and_timed"
    ),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
TRITON = """
import torch
import triton
import triton.language as tl


@triton.jit
def silu_kernel(x, y, k, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    tl.store(y + at, k * value * tl.sigmoid(value), mask=at < n)


def silu(x, s):
    x = x.contiguous()
    y = torch.empty_like(x)
    n = x.numel()
    if n:
        silu_kernel[(triton.cdiv(n, 1024),)](x, y, s[0], n, BLOCK=1024)
    return (y,)
"""
HONEST = "import torch\ndef silu(x, s):\n    return (s[0] * torch.nn.functional.silu(x),)\n"
UNFINISHED = """
import torch
side = torch.cuda.Stream()
calls = 0
torch.cuda.synchronize = lambda *_: None

def silu(x, s):
    global calls
    calls += 1
    if calls < 20:
        return (s[0] * torch.nn.functional.silu(x),)
    out = torch.empty_like(x)
    with torch.cuda.stream(side):
        torch.cuda._sleep(500_000_000)
        out.copy_(s[0] * torch.nn.functional.silu(x))
    return (out,)
"""
BUSY = """
import torch
side = torch.cuda.Stream()
torch.cuda.synchronize = lambda *_: None

def silu(x, s):
    with torch.cuda.stream(side):
        torch.cuda._sleep(2_000_000_000)  # in the reference's way when its turn comes
    return (s[0] * torch.nn.functional.silu(x),)
"""
CACHE = """
import torch
kept = []

def silu(x, s):
    out = s[0] * torch.nn.functional.silu(x)
    kept.append(out.clone())
    return (out,)
"""


@pytest.fixture(autouse=True)
def short(gains_are_seen: None) -> None:
    """Few rounds, by which a gain would be seen."""


@pytest.fixture(scope="module")
def usable(judge: KernelJudge) -> None:
    """An honest kernel is right in the sandbox: else every other would win nothing either."""
    verdict = judge.judge(kernel(HONEST), problem(), time_limit_s=300, device="cuda")
    assert_right(verdict)
    assert verdict.environment["device"], shown(verdict)


def kernel(source: str, language: str = "torch") -> Kernel:
    return Kernel(name="x", language=language, source=source, entry="silu")  # type: ignore[arg-type]


def problem(rows: int = 4096) -> Problem:
    spec = TensorSpec(shape=(rows, 1024), dtype="float32")
    strided = TensorSpec(shape=(5, 7), dtype="float32", layout="strided")
    cases = (
        Case(name="timed", inputs=(spec,), scalars=(1.5,), timed=True, tier="gpu"),
        Case(name="strided", inputs=(strided,), scalars=(1.5,), hidden=True),
    )
    return Problem(name="silu", reference="judge_problems:silu", cases=cases)


def shown(verdict: Verdict) -> str:
    lines = [f"{one.check}: {one.detail}" for one in verdict.evidence]
    return "\n".join([verdict.status, verdict.reason, verdict.isolation, *lines])


@pytest.mark.gpu(
    twin="judge/trial/test_judge_device.py::test_a_source_in_triton_is_loaded_as_a_file"
)
@needs_triton
@pytest.mark.parametrize("task", ["any", "own"])
def test_an_honest_triton_kernel_is_right(task: str, judge: KernelJudge) -> None:
    asked = replace(problem(), task=task)  # type: ignore[arg-type]
    verdict = judge.judge(kernel(TRITON, "triton"), asked, time_limit_s=300)
    assert_right(verdict)
    assert verdict.environment["device"], shown(verdict)
    assert "silu_kernel" in shown(verdict)


def test_an_honest_torch_kernel_is_right(judge: KernelJudge) -> None:
    verdict = judge.judge(kernel(HONEST), problem(), time_limit_s=300, device="cuda")
    assert_right(verdict)


@pytest.mark.gpu(
    twin="judge/integrity/test_device_evidence.py::test_a_librarys_kernel_is_not_the_candidates_own"
)
def test_library_work_is_not_its_own(judge: KernelJudge) -> None:
    asked = replace(problem(), task="own")
    verdict = judge.judge(kernel(HONEST), asked, time_limit_s=300, device="cuda")
    assert verdict.status == "cheating", shown(verdict)


@pytest.mark.gpu(twin="judge/trial/test_judge_device.py::test_what_is_wrong_on_cores_is_wrong_here")
def test_a_wrong_kernel_is_wrong(judge: KernelJudge) -> None:
    source = HONEST.replace("s[0] *", "1.001 * s[0] *")
    verdict = judge.judge(kernel(source), problem(), time_limit_s=300, device="cuda")
    assert verdict.status == "wrong", shown(verdict)


@pytest.mark.gpu(
    twin="judge/trial/test_judge_device.py::test_a_win_over_a_reference_that_may_have_been_slowed_is_none"
)
@pytest.mark.parametrize("source", [UNFINISHED, BUSY])
@pytest.mark.usefixtures("usable")
def test_work_that_goes_on_behind_the_answer_wins_nothing(source: str, judge: KernelJudge) -> None:
    verdict = judge.judge(kernel(source), problem(), time_limit_s=300, device="cuda")
    assert verdict.status in ("cheating", "wrong", "correct", "unmeasured"), shown(verdict)
    if verdict.status == "unmeasured":  # the clocks were doubted, and nothing else
        assert verdict.reason.startswith("right, but"), shown(verdict)
        assert "time limit" not in verdict.reason, shown(verdict)


@pytest.mark.gpu(
    twin="judge/integrity/test_device_evidence.py::test_only_what_grows_with_every_call_is_kept"
)
@pytest.mark.usefixtures("usable")
def test_what_is_kept_from_call_to_call_is_told(judge: KernelJudge) -> None:
    verdict = judge.judge(kernel(CACHE), problem(256), time_limit_s=300, device="cuda")
    memory = next(one for one in verdict.evidence if one.check == "memory between calls")
    assert memory.passed is False, shown(verdict)


@pytest.mark.gpu(
    twin="judge/trial/test_screening_device.py"
    "::test_sixteen_kernels_take_a_process_each_and_nothing_twice"
)
@needs_triton
def test_many_triton_kernels_are_screened_together(judge: KernelJudge) -> None:
    right = [TRITON.replace("1024", str(block)) for block in (256, 512, 1024)]
    sources = [*right, TRITON.replace("k * value", "value"), TRITON.replace("def silu(", "def no(")]
    given = [kernel(one, "triton") for one in sources]
    answers = judge.screen(problem(), given, device="cuda", time_limit_s=300)
    statuses = [one.status for one in answers]
    assert statuses == ["screened"] * 3 + ["wrong", "refused"], answers
    assert all(one.ratio is not None and one.ratio > 0 for one in answers[:3])
