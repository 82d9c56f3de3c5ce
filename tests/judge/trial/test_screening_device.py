"""Screening on a GPU of which only the memory is there, and Triton's kernels in its interpreter.

Counts processes, imports and what runs at the same time: no test here asks how long it takes.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_gpu import FakeDriver, build_driver, open_to_all

from ratchet.base.process import Clock, families
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Case, Problem, TensorSpec
from ratchet.judge.sandbox import bubblewrap, zygote
from ratchet.judge.sandbox.accelerator import Accelerator
from ratchet.judge.sandbox.shared_memory import BATCH_PART
from ratchet.judge.trial import plan, screening, screening_rounds
from ratchet.judge.trial.candidate import CandidateProcess
from ratchet.judge.trial.kernel_trial import KernelJudge
from ratchet.judge.trial.launches import Launches
from ratchet.judge.trial.open_problem import OpenProblem
from ratchet.judge.trial.reference import RivalProcess, Rivals
from ratchet.judge.verdict import CandidateFault, Screening

pytestmark = pytest.mark.compiler
needs_bubblewrap = pytest.mark.skipif(
    bubblewrap.program() is None, reason="bubblewrap does not work here"
)
TRITON = """
import os
import sys

assert not FORKED or "triton" in sys.modules, "Triton was not imported before"
cache = os.environ["TRITON_CACHE_DIR"]
os.makedirs(cache, exist_ok=True)
planted = "planted" in os.listdir(cache)
helpers = [one for _, _, files in os.walk(cache) for one in files if one.startswith("cuda_utils")]
open(os.path.join(cache, "planted"), "w").close()
assert not FORKED or helpers, "nobody built what calls the driver"
os.environ["TRITON_INTERPRET"] = "1"
import torch
import triton
import triton.language as tl

calls = 0

@triton.jit
def kernel(x, y, n, k, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + at, mask=at < n, other=0.0)
    tl.store(y + at, k * v / (1 + tl.exp(-v)), mask=at < n)

def honest(x, s):
    x = x.contiguous()
    y = torch.empty_like(x)
    n = x.numel()
    if n:
        kernel[(triton.cdiv(n, BLOCK),)](x, y, n, s[0], B=BLOCK)
    return (y + planted,)

"""
HONEST = "silu = honest\n"
LATE = """
import threading, time
from ratchet.judge.workers.candidate.with_torch import TorchBatch
def lazy(batch, entry, descriptors):
    batch.reveal(descriptors)
    def work():
        time.sleep(0.03)
        for inputs, answers in batch.calls:
            answers[0].copy_(honest(*inputs, batch.scalars)[0])
    threading.Thread(target=work).start()
    batch.device_s = 0.01
    return [0] * len(batch.calls)
TorchBatch.run = lazy
silu = honest
"""
LATER = """
def silu(x, s):
    global calls
    calls += 1
    return honest(x, s) if calls < 6 else (torch.empty_like(x),)
"""
HOSTILE = {
    "def silu(x, s):\n    return (honest(x, s)[0] * 1.001,)\n": "wrong",
    "def silu(x, s):\n    return (torch.empty_like(x),)\n": "wrong",
    "def silu(x, s):\n    return (honest(x, s)[0], x.mul_(2))[:1]\n": "wrong",
    "def silu(x, s):\n    raise ValueError('no')\n": "crashed",
    "def silu(x, s):\n    os._exit(3)\n": "crashed",
    "silu = 1\n": "refused",
    LATE: "wrong cheating",
    LATER: "wrong",
}
EVERYTHING = os.environ.get("RATCHET_TEST") == "all"


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    pytest.importorskip("triton")
    return build_driver("cuda", open_to_all(tmp_path_factory.mktemp("driver")))


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch, fake: FakeDriver) -> None:
    monkeypatch.setenv("TRITON_LIBCUDA_PATH", str(fake.path.parent))
    monkeypatch.setattr(plan, "GPU_MAX_CALLS", 4)
    monkeypatch.setattr(screening_rounds, "ROUNDS", 4)


def kernel(body: str, block: int = 64) -> Kernel:
    forked = bubblewrap.program() is not None
    source = TRITON.replace("FORKED", str(forked)).replace("BLOCK", str(block)) + body
    return Kernel(name="answer", language="triton", source=source, entry="silu")


def problem() -> Problem:
    spec = TensorSpec(shape=(16, 32), dtype="float32")
    strided = TensorSpec(shape=(5, 7), dtype="float32", layout="strided")
    cases = (
        Case(name="timed", inputs=(spec,), scalars=(1.5,), timed=True),
        Case(name="strided", inputs=(strided,), scalars=(1.5,), hidden=True),
    )
    return Problem(name="silu", reference="judge_problems:silu", cases=cases)


def is_stopped(process: CandidateProcess) -> bool:
    """Return whether all of a candidate's threads of work stand still; one that ended does."""
    worker = families.read_state(process._child.sender)
    return worker is None or not worker.alive or worker.state in "Tt"


class Watched:
    """Counts what a screening starts, and notes what runs when."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.started: Counter[str] = Counter()
        self.processes: list[CandidateProcess] = []
        self.at_work: list[int] = []
        """Candidates whose first call began before one was waited for."""
        self.beside_the_clock: list[CandidateProcess] = []
        self.before_the_clock = 0
        """First calls that began before anything was timed."""
        self._begun = 0
        self._is_timed = False
        for owner, name, what in (
            (zygote.CandidateZygote, "__init__", "zygotes"),
            (Rivals, "begin", "references"),
            (screening, "described_cases", "opened problems"),
        ):
            self._count(patch, owner, name, what)
        start, begin, end = (
            getattr(CandidateProcess, one) for one in ("__init__", "begin_calls", "end_calls")
        )
        go, rival_go = CandidateProcess.go, RivalProcess.go

        def started(process: CandidateProcess, *given: Any, **more: Any) -> None:
            self.processes.append(process)
            start(process, *given, **more)

        def begun(process: CandidateProcess, *given: Any, **more: Any) -> float:
            self._begun += 1
            self.before_the_clock += not self._is_timed
            return float(begin(process, *given, **more))

        def ended(process: CandidateProcess, *given: Any, **more: Any) -> Any:
            self.at_work.append(self._begun)
            self._begun = 0
            return end(process, *given, **more)

        def timed(process: Any, *given: Any, **more: Any) -> Any:
            self._is_timed = True
            others = [one for one in self.processes if one is not process and not one._child.closed]
            self.beside_the_clock += [one for one in others if not is_stopped(one)]
            is_rival = isinstance(process, RivalProcess)
            return (rival_go if is_rival else go)(process, *given, **more)

        patch.setattr(CandidateProcess, "__init__", started)
        patch.setattr(CandidateProcess, "begin_calls", begun)
        patch.setattr(CandidateProcess, "end_calls", ended)
        patch.setattr(CandidateProcess, "go", timed)
        patch.setattr(RivalProcess, "go", timed)

    def _count(self, patch: pytest.MonkeyPatch, owner: Any, name: str, what: str) -> None:
        called = getattr(owner, name)

        def counted(*given: Any, **more: Any) -> Any:
            self.started[what] += 1
            return called(*given, **more)

        patch.setattr(owner, name, counted)


def assert_answered(answers: Sequence[Screening], expected: Sequence[str]) -> None:
    for answer, statuses in zip(answers, expected, strict=True):
        assert answer.status in statuses.split(), (statuses, answer)
        assert (answer.ratio is not None) == (answer.status == "screened")


def test_sixteen_kernels_take_a_process_each_and_nothing_twice(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = [kernel(HONEST, block) for block in (16, 32, 64, 128, 256, 512, 1024, 2048)]
    hostile = [kernel(body) for body in HOSTILE]
    kernels = [one for pair in zip(honest, hostile, strict=True) for one in pair]
    expected = [one for status in HOSTILE.values() for one in ("screened", status)]
    watched = Watched(monkeypatch)
    large = replace(fake.accelerator, batch_bytes=8 << 30)  # so all of a group fit
    with KernelJudge(threads=2) as judge:
        answers = judge.screen(problem(), kernels, device=large, time_limit_s=240)
        assert_answered(answers, expected)
        assert [one.kernel_hash for one in answers] == [one.hash for one in kernels]
        forked = bubblewrap.program() is not None
        once = {"references": 1, "opened problems": 1, **({"zygotes": 1} if forked else {})}
        assert watched.started == once
        assert len(watched.processes) == len(kernels)
        # Each group's first calls, in which Triton compiles, began before one was waited for.
        assert max(watched.at_work) == screening.GROUP
        assert not watched.beside_the_clock
        if EVERYTHING:  # a second reference takes as long as all of these
            again = judge.screen(
                problem(), kernels[:1], best=kernels[2], device=large, time_limit_s=240
            )
            assert again[0].status == "screened" and again[0].against_best is not None
            assert watched.started == {**once, "references": 2}


@pytest.mark.parametrize("cores", [2, 4])
def test_as_many_as_there_are_cores_compile_at_once_before_one_is_timed(
    cores: int, fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four kernels, timed in two groups: where there are cores, nobody compiles in between."""
    kernels = [kernel(f"silu = honest  # {at}\n") for at in range(4)]
    monkeypatch.setattr(screening, "GROUP", 2)
    watched = Watched(monkeypatch)
    large = replace(fake.accelerator, batch_bytes=8 << 30)
    with KernelJudge(threads=cores) as judge:
        answers = judge.screen(problem(), kernels, device=large, time_limit_s=240)
    assert_answered(answers, ["screened"] * 4)
    assert max(watched.at_work) == cores
    assert watched.before_the_clock == 2 * cores  # two cases each
    assert not watched.beside_the_clock


def test_the_arms_share_what_is_drawn_for_a_round_and_for_warming(
    fake: FakeDriver, judge: KernelJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each arm gets memory of its own at places of its own; the values are drawn once for all."""
    shared: list[tuple[int, ...]] = []
    addresses: set[str] = set()
    draw, time_together = OpenProblem.draw, screening.time_together

    @contextlib.contextmanager
    def drawn(opened: OpenProblem, *given: Any, **more: Any) -> Iterator[Any]:
        with draw(opened, *given, **more) as batch:
            shared.append(tuple(more.get("seeds", ())))
            addresses.add(repr((batch.layout.slack_pages, batch.layout.calls)))
            yield batch

    def timed(*given: Any, **more: Any) -> Any:
        shared.clear()
        addresses.clear()
        return time_together(*given, **more)

    monkeypatch.setattr(OpenProblem, "draw", drawn)
    monkeypatch.setattr(screening, "time_together", timed)
    kernels = [kernel(HONEST, block) for block in (16, 32, 64)]
    answers = judge.screen(problem(), kernels, device=fake.accelerator, time_limit_s=240)
    assert [one.status for one in answers] == ["screened"] * 3
    assert () not in shared, "an arm drew values of its own"
    again = [one for before, one in itertools.pairwise(shared) if one != before]
    least, most = (
        screening_rounds.LEAST_ROUNDS,
        screening_rounds.ROUNDS,
    )  # a busy machine may end the rounds early
    assert least <= len(again) <= most, "values of a round were drawn more than once"
    assert len(shared) >= 4 * (1 + least)
    assert len(addresses) == len(shared)


def test_kernels_of_the_cores_keep_their_order_beside_a_gpus(
    fake: FakeDriver, judge: KernelJudge
) -> None:
    bad = Kernel(name="cpp", language="cpp", source="x", entry="silu")
    answers = judge.screen(problem(), [bad, kernel(HONEST)], device=fake.accelerator)
    assert [one.status for one in answers] == ["refused", "screened"]
    asked = judge.screen(problem(), [bad], device="cuda")
    assert "use --device cpu" in asked[0].reason


def test_a_gpu_that_is_not_there_is_everyones_answer_in_one_line(judge: KernelJudge) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    (answer,) = judge.screen(problem(), [kernel(HONEST)], device="cuda:1")
    assert answer.status == "unmeasured" and "sees no GPU" in answer.reason
    assert "\n" not in answer.reason


@needs_bubblewrap
def test_where_no_fork_can_open_the_gpu_each_process_starts_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The zygote's trial finds that out: no kernel pays for it."""
    pytest.importorskip("triton")
    fake = build_driver("cuda", open_to_all(tmp_path))
    able = zygote.CandidateZygote.able
    refuses = fake.path.parent / "refuses"
    refuses.write_text("Init")

    def tried(self: zygote.CandidateZygote) -> bool:
        found = able.fget(self)  # type: ignore[attr-defined]
        refuses.unlink(missing_ok=True)
        assert not found
        return bool(found)

    monkeypatch.setattr(zygote.CandidateZygote, "able", property(tried))
    asked = kernel(HONEST)
    unforked = Kernel(
        name="answer",
        language="triton",
        source=asked.source.replace("not True", "not False"),
        entry="silu",
    )
    with KernelJudge(threads=2) as judge:
        (answer,) = judge.screen(problem(), [unforked], device=fake.accelerator)
    assert answer.status == "screened", answer


LEAVES = """
import os
place = os.path.join(os.environ["TRITON_CACHE_DIR"], "KEY", "NAME")
assert not os.path.exists(place), "what another process compiled"
os.makedirs(os.path.dirname(place), exist_ok=True)
open(place, "w").close()
def silu(x, s):
    return (x,)
"""


@pytest.mark.parametrize("name", ["kernel.cubin", "no name of a build"])
def test_what_triton_compiled_reaches_a_candidates_later_processes_and_no_other(
    name: str, fake: FakeDriver, judge: KernelJudge
) -> None:
    def load(process: CandidateProcess) -> str:
        try:
            process.load(asked, None)
        except CandidateFault as error:
            return error.decided.reason
        return ""

    asked = Kernel(
        name="leaves", language="triton", source=LEAVES.replace("NAME", name), entry="silu"
    )
    usual: dict[str, Any] = {"threads": 1, "memory_bytes": 64 << 30, "clock": Clock.of(60)}
    gpu, zygote = fake.accelerator, judge._tools.kernels("triton", fake.accelerator)
    start = functools.partial(CandidateProcess, **usual, accelerator=gpu, zygote=zygote)
    started: dict[str, Any] = {
        "start": start,
        "accelerator": gpu,
        "forks": zygote is not None and zygote.able,
        "timed": 1,
    }
    with contextlib.closing(Launches(asked, **started)) as launches:
        first = launches.load(None)
        launches.share_compiled(first)
        first.pause()
        later = launches._start()
        try:
            is_shared = "what another process compiled" in load(later)
        finally:
            later.close()
    assert is_shared == (name == "kernel.cubin")
    with contextlib.closing(Launches(asked, **started)) as another:
        another.load(None)  # raises if it finds anything


def test_fewer_are_timed_together_where_a_gpu_is_small() -> None:
    from ratchet.judge.trial.open_problem import CaseFacts

    def size(free_bytes: float, case_bytes: float = 1e6) -> int:
        gpu = Accelerator(
            torch_name="cuda:0", dialect="cuda", batch_bytes=int(free_bytes / BATCH_PART)
        )
        case = CaseFacts(name="a", time_s=1.0, flops=1.0, bytes=case_bytes)
        return screening.group_size([case], gpu)

    assert size(80e9) == screening.GROUP
    assert size(80e9, 4e9) < screening.GROUP
    assert size(6e9) < screening.GROUP
    assert size(1e9) == 1


def test_more_wait_where_memory_and_cores_suffice() -> None:
    from ratchet.judge.trial.open_problem import CaseFacts

    def at_once(free_bytes: float, cores: int, case_bytes: float = 5e8) -> int:
        gpu = Accelerator(
            torch_name="cuda:0", dialect="cuda", batch_bytes=int(free_bytes / BATCH_PART)
        )
        case = CaseFacts(name="a", time_s=1.0, flops=1.0, bytes=case_bytes)
        size = screening.group_size([case], gpu)
        return size * screening.groups_at_once(size, [case], cores, gpu)

    assert at_once(79e9, cores=16) == 16
    assert at_once(79e9, cores=2) == screening.GROUP
    assert at_once(79e9, cores=16, case_bytes=2e9) == screening.GROUP
    assert at_once(1e9, cores=16) == 1
