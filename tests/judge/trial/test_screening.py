"""Screening: many kernels in one call, each with its own answer, and none of them a proof."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import judge_problems as given
import pytest
import torch
from answers import assert_right

import ratchet
from ratchet.base.errors import CompilerMissing
from ratchet.base.process import families
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.languages import cpp
from ratchet.judge.problems.problem import Problem
from ratchet.judge.sandbox import bubblewrap, confine
from ratchet.judge.trial import candidate, compiling, screening
from ratchet.judge.trial import compiling as compile_pool
from ratchet.judge.trial.kernel_trial import KernelJudge
from ratchet.judge.trial.open_problem import CaseFacts
from ratchet.judge.verdict import Screening

WRONG = "ENTRY { silu_scale(t, s); ((float*)t[1].data)[0] += 1; return 0; }"
WRONG_ON_SOME_SIZES = (
    "ENTRY { return contiguous(t) && t->ndim == 3 ? 0 : !contiguous(t) ? 1 : silu_scale(t, s); }"
)
CRASHES = "ENTRY { abort(); }"
HANGS = "ENTRY { for (volatile int i = 0;; ++i) {} }"
BOMBS = "ENTRY { for (;;) fork(); }"
WRITES_NOTHING = "ENTRY { return 0; }"
SLOW = """ENTRY {
    if (!contiguous(t)) return 1;
    for (int i = 0; i < 50; ++i) { silu_scale(t, s); asm volatile("" ::: "memory"); }
    return 0;
}"""
BROKEN = "ENTRY { return no_such_name; }"
NO_ENTRY = 'extern "C" int64_t other(const tensor*, int64_t, const double*, int64_t) { return 0; }'
REFERENCE = """
import torch
def silu(x, s):
    scaled = x * s[0]
    return (scaled * (1 / (1 + torch.exp(-x))),)
"""
TRITON = """
import torch, triton
import triton.language as tl

@triton.jit
def kernel(x, y, n, k, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + at, mask=at < n, other=0.0)
    tl.store(y + at, FACTOR * v / (1 + tl.exp(-v)), mask=at < n)

def silu(x, s):
    x = x.contiguous()
    y = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), s[0], B=1024)
    return (y,)
"""
ENDLESS = (
    """
constexpr long work() {
    long n = 0;
    for (int i = 0; i < 9000; ++i) for (int j = 0; j < 9000; ++j) n += i ^ j;
    return n;
}
static_assert(work() != 1);
"""
    + given.HONEST
)
HEMMED_IN = r"""
ENTRY {  // returns which of a sandbox's limits it misses
    FILE* file = fopen("/proc/self/status", "r");
    char line[256];
    unsigned long capabilities = 1;
    int uid = 0, privileges = 0, filter = 0, code = 0;
    while (file && fgets(line, sizeof line, file)) {
        sscanf(line, "Uid: %d", &uid);
        sscanf(line, "CapBnd: %lx", &capabilities);
        sscanf(line, "NoNewPrivs: %d", &privileges);
        sscanf(line, "Seccomp: %d", &filter);
    }
    if (file) fclose(file);
    if (AS_ROOT && (uid < 1000000000 || capabilities)) code = -1;
    if (privileges != 1) code = -2;
    if (FILTERED && filter != 2) code = -3;
    if (getppid() != 1) code = -4;
    if (!calls++) {
        if (fopen("/tmp/left-by-a-candidate", "r")) code = -5;
        if (!fopen("/tmp/left-by-a-candidate", "w")) code = -6;
    }
    return code ? code : contiguous(t) ? silu_scale(t, s) : 1;
}
"""
needs_bubblewrap = pytest.mark.skipif(
    bubblewrap.program() is None, reason="bubblewrap does not work here"
)


@pytest.fixture(scope="module")
def judge(judge: KernelJudge) -> KernelJudge:
    """The session's judge; skips where nothing can be compiled."""
    try:
        cpp.find_compiler()
    except CompilerMissing as error:
        pytest.skip(str(error))
    return judge


def statuses(answers: tuple[Screening, ...]) -> list[str]:
    return [one.status for one in answers]


def assert_timed(answer: Screening) -> None:
    assert answer.status == "screened", answer.reason
    assert answer.ratio is not None and answer.low is not None and answer.high is not None
    assert 0 < answer.low <= answer.ratio <= answer.high
    assert answer.time_s is not None and answer.time_s > 0


def assert_not_timed(answer: Screening) -> None:
    found = (answer.ratio, answer.low, answer.high, answer.time_s, answer.against_best)
    assert found == (None,) * 5
    assert answer.reason and answer.evidence


def test_each_of_many_gets_its_own_answer(judge: KernelJudge, few_rounds: None) -> None:
    bodies = {
        HANGS: "timed_out",
        given.HONEST: "screened",
        WRONG: "wrong",
        CRASHES: "crashed",
        BOMBS: "timed_out crashed",
        SLOW: "screened",
        BROKEN: "refused",
        WRITES_NOTHING: "wrong",
        NO_ENTRY: "refused",
        f"{given.HONEST}//": "screened",
    }
    kernels = [given.cpp(body) for body in bodies]
    asked = given.problem()
    answers = judge.screen(asked, kernels, best=given.cpp(given.HONEST))
    assert [one.kernel_hash for one in answers] == [one.hash for one in kernels]
    for answer, expected in zip(answers, bodies.values(), strict=True):
        assert answer.status in expected.split(), (expected, answer)
        if expected == "screened":
            assert_timed(answer)
            assert answer.against_best is not None
        else:
            assert_not_timed(answer)
    by_body = dict(zip(bodies, answers, strict=True))
    assert "NaN" in by_body[WRITES_NOTHING].reason
    assert "does not compile" in by_body[BROKEN].reason
    slow, honest = by_body[SLOW].ratio, by_body[given.HONEST].ratio
    assert slow is not None and honest is not None and slow < honest
    # The worker that screened is as good for a verdict, and the other way round.
    assert_right(judge.judge(given.cpp(given.HONEST), asked, time_limit_s=240))
    assert_timed(*judge.screen(asked, [given.cpp(given.HONEST)]))


def test_kernels_in_python_are_screened_too(judge: KernelJudge) -> None:
    sources = {
        REFERENCE: "screened",
        "def silu(x, s):\n    return (x,)": "wrong",
        "def silu(x, s):\n    return x": "wrong",
        "def silu(x, s):\n    raise ValueError('no')": "crashed",
        "import os\nos._exit(3)": "crashed",
        "import torch\ndef silu(x, s):\n    return (torch.empty_like(x),)": "wrong",
        "x = ": "refused",
    }
    answers = judge.screen(given.problem(), [given.python(one) for one in sources])
    assert statuses(answers) == list(sources.values())
    assert_timed(answers[0])


def test_compiled_kernels_and_python_s_keep_their_order(judge: KernelJudge) -> None:
    kernels = [given.python(REFERENCE), given.cpp(given.HONEST), given.python("silu = 1")]
    answers = judge.screen(given.problem(), kernels, best=given.python(REFERENCE))
    assert statuses(answers) == ["screened", "screened", "refused"]
    assert [one.kernel_hash for one in answers] == [one.hash for one in kernels]


@pytest.mark.parametrize("best", [CRASHES, BROKEN, WRONG])
def test_a_best_that_fails_costs_the_others_nothing(judge: KernelJudge, best: str) -> None:
    (answer,) = judge.screen(given.problem(), [given.cpp(given.HONEST)], best=given.cpp(best))
    assert_timed(answer)
    assert answer.against_best is None
    assert any("the best so far was not timed" in line for line in answer.evidence)


def test_a_problem_stays_open_until_another_is_judged(
    judge: KernelJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Problem] = []
    describe = screening.described_cases

    def count(problem: Problem, *asked: Any, **more: Any) -> Any:
        opened.append(problem)
        return describe(problem, *asked, **more)

    judge._screener.forget_problem()
    monkeypatch.setattr(screening, "described_cases", count)
    kernels, asked = [given.cpp(WRITES_NOTHING)], given.problem()
    other = given.problem("exponential")
    for problem, times in ((asked, 1), (asked, 1), (other, 2), (asked, 3)):
        judge.screen(problem, kernels)
        assert len(opened) == times
    judge.judge(given.cpp(WRITES_NOTHING), asked)
    judge.screen(asked, kernels)
    assert len(opened) == 4


def test_one_source_is_compiled_once(judge: KernelJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    library = compile_pool.Library

    def count(kernel: Kernel, **more: Any) -> compiling.Library:
        built.append(kernel.build_hash)
        return library(kernel, **more)

    monkeypatch.setattr(compile_pool, "Library", count)
    once = given.cpp(f"{given.HONEST}// once")
    for _ in range(2):
        answers = judge.screen(given.problem(), [once, once])
        assert statuses(answers) == ["screened", "screened"]
    assert built == [once.build_hash]


def test_a_verdict_takes_the_library_that_was_screened(
    judge: KernelJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    begin = candidate.CandidateProcess.start_compiling

    def count(self: candidate.CandidateProcess, kernel: Kernel) -> None:
        compiled.append(kernel.build_hash)
        begin(self, kernel)

    monkeypatch.setattr(candidate.CandidateProcess, "start_compiling", count)
    screened, judged = (given.cpp(f"{given.HONEST}// {one} first") for one in ("seen", "judged"))
    untimed = given.problem().untimed()
    assert statuses(judge.screen(given.problem(), [screened])) == ["screened"]
    assert_right(judge.judge(screened, untimed))
    for _ in range(2):
        assert_right(judge.judge(judged, untimed))
    assert compiled == [screened.build_hash, judged.build_hash]


def test_a_compiler_without_end_costs_the_others_nothing(
    judge: KernelJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not cpp.is_gcc(cpp.find_compiler()):
        pytest.skip("another compiler gives such a source up at once")
    monkeypatch.setattr(compile_pool, "COMPILE_S", 1.5)
    kernels = [given.cpp(ENDLESS), given.cpp(f"{given.HONEST}// beside it")]
    answers = judge.screen(given.problem(), kernels)
    assert statuses(answers) == ["timed_out", "screened"]
    assert "its compiler" in answers[0].reason


def test_fewer_are_timed_together_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CaseFacts(name="a", time_s=1.0, flops=1.0, bytes=100.0)
    for free, size in ((1e9, screening.GROUP), (8 * 400, 4), (8 * 100, 1), (0, 1)):
        monkeypatch.setattr(screening, "free_bytes", lambda free=free: free)
        assert screening.group_size([case]) == size


def test_a_problem_that_is_no_good_is_everyone_s_answer(judge: KernelJudge) -> None:
    kernels = [given.cpp(given.HONEST), given.python(REFERENCE)]
    for reference, words in (("constant", "accepts"), ("raises", "no such thing")):
        for answer in judge.screen(given.problem(reference), kernels):
            assert answer.status == "refused" and words in answer.reason
    faulty = replace(given.problem(), fault="it is odd")
    assert statuses(judge.screen(faulty, kernels)) == ["refused", "refused"]
    assert judge.screen(given.problem(), []) == ()


def test_what_cannot_be_timed_is_unmeasured(judge: KernelJudge) -> None:
    (answer,) = judge.screen(given.problem().untimed(), [given.cpp(given.HONEST)])
    assert answer.status == "unmeasured" and answer.reason.startswith("right on the cases")
    hip = Kernel(name="h", language="hip", source="", entry="silu")
    answers = judge.screen(given.problem(), [hip, given.cpp(given.HONEST)])
    assert statuses(answers) == ["unmeasured", "screened"]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU nothing is interpreted")
def test_triton_s_kernels_are_checked_in_the_interpreter(judge: KernelJudge) -> None:
    kernels = [
        Kernel(name="t", language="triton", source=TRITON.replace("FACTOR", factor), entry="silu")
        for factor in ("k", "k + 1")
    ]
    answers = judge.screen(given.problem(), [kernels[0], given.cpp(given.HONEST), kernels[1]])
    assert statuses(answers) == ["unmeasured", "screened", "wrong"]
    assert "there is no GPU" in answers[0].reason
    assert [one.kernel_hash for one in answers][::2] == [one.hash for one in kernels]


def test_a_kernel_that_declines_the_timed_case_is_refused(judge: KernelJudge) -> None:
    (answer,) = judge.screen(given.problem(), [given.cpp("ENTRY { return 1; }")])
    assert answer.status == "refused" and "declines" in answer.reason


def test_the_cases_are_drawn_anew_in_each_call(judge: KernelJudge) -> None:
    found = set()
    for seed in range(12):
        (answer,) = judge.screen(given.problem(), [given.cpp(WRONG_ON_SOME_SIZES)], seed=seed)
        found.add(answer.status)
    assert found == {"screened", "wrong"}


def test_when_time_is_over_the_rest_is_unmeasured(
    judge: KernelJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screening, "GROUP", 1)
    kernels = [given.cpp(f"{HANGS}// {at}") for at in range(3)]
    answers = judge.screen(given.problem(), kernels, time_limit_s=1e-6)
    assert set(statuses(answers)) == {"unmeasured"}
    assert "ran out" in answers[-1].reason


@needs_bubblewrap
def test_every_candidate_is_hemmed_in_alone(judge: KernelJudge) -> None:
    root, filtered = int(os.geteuid() == 0), int(confine.known())
    body = HEMMED_IN.replace("AS_ROOT", str(root)).replace("FILTERED", str(filtered))
    kernels = [given.cpp(f"{body}// {at}") for at in range(2)]
    for answer in judge.screen(given.problem(), kernels):
        assert_timed(answer)


def test_without_namespaces_each_process_starts_anew(
    judge: KernelJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bubblewrap, "program", lambda: None)
    bodies = (given.HONEST, WRONG)
    kernels = [given.cpp(f"{body}// anew") for body in bodies]
    assert statuses(judge.screen(given.problem(), kernels)) == ["screened", "wrong"]


def test_a_fault_of_the_judge_is_nobody_s_win(
    judge: KernelJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = [given.cpp(given.HONEST), given.cpp(WRONG)]
    time_together = screening.time_together

    def fail(*asked: object, **more: object) -> object:
        assert judge.reference_pid is not None
        os.kill(judge.reference_pid, signal.SIGKILL)
        return time_together(*asked, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(screening, "time_together", fail)
        answers = judge.screen(given.problem(), kernels)
    assert statuses(answers) == ["unmeasured", "wrong"]
    assert "the judge could not do its work" in answers[0].reason
    assert_timed(*judge.screen(given.problem(), kernels[:1]))


def test_the_library_call_takes_names_and_files(tmp_path: Path) -> None:
    kernel = tmp_path / "kernel.py"
    kernel.write_text(
        "import torch\ndef squared_relu(x, s):\n    return (torch.relu(x).square(),)\n"
    )
    bad = tmp_path / "bad.py"
    bad.write_text("def squared_relu(x, s):\n    return (x,)\n")
    answers = ratchet.judge.screen("squared_relu", [kernel, bad], best=kernel, tier="ci", threads=1)
    assert statuses(answers) == ["screened", "wrong"]
    with pytest.raises(ratchet.RatchetError, match="missing"):
        ratchet.judge.screen("squared_relu", [tmp_path / "missing.py"])


SCREENING = """
import json, sys
from ratchet.judge.trial.kernel_trial import KernelJudge
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Problem

kernels, problem = json.loads(sys.argv[1])
with KernelJudge() as judge:
    problem = Problem.from_json(problem)
    kernels = [Kernel.from_json(one) for one in kernels]
    judge.screen(problem, kernels[:1])
    print("ready", flush=True)
    judge.screen(problem, kernels)
"""


@pytest.mark.parametrize("delay_s", [pytest.param(0.02, marks=pytest.mark.thorough), 0.6])
def test_a_killed_screening_leaves_no_process(judge: KernelJudge, delay_s: float) -> None:
    kernels = [given.cpp(f"{body}// {at}") for at in range(4) for body in (given.HONEST, HANGS)]
    asked = json.dumps([[one.as_json() for one in kernels], given.problem().as_json()])
    folders = [str(Path(ratchet.__file__).parents[1]), str(Path(given.__file__).parent)]
    program = subprocess.Popen(
        [sys.executable, "-c", SCREENING, asked],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        text=True,
    )
    assert program.stdout is not None
    with program.stdout as lines:
        while lines.readline().strip() != "ready":
            assert program.poll() is None
    time.sleep(delay_s)
    os.kill(program.pid, signal.SIGSTOP)
    family = set(families.family(program.pid, enclosed=True)) - {program.pid}
    program.kill()
    program.wait()
    assert len(family) > 3
    deadline = time.monotonic() + 15
    while left := [pid for pid in family if _runs(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    state = families.read_state(pid)
    return state is not None and state.alive
