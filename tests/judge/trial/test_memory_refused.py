"""Others hold a GPU's memory: batches get smaller, and no kernel is blamed for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from answers import assert_right
from fake_gpu import FakeDriver, build_driver, open_to_all

from ratchet.base.process.channel import Message
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Case, Problem, TensorSpec
from ratchet.judge.sandbox.serving import describe_error
from ratchet.judge.trial import many_calls, open_problem, plan, sample
from ratchet.judge.trial.kernel_trial import KernelJudge
from ratchet.judge.trial.reference import DeviceMemoryRefused, ReferenceFault, raise_fault
from ratchet.judge.workers import reference as reference_worker
from ratchet.judge.workers.reference import ReferenceWorker

MIB = 1 << 20
SOURCE = "import torch\ndef silu(x, s):\n    return (s[0] * torch.nn.functional.silu(x),)\n"
KERNEL = Kernel(name="answer", language="torch", source=SOURCE, entry="silu")
SPEC = TensorSpec(shape=(512, 512), dtype="float32")
"""One MiB: the fake driver hands memory out in pieces of two."""
TIMED = Case(name="timed", inputs=(SPEC,), scalars=(1.5,), timed=True)
PROBLEM = Problem(name="silu", reference="judge_problems:silu", cases=(TIMED,))


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return build_driver("cuda", open_to_all(tmp_path_factory.mktemp("driver")))


@pytest.fixture(autouse=True)
def short(few_rounds: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "GPU_MAX_CALLS", 8)
    monkeypatch.setattr(plan, "GPU_TARGET_BATCH_S", 1e6)  # how long a call takes decides nothing
    monkeypatch.setattr(sample, "ALONE_BATCHES", 2)
    monkeypatch.setattr(open_problem, "SLOWEST_FLOOR_S", 5.0)


@contextmanager
def at_most(fake: FakeDriver, size_bytes: int) -> Iterator[None]:
    """Let the driver hand out no memory of more bytes."""
    file = fake.path.parent / "most"
    file.write_text(str(size_bytes))
    try:
        yield
    finally:
        file.unlink()


@pytest.mark.compiler
@pytest.mark.parametrize(
    "first", [pytest.param("while it is checked", marks=pytest.mark.thorough), "while it is timed"]
)
def test_a_verdict_goes_on_with_half_the_calls(
    first: str, fake: FakeDriver, judge: KernelJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    if first == "while it is timed":
        monkeypatch.setattr(many_calls, "MOST", 4)
        monkeypatch.setattr(many_calls, "BATCH", 4)
    with at_most(fake, 6 * MIB):  # four calls with the gaps between them, and not eight
        verdict = judge.judge(KERNEL, PROBLEM, device=fake.accelerator)
    assert_right(verdict)
    told = [one.detail for one in verdict.evidence if one.check == "memory for batches"]
    assert told == ["device memory was refused: batches of 4 calls instead of 8"]
    assert {one.iterations for one in verdict.samples} == {4}


@pytest.mark.compiler
def test_a_screening_goes_on_with_half_the_calls(fake: FakeDriver, judge: KernelJudge) -> None:
    with at_most(fake, 6 * MIB):
        answers = judge.screen(PROBLEM, [KERNEL, KERNEL], device=fake.accelerator)
    assert [one.status for one in answers] == ["screened"] * 2, answers
    for one in answers:
        assert "device memory was refused: batches of 4 calls instead of 8" in " ".join(
            map(str, one.evidence)
        )


@pytest.mark.compiler
@pytest.mark.parametrize("screened", [False, True])
def test_no_memory_for_one_call_is_unmeasured_with_a_remedy(
    screened: bool, fake: FakeDriver, judge: KernelJudge
) -> None:
    with at_most(fake, MIB):
        if screened:
            (answer,) = judge.screen(PROBLEM, [KERNEL], device=fake.accelerator)
            status, reason = answer.status, answer.reason
        else:
            verdict = judge.judge(KERNEL, PROBLEM, device=fake.accelerator)
            status, reason = verdict.status, verdict.reason
    assert status == "unmeasured", reason
    assert "cuMemCreate refused: FAKE_OUT_OF_MEMORY" in reason
    assert "free it, or name another with --device" in reason and "\n" not in reason


TORCHS = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.19 GiB of "
    "which 3.06 MiB is free.\nProcess 1 has 79 GiB memory in use."
)


def test_a_draw_for_which_torch_has_no_memory_is_the_same_and_keeps_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    worker = ReferenceWorker()
    message: Message = {"do": "open", "problem": PROBLEM.as_json(), "threads": 1, "seed": 1}
    worker.answer({**message, "device": None, "is_timed": False}, [])
    draw: Message = {"do": "draw", "case": 0, "round": True, "writable_inputs": False}
    draw |= {"values": [], "places": None, "alike": [], "in_use": []}
    worker.answer({**draw, "batch": 1, "seeds": [1, 2]}, [])
    assert worker._held is not None and worker._held._drawn

    def refuse(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError(TORCHS)

    monkeypatch.setattr(reference_worker, "SharedBatch", refuse)
    with pytest.raises(torch.OutOfMemoryError) as raised:
        worker.answer({**draw, "batch": 2, "seeds": [3, 4]}, [])
    assert not worker._held._drawn
    words = (
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB; other work holds the "
        "GPU's memory: free it, or name another with --device"
    )
    with pytest.raises(DeviceMemoryRefused, match=f"^{re.escape(words)}$"):
        raise_fault({"error": describe_error(raised.value)})
    with pytest.raises(ReferenceFault):
        raise_fault({"error": describe_error(ValueError("its own"))})
