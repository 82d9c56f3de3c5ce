"""The reference as a rival: started anew in each launch, and treated as the candidate is."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import judge_problems as given
import pytest
from answers import assert_right
from torch.overrides import TorchFunctionMode

from ratchet.base.process import families
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.problem_file import load_problem
from ratchet.judge.sandbox import view
from ratchet.judge.trial.arms import CANDIDATE, REFERENCE, TWIN, RivalArm
from ratchet.judge.trial.candidate import CandidateProcess
from ratchet.judge.trial.kernel_trial import KernelJudge
from ratchet.judge.trial.open_problem import OpenProblem
from ratchet.judge.trial.reference import RivalProcess, Rivals
from ratchet.judge.workers import first_calls

pytestmark = pytest.mark.compiler
PYTHON = (
    "import torch\ndef silu(x, s):\n    y = x * s[0]\n    return (y * (1 / (1 + torch.exp(-x))),)"
)
LIBRARIES = re.compile(r"/(libtorch_cpu|libtorch_python|libc|libpython\S*|libgomp)\b")


def small() -> Problem:
    return given.problem(
        "silu", given.case("timed", 16, 32, timed=True), given.case("hidden", 3, 5, hidden=True)
    )


class Seen:
    """What the judge did with both arms over one verdict."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rivals: list[tuple[str, int]] = []
        """Name and process of each arm of the reference, in the order of their first batches."""
        self.rounds: defaultdict[tuple[int, ...], int] = defaultdict(int)
        """How many batches had each list of seeds."""
        self.memories: list[tuple[int, int]] = []
        self.places: dict[str, dict[str, str]] = {}
        """Where the libraries of either arm lie."""
        run, draw = RivalArm.run, OpenProblem.draw
        go, rival_go = CandidateProcess.go, RivalProcess.go

        def noted_run(arm: RivalArm, iterations: int) -> Any:
            if (arm.name, arm.process.pid) not in self.rivals:
                self.rivals.append((arm.name, arm.process.pid))
            return run(arm, iterations)

        @contextlib.contextmanager
        def noted_draw(
            opened: OpenProblem, *places: Any, seeds: Sequence[int] = (), **named: Any
        ) -> Iterator[Any]:
            with draw(opened, *places, seeds=seeds, **named) as batch:
                if seeds:
                    self.rounds[tuple(seeds)] += 1
                    found = os.fstat(batch.memories[0])
                    self.memories.append((found.st_dev, found.st_ino))
                yield batch

        def noted_go(process: CandidateProcess, *places: Any, **named: Any) -> Any:
            found = go(process, *places, **named)
            self.places.setdefault(CANDIDATE, libraries(process._child.sender))
            return found

        def noted_rival_go(process: RivalProcess, memories: Sequence[int], *more: Any) -> Any:
            found = rival_go(process, memories, *more)
            self.places.setdefault(REFERENCE, libraries(process.pid))
            return found

        monkeypatch.setattr(RivalArm, "run", noted_run)
        monkeypatch.setattr(OpenProblem, "draw", noted_draw)
        monkeypatch.setattr(CandidateProcess, "go", noted_go)
        monkeypatch.setattr(RivalProcess, "go", noted_rival_go)


def libraries(pid: int) -> dict[str, str]:
    """The first address of each library of torch's and Python's in a process."""
    found: dict[str, str] = {}
    try:
        text = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
    except PermissionError:  # it hides its memory from others of its user
        return {}
    for line in text.splitlines():
        if LIBRARIES.search(line):
            found.setdefault(Path(line.split()[-1]).name, line.partition("-")[0])
    return found


def test_every_launch_starts_the_reference_and_its_twin_anew_on_the_candidate_s_values(
    judge: KernelJudge, few_rounds: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen(monkeypatch)
    verdict = judge.judge(given.cpp(given.HONEST), small())
    by_name = {name: [pid for one, pid in seen.rivals if one == name] for name in (REFERENCE, TWIN)}
    launches = {sample.launch for sample in verdict.samples}
    assert len(by_name[REFERENCE]) == len(by_name[TWIN]) == len(launches) == 2
    pids = [pid for _, pid in seen.rivals]
    assert len(set(pids)) == len(pids)
    assert not any(families.read_state(pid) for pid in pids), "they end with their launch"
    arms = {sample.arm for sample in verdict.samples}
    rounds = {(sample.launch, sample.round) for sample in verdict.samples}
    warm, *timed = seen.rounds.values()
    assert warm >= len(launches) * len(arms), "all warm batches share their values"
    assert timed == [len(arms)] * len(rounds)
    assert len(set(seen.memories)) == len(seen.memories), "each batch has memory of its own"


def test_rivals_are_forked_where_the_reference_s_imports_are_done(
    judge: KernelJudge, few_rounds: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    parents: list[int] = []
    begin = Rivals.begin

    def noted(rivals: Rivals, **named: Any) -> RivalProcess:
        found = begin(rivals, **named)
        state = families.read_state(found.pid)
        assert state is not None and rivals._own is not None and rivals._own.able
        parents.append(state.parent)
        return found

    monkeypatch.setattr(Rivals, "begin", noted)
    judge.begin("cpp")
    begun = judge.reference_pid
    assert judge.judge(given.cpp(given.HONEST), small()).status in ("correct", "proven")
    assert begun is not None and judge.reference_pid == begun, "what has begun is used"
    assert len(set(parents)) == 1
    assert families.read_state(parents[0]) is None, "it ends with the verdict"


@pytest.mark.skipif(not view.fixed_layout(), reason="setarch is missing, or may not be used")
def test_both_arms_have_their_libraries_at_the_same_places(
    judge: KernelJudge, few_rounds: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen(monkeypatch)
    judge.judge(given.python(PYTHON), small())
    if not all(seen.places.values()):
        pytest.skip("this user may not see where another process's libraries lie")
    assert len(seen.places[REFERENCE]) >= 4
    assert seen.places[REFERENCE] == seen.places[CANDIDATE]


def test_a_reference_that_dies_while_it_is_timed_is_the_judge_s_fault(
    judge: KernelJudge, few_rounds: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = RivalProcess.prepare

    def deadly(process: RivalProcess, *places: Any) -> None:
        os.kill(process.pid, signal.SIGKILL)
        prepare(process, *places)

    monkeypatch.setattr(RivalProcess, "prepare", deadly)
    verdict = judge.judge(given.cpp(given.HONEST), small())
    assert verdict.status == "unmeasured"
    assert "the reference's process failed" in verdict.reason


def test_what_the_reference_started_ends_with_its_worker(
    few_rounds: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    begin = Rivals.begin

    def deadly(rivals: Rivals, **named: Any) -> RivalProcess:
        found = begin(rivals, **named)
        started.append(found.pid)
        if len(started) == 2:
            os.kill(rivals._reference.pid, signal.SIGKILL)
        return found

    monkeypatch.setattr(Rivals, "begin", deadly)
    with KernelJudge() as judge:
        assert judge.judge(given.cpp(given.HONEST), small()).status == "unmeasured"
        deadline = time.monotonic() + 30
        while any((s := families.read_state(pid)) and s.alive for pid in started):
            assert time.monotonic() < deadline
            time.sleep(0.01)


RECTIFIED = """ENTRY {
    const int64_t n = rows(t) * t->size[t->ndim - 1];
    for (int64_t i = 0; i < n; ++i) {
        const float x = ((const float*)t[0].data)[i];
        ((float*)t[1].data)[i] = x > 0 ? x : 0;
    }
    return 0;
}"""


@pytest.mark.parametrize(("rows", "arms"), [(16, 3), (512, 4)])
def test_only_a_reference_that_starts_a_second_thread_is_also_timed_on_one(
    rows: int, arms: int, judge: KernelJudge, few_rounds: None
) -> None:
    """torch shares out such an operation from 32,768 elements on."""
    problem = given.problem("rectified", given.case("timed", rows, 256, timed=True))
    verdict = judge.judge(given.cpp(RECTIFIED), problem)
    found = len({sample.arm for sample in verdict.samples})
    assert found == (arms if judge.threads > 1 else 3), verdict.reason


FIRST_CALLS = """
import sys

import torch
from ratchet import Case, Problem, TensorSpec

def twice(x, scalars):
    made = sys.modules["ratchet.judge.workers.first_calls"].make_first_calls.cache_info()
    assert made.currsize == 1
    return (x + x,)

ROWS = TensorSpec(shape=(32, 64), dtype="float32")
PROBLEM = Problem(name="twice", reference="twice", cases=(
    Case(name="rows", timed=True, inputs=(ROWS,)),
))
"""


def test_no_thread_of_an_arm_makes_mkls_first_call_beside_another(
    judge: KernelJudge, tmp_path: Path
) -> None:
    """In every process of a verdict: two first calls at once may give half of the digits."""
    path = tmp_path / "twice.py"
    path.write_text(FIRST_CALLS)
    source = FIRST_CALLS.partition("ROWS")[0].replace("from ratchet import", "# ")
    kernel = Kernel(name="twice", language="torch", source=source, entry="twice")
    assert_right(judge.judge(kernel, load_problem(path, describe=judge.describe)))


class Called(TorchFunctionMode):
    """Counts the calls of torch's functions."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.names[getattr(function, "__name__", "")] += 1
        return function(*args, **(kwargs or {}))


def test_first_calls_of_all_functions_are_made_once() -> None:
    first_calls.make_first_calls.cache_clear()
    with Called() as called:
        first_calls.make_first_calls()
        first_calls.make_first_calls()
    assert {called.names[name] for name in first_calls.FUNCTIONS} == {len(first_calls.DTYPES)}
