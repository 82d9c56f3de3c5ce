"""Whole verdicts on a GPU of which only the memory is there: a fake driver's."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from answers import assert_right
from fake_gpu import FLAVOURS, FakeDriver, build_driver, open_to_all

from ratchet.base.errors import JudgeError
from ratchet.base.measure import Ratio
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.kernel_file import built_in_kernel
from ratchet.judge.problems.problem import Case, Problem, TensorSpec
from ratchet.judge.problems.problem_file import load_problem
from ratchet.judge.trial import looks, open_problem, plan, sample, stages
from ratchet.judge.trial.kernel_trial import KernelJudge
from ratchet.judge.trial.open_problem import DeviceClock, OpenProblem
from ratchet.judge.trial.reference import ReferenceProcess, raise_fault
from ratchet.judge.verdict import Decided, Evidence, Speedups, Verdict

pytestmark = pytest.mark.compiler
THOROUGH = pytest.mark.thorough
LIKE = Path(__file__).parents[1] / "kernelbench_like"
HONEST = "def silu(x, s):\n    return (s[0] * torch.nn.functional.silu(x),)\n"


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return build_driver("cuda", open_to_all(tmp_path_factory.mktemp("driver")))


@pytest.fixture(autouse=True)
def short(few_rounds: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "GPU_MAX_CALLS", 4)
    monkeypatch.setattr(sample, "ALONE_BATCHES", 2)
    monkeypatch.setattr(open_problem, "SLOWEST_FLOOR_S", 5.0)


def python(source: str, language: str = "torch") -> Kernel:
    source = "import torch\n" + source
    return Kernel(name="answer", language=language, source=source, entry="silu")  # type: ignore[arg-type]


def problem(*cases: Case) -> Problem:
    spec = TensorSpec(shape=(64, 32), dtype="float32")
    strided = TensorSpec(shape=(5, 7), dtype="float32", layout="strided")
    empty = TensorSpec(shape=(0, 7), dtype="float32")
    usual = (
        Case(name="timed", inputs=(spec,), scalars=(1.5,), timed=True),
        Case(name="strided", inputs=(strided,), scalars=(1.5,), hidden=True),
        Case(name="empty", inputs=(empty,), scalars=(1.5,), hidden=True),
    )
    return Problem(name="silu", reference="judge_problems:silu", cases=cases or usual)


def detail(verdict: Verdict, check: str) -> str:
    return next(one.detail for one in verdict.evidence if one.check.startswith(check))


@pytest.mark.parametrize(
    "flavour",
    [*FLAVOURS[:2], *(pytest.param(one, marks=THOROUGH) for one in FLAVOURS[2:])],
)
def test_an_honest_kernel_is_right_and_timed(
    flavour: str, judge: KernelJudge, tmp_path: Path
) -> None:
    fake = build_driver(flavour, open_to_all(tmp_path))
    verdict = judge.judge(python(HONEST), problem(), device=fake.accelerator)
    # On loaded cores the clocks' checks may find too much; a wrong answer they cannot make.
    assert_right(verdict)
    assert verdict.environment["device"] == "a fake GPU"
    assert "the GPU's device files" in verdict.isolation or "no namespaces" in verdict.isolation
    assert {one.check for one in verdict.evidence} >= {
        *("correct on strided", "correct on empty", "right while timed on timed"),
        *("device clock on timed", "streams", "memory between calls", "kernels on the GPU"),
        "caches",
    }
    assert "s a batch by the judge's clock" in detail(verdict, "device clock")
    assert len(verdict.samples) == 3 * 2 * 4


def test_in_place_tensors_and_gradients_of_rows(fake: FakeDriver, judge: KernelJudge) -> None:
    spec = TensorSpec(shape=(8, 16), dtype="float32")
    cases = (
        Case(
            name="one",
            inputs=(replace(spec, in_place=True), spec),
            scalars=(0.5,),
            timed=True,
        ),
    )
    asked = Problem(name="axpy", reference="judge_problems:inplace_axpy", cases=cases)
    source = "import torch\ndef axpy(w, g, s):\n    return w + s[0] * g, g.square().sum(-1)\n"
    kernel = Kernel(name="answer", language="torch", source=source, entry="axpy")
    verdict = judge.judge(kernel, asked, device=fake.accelerator)
    assert_right(verdict)
    assert "correct on one" in {one.check for one in verdict.evidence if one.passed}


TRITON = """
import triton
import triton.language as tl

@triton.jit
def unused(x, BLOCK: tl.constexpr):
    pass

def silu(x, s):
    return (s[0] * torch.nn.functional.silu(x),)
"""


def test_a_source_in_triton_is_loaded_as_a_file(fake: FakeDriver, judge: KernelJudge) -> None:
    pytest.importorskip("triton")
    verdict = judge.judge(python(TRITON, "triton"), problem(), device=fake.accelerator)
    assert_right(verdict)
    assert "right while timed on timed" in {one.check for one in verdict.evidence if one.passed}


def test_a_model_is_built_on_the_device(fake: FakeDriver, judge: KernelJudge) -> None:
    (path,) = LIKE.glob("level*/8_batch_norm.py")
    asked = load_problem(path, scale=None)
    kernel = built_in_kernel(asked, "eager")
    verdict = judge.judge(kernel, asked, device=fake.accelerator)
    assert_right(verdict)
    assert [one for one in verdict.evidence if one.check.startswith("right while timed")]


WRONG = {
    "wrong": "def silu(x, s):\n    return (x * s[0],)\n",
    "wrong once it is timed": """
calls = 0
def silu(x, s):
    global calls
    calls += 1
    right = s[0] * torch.nn.functional.silu(x)
    return (right if calls < 12 else right * 0,)
""",
    "a replay of old pointers": """
kept = {}
def silu(x, s):
    first, out = kept.setdefault(tuple(x.shape), (x, torch.empty_like(x)))
    return (out.copy_(s[0] * torch.nn.functional.silu(first)),)
""",
    "an input is changed": """
def silu(x, s):
    right = s[0] * torch.nn.functional.silu(x)
    x.mul_(2)
    return (right,)
""",
    "an input is changed while it is timed": """
calls = 0
def silu(x, s):
    global calls
    calls += 1
    right = s[0] * torch.nn.functional.silu(x)
    if calls > 12:
        x.add_(1)
    return (right,)
""",
}


@pytest.mark.parametrize(
    "what",
    [
        *("wrong", "an input is changed while it is timed"),
        pytest.param("wrong once it is timed", marks=THOROUGH),
        pytest.param("an input is changed", marks=THOROUGH),
        pytest.param("a replay of old pointers", marks=THOROUGH),
    ],
)
def test_what_is_wrong_on_cores_is_wrong_here(
    what: str, fake: FakeDriver, judge: KernelJudge
) -> None:
    verdict = judge.judge(python(WRONG[what]), problem(), device=fake.accelerator)
    gone = ("crashed",) if what == "a replay of old pointers" else ()  # the old memory may be gone
    assert verdict.status in ("wrong", *gone), (verdict.status, verdict.reason)


UNWRITTEN = """
calls = 0
def silu(x, s):
    global calls
    calls += 1
    right = s[0] * torch.nn.functional.silu(x)
    if calls <= 9:
        return (right,)
    out = torch.empty_like(right)
    return (out,)
"""


def test_memory_that_was_not_written_is_wrong(fake: FakeDriver, judge: KernelJudge) -> None:
    verdict = judge.judge(python(UNWRITTEN), problem(), device=fake.accelerator)
    assert verdict.status == "wrong", (verdict.status, verdict.reason)


AFTERWARDS = """
import threading, time
from ratchet.judge.workers.candidate.with_torch import TorchBatch
run = TorchBatch.run
def silu(x, s):
    return (s[0] * torch.nn.functional.silu(x),)
def lazy(batch, entry, descriptors):
    batch.reveal(descriptors)
    def work():
        time.sleep(0.03)
        for inputs, answers in batch.calls:
            answers[0].copy_(silu(*inputs, batch.scalars)[0])
    threading.Thread(target=work).start()
    batch.device_s = 0.01
    return [0] * len(batch.calls)
TorchBatch.run = lazy
"""


def test_work_that_goes_on_after_the_answer_is_not_right(
    fake: FakeDriver, judge: KernelJudge
) -> None:
    verdict = judge.judge(python(AFTERWARDS), problem(), device=fake.accelerator)
    assert verdict.status in ("wrong", "cheating"), (verdict.status, verdict.reason)


@pytest.mark.parametrize("call", ["MemImportFromShareableHandle", "MemCreate"])
def test_a_driver_that_refuses_is_unmeasured_in_one_line(
    call: str, fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RATCHET_FAKE_REFUSES", call)
    with KernelJudge() as own:
        verdict = own.judge(python(HONEST), problem(), device=fake.accelerator)
    assert verdict.status == "unmeasured", (verdict.status, verdict.reason)
    assert call in verdict.reason and "refused" in verdict.reason
    assert "\n" not in verdict.reason and verdict.speedup.vs_reference is None


@pytest.mark.parametrize(
    "call", ["Init", pytest.param("MemImportFromShareableHandle", marks=THOROUGH)]
)
def test_a_driver_that_refuses_in_the_sandbox_alone_is_unmeasured(
    call: str, fake: FakeDriver, judge: KernelJudge
) -> None:
    (fake.path.parent / "refuses").write_text(call)
    try:
        verdict = judge.judge(python(HONEST), problem(), device=fake.accelerator)
    finally:
        (fake.path.parent / "refuses").unlink()
    if "no namespaces" in verdict.isolation:
        pytest.skip("without bubblewrap a candidate's home is another")
    assert verdict.status == "unmeasured", (verdict.status, verdict.reason)
    assert call in verdict.reason and "in the sandbox" in verdict.reason


LOST = "RuntimeError: CUDA error: GPU has fallen off the bus\nCompile with more."


@pytest.mark.parametrize("where", ["opened", "timed"])
def test_a_gpu_that_the_reference_loses_is_nobodys_fault_and_the_next_verdict_starts_anew(
    where: str, fake: FakeDriver, judge: KernelJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(*_: Any, **__: Any) -> None:
        raise_fault({"error": {"kind": "RuntimeError", "message": LOST, "known": False}})

    with monkeypatch.context() as patch:
        if where == "opened":
            patch.setattr(ReferenceProcess, "ask", lose)
        else:
            patch.setattr(OpenProblem, "flush", lose)
        verdict = judge.judge(python(HONEST), problem(), device=fake.accelerator)
    assert verdict.status == "unmeasured", (verdict.status, verdict.reason)
    assert "stopped answering" in verdict.reason and "run again" in verdict.reason
    assert "\n" not in verdict.reason and judge.reference_pid is None
    assert_right(judge.judge(python(HONEST), problem(), device=fake.accelerator))


def test_a_gpu_that_a_kernel_loses_is_not_the_kernels_fault(
    fake: FakeDriver, judge: KernelJudge
) -> None:
    lost = f"def silu(x, s):\n    raise RuntimeError({LOST!r})\n"
    verdict = judge.judge(python(lost), problem(), device=fake.accelerator)
    assert verdict.status == "unmeasured", (verdict.status, verdict.reason)
    assert "stopped answering in the kernel's process" in verdict.reason
    assert "\n" not in verdict.reason


def test_a_driver_that_refuses_to_open_the_gpu_is_not_the_problems_fault(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RATCHET_FAKE_REFUSES", "MemGetAllocationGranularity")
    with KernelJudge() as own:
        verdict = own.judge(python(HONEST), problem(), device=fake.accelerator)
    assert verdict.status == "unmeasured", (verdict.status, verdict.reason)


SHADOWED = """
from ratchet.judge.workers import driver_memory
def silu(x, s):
    raise driver_memory.DriverRefusal("so I say")
"""


def test_a_candidate_that_claims_a_refusal_wins_nothing(
    fake: FakeDriver, judge: KernelJudge
) -> None:
    verdict = judge.judge(python(SHADOWED), problem(), device=fake.accelerator)
    assert verdict.status in ("unmeasured", "crashed"), (verdict.status, verdict.reason)


def test_a_gpu_that_only_the_sandbox_lacks_is_unmeasured(
    fake: FakeDriver, judge: KernelJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = replace(fake.accelerator, folders=())
    verdict = judge.judge(python(HONEST), problem(), device=hidden)
    if "no namespaces" in verdict.isolation:
        pytest.skip("without bubblewrap a candidate sees every folder")
    assert verdict.status == "unmeasured", (verdict.status, verdict.reason)
    assert "the GPU cannot be used in the sandbox" in verdict.reason


FASTER = Speedups(vs_reference=Ratio(ratio=2.0, low=1.9, high=2.1))


@pytest.mark.parametrize(
    ("alone", "words"),
    [([1e-12], "kept the device busy"), (JudgeError("so it broke"), "so it broke")],
)
def test_a_win_over_a_reference_that_may_have_been_slowed_is_none(
    alone: Any, words: str, fake: FakeDriver, judge: KernelJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    def time_alone(*_: Any) -> list[float]:
        if isinstance(alone, JudgeError):
            raise alone
        return list(alone)

    agreed = Evidence(check="device clock", passed=True)
    won = Decided("proven", "faster", speedup=FASTER)
    monkeypatch.setattr(stages, "conclude", lambda *_, **__: won)
    monkeypatch.setattr(looks, "time_alone", time_alone)
    monkeypatch.setattr(DeviceClock, "compare", lambda *_, **__: (agreed, ""))
    monkeypatch.setattr(DeviceClock, "exceeds_round_trip", lambda *_: (agreed, ""))
    verdict = judge.judge(python(HONEST), problem(), device=fake.accelerator)
    assert verdict.status == "unmeasured", (verdict.status, verdict.reason)
    assert words in verdict.reason
    assert verdict.speedup.vs_reference is None


def test_a_win_is_compared_with_the_reference_when_the_kernel_is_gone(
    fake: FakeDriver, judge: KernelJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[list[float]] = []

    def undisturbed(_: str, *, alone: list[float], **__: Any) -> tuple[Evidence, str]:
        times.append(alone)
        return Evidence(check="device at rest", passed=True), ""

    agreed = Evidence(check="device clock", passed=True)
    won = Decided("proven", "faster", speedup=FASTER)
    monkeypatch.setattr(stages, "conclude", lambda *_, **__: won)
    monkeypatch.setattr(looks.open_problem, "undisturbed", undisturbed)
    monkeypatch.setattr(DeviceClock, "compare", lambda *_, **__: (agreed, ""))
    monkeypatch.setattr(DeviceClock, "exceeds_round_trip", lambda *_: (agreed, ""))
    verdict = judge.judge(python(HONEST), problem(), device=fake.accelerator)
    assert verdict.status == "proven", (verdict.status, verdict.reason)
    assert len(times) == 1 and len(times[0]) == 2 and min(times[0]) > 0


def test_the_reference_worker_holds_nothing_of_a_batch(
    fake: FakeDriver, judge: KernelJudge
) -> None:
    judge.judge(python(HONEST), problem(), device=fake.accelerator)
    assert judge.reference_pid is not None
    held = [os.readlink(f"/proc/{judge.reference_pid}/fd/{fd}") for fd in _descriptors(judge)]
    assert not [one for one in held if "fake-device" in one]


def _descriptors(judge: KernelJudge) -> list[str]:
    return os.listdir(f"/proc/{judge.reference_pid}/fd")


def test_a_compiled_kernel_has_no_gpu_to_run_on(judge: KernelJudge) -> None:
    kernel = Kernel(name="answer", language="cpp", source="", entry="silu")
    verdict = judge.judge(kernel, problem(), device="cuda")
    assert verdict.status == "refused"
    assert "use --device cpu" in verdict.reason


def test_without_a_gpu_asking_for_one_is_unmeasured(judge: KernelJudge) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    verdict = judge.judge(python(HONEST), problem(), device="cuda")
    assert verdict.status == "unmeasured"
    assert "sees no GPU" in verdict.reason
