"""Kernels before the judge, in real processes: right ones, wrong ones, and ones that misbehave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import judge_problems as given
import msgspec
import pytest
from answers import assert_right

from ratchet.base.errors import JudgeError, OutOfTime
from ratchet.base.process import ends_within, families
from ratchet.base.process.channel import close_descriptors
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Case, Problem, TensorSpec
from ratchet.judge.sandbox import bubblewrap, isolation
from ratchet.judge.trial import decide, kernel_trial, looks, open_problem, stages
from ratchet.judge.trial.kernel_trial import KernelJudge, why_no_kernels
from ratchet.judge.trial.reference import ReferenceProcess
from ratchet.judge.trial.stages import layout_seed
from ratchet.judge.verdict import Verdict

pytestmark = pytest.mark.compiler
PIDS_OF_A_SANDBOX = 50
"""It counts its own processes from 1."""
python_sandbox = pytest.mark.skipif(
    why_no_kernels() is not None,
    reason="no kernel can be tried on this machine",
)


@pytest.fixture(autouse=True)
def short(
    few_rounds: None, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Few rounds, and little patience where a kernel may never answer."""
    asked = getattr(request.node, "callspec", None)
    how = asked.params.get("how") if asked else None
    if how in MISBEHAVING and "timed_out" in MISBEHAVING[how][1]:
        monkeypatch.setattr(open_problem, "SLOWEST_FLOOR_S", 1.5)


def small() -> Problem:
    """A problem whose cases are all tiny."""
    return given.problem(
        "silu",
        given.case("timed", 16, 32, timed=True),
        given.case("hidden", 3, 5, 7, hidden=True, distribution="shifted"),
    )


def below() -> set[int]:
    """Every living process that this one, or one of those below it, has started."""
    return set(families._descendants(os.getpid())) - {os.getpid()}


@pytest.fixture(scope="module")
def zygotes(judge: KernelJudge) -> None:
    """Those of the compiler run, and stay."""
    judge.judge(given.cpp(given.HONEST), small(), time_limit_s=1e-3)


@pytest.fixture
def others(judge: KernelJudge, zygotes: None) -> Callable[..., set[int]]:
    """What came to run since, beside the reference worker, and still runs after some seconds."""
    # The reference worker forks its rivals' zygote as it starts; both stay.
    _, handed = judge._worker().ask_for_memory(limit_s=60, do="zygote")
    close_descriptors(handed)
    before = below()

    def alive(patience_s: float = 5.0) -> set[int]:
        deadline = time.monotonic() + patience_s
        while True:
            kept = {judge._reference._child.pid} if judge._reference else set()
            left = below() - before - kept
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.05)

    return alive


def test_what_still_runs_is_seen(others: Callable[..., set[int]]) -> None:
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as process:
        assert others(patience_s=0.2) == {process.pid}
        process.kill()
    assert others() == set()


def failed(verdict: Verdict) -> list[str]:
    return [entry.check for entry in verdict.evidence if not entry.passed]


def test_an_honest_kernel_is_right_and_its_samples_are_kept(judge: KernelJudge) -> None:
    verdict = judge.judge(given.cpp(given.HONEST), given.problem())
    assert_right(verdict)
    assert (verdict.speedup.vs_reference is None) == (verdict.status == "unmeasured")
    arms = {sample.arm for sample in verdict.samples}
    # One thread where a call took under a millisecond, which a test cannot know.
    assert arms - {"reference on one thread"} == {"reference", "reference again", "candidate"}
    assert len(verdict.samples) == 2 * 4 * len(arms)
    assert verdict.isolation == isolation.isolation_name()
    assert "correct on hidden" in {entry.check for entry in verdict.evidence}
    assert msgspec.json.decode(msgspec.json.encode(verdict), type=Verdict) == verdict


def test_a_case_that_a_kernel_declines_without_writing_is_no_mistake(judge: KernelJudge) -> None:
    verdict = judge.judge(given.cpp(given.HONEST), given.problem())
    declined = next(entry for entry in verdict.evidence if entry.check == "correct on gaps")
    assert "declined" in declined.detail and declined.passed is None


WRONG = {
    "does nothing": "ENTRY { return 0; }",
    "zeros": "ENTRY { memset(t[1].data, 0, 4 * rows(t) * t->size[t->ndim - 1]); return 0; }",
    "one element": "ENTRY { silu_scale(t, s); ((float*)t[1].data)[5] *= 1.01f; return 0; }",
    "one percent": "ENTRY { double k[1] = {s[0] * 1.01}; return silu_scale(t, k); }",
    "negative code": "ENTRY { silu_scale(t, s); return -3; }",
    "writes, then declines": "ENTRY { silu_scale(t, s); return t->ndim == 3; }",
    "another shape": "ENTRY { if (t->ndim == 3) return 0; return silu_scale(t, s); }",
    "ignores strides": "ENTRY { return silu_scale(t, s); }",
    "changes its input": "ENTRY { silu_scale(t, s); ((float*)t->data)[3] += 1; return 0; }",
    "garbage after three calls": "ENTRY { if (++calls > 3) return 0; return silu_scale(t, s); }",
}


@pytest.mark.parametrize("how", list(WRONG))
def test_a_wrong_answer_is_wrong(judge: KernelJudge, how: str) -> None:
    problem = given.problem() if how == "ignores strides" else small()
    verdict = judge.judge(given.cpp(WRONG[how]), problem)
    assert verdict.status == "wrong", verdict.reason
    if how == "changes its input":
        assert "input 0 was changed" in verdict.reason
    if how.startswith("garbage"):
        assert "wrong while it was" in verdict.reason or "held together" in verdict.reason


def test_an_input_cannot_be_changed_while_it_is_timed(judge: KernelJudge) -> None:
    body = "ENTRY { silu_scale(t, s); if (++calls > 3) ((float*)t->data)[3] += 1; return 0; }"
    verdict = judge.judge(given.cpp(body), small())
    assert verdict.status == "crashed"
    assert "SIGSEGV" in verdict.reason


MISBEHAVING = {
    "segfault": ("ENTRY { *(volatile int*)8 = 1; return 0; }", {"crashed"}, "SIGSEGV"),
    "exit": ("ENTRY { _exit(0); }", {"crashed"}, "exit code 0"),
    "abort": ("ENTRY { abort(); }", {"crashed"}, "SIGABRT"),
    "loop": ("ENTRY { for (volatile int i = 0;; ) (void)i; }", {"timed_out"}, "within"),
    "fork bomb": ("ENTRY { for (;;) fork(); }", {"timed_out", "crashed"}, ""),
    "endless flood": (
        "ENTRY { static char b[65536]; for (;;) { (void)!write(1, b, sizeof b); } }",
        {"timed_out"},
        "",
    ),
    "memory": (
        "ENTRY { for (;;) { void* p = malloc(1 << 28); if (!p) abort(); memset(p, 1, 1 << 12); } }",
        {"crashed", "timed_out"},
        "",
    ),
    "kills its parents": (
        "ENTRY { kill(getppid(), 9); kill(-1, 9); for (;;); }",
        {"crashed", "timed_out"},
        "",
    ),
    "closes everything": (
        "ENTRY { for (int i = 0; i < 64; ++i) close(i); return 0; }",
        {"crashed", "timed_out"},
        "",
    ),
    "garbage on its channel": (
        'ENTRY { for (int i = 3; i < 64; ++i) (void)!write(i, "\\0\\0\\0\\4junk", 8); return 0; }',
        {"crashed"},
        "nonsense",
    ),
    "dies when loaded": (
        "struct S { S() { abort(); } } s0; ENTRY { return silu_scale(t, s); }",
        {"crashed"},
        "load",
    ),
}


@pytest.mark.parametrize("how", list(MISBEHAVING))
def test_what_misbehaves_gets_a_verdict_and_leaves_nothing_behind(
    judge: KernelJudge, how: str, others: Callable[..., set[int]]
) -> None:
    body, statuses, words = MISBEHAVING[how]
    began = time.monotonic()
    verdict = judge.judge(given.cpp("#include <signal.h>\n" + body), small(), time_limit_s=60)
    assert verdict.status in statuses, verdict.reason
    assert words in verdict.reason
    assert verdict.speedup.vs_reference is None
    assert time.monotonic() - began < 65
    assert others() == set()


def test_a_daemon_does_not_survive_and_a_flood_that_ends_is_no_fault(
    judge: KernelJudge, others: Callable[..., set[int]]
) -> None:
    body = r"""
    ENTRY {
        static char b[65536];
        if (!calls++ && !fork()) { setsid(); if (fork()) _exit(0); for (;;) sleep(100); }
        for (int i = 0; i < 64; ++i) (void)!write(2, b, sizeof b);
        return silu_scale(t, s);
    }"""
    verdict = judge.judge(given.cpp(body), small())
    assert_right(verdict)
    assert others() == set()


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (given.cpp("ENTRY { return nonsense; }"), "does not compile"),
        (given.cpp('#include "/etc/shadow"\nENTRY { return 0; }'), "does not compile"),
        (given.cpp(given.HONEST, entry="other"), "no entry 'other'"),
        (given.cpp("ENTRY { return 1; }"), "declines the timed case"),
        pytest.param(given.python("def silu(x"), "SyntaxError", marks=python_sandbox),
        pytest.param(
            given.python("def other(x, s): return (x,)"),
            "defines no function 'silu'",
            marks=python_sandbox,
        ),
    ],
)
def test_a_source_that_is_none_is_refused(judge: KernelJudge, kernel: Kernel, words: str) -> None:
    verdict = judge.judge(kernel, small())
    assert verdict.status == "refused", verdict.reason
    assert words in verdict.reason
    assert "\n" not in verdict.reason


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("constant", "accepts a constant"),
        ("zeros", "accepts a constant, the output for other inputs, zeros"),
        ("identity", "accepts an input passed through"),
        ("raises", "no such thing"),
        ("mutates", "changes input 0"),
        ("no_tuple", "must return a tuple"),
        ("absent", "cannot be loaded"),
    ],
)
def test_a_problem_that_accepts_trivial_answers_or_is_broken_is_refused(
    judge: KernelJudge, reference: str, words: str
) -> None:
    verdict = judge.judge(given.cpp(given.HONEST), given.problem(reference))
    assert verdict.status == "refused"
    assert words in verdict.reason


def test_relu_on_positive_inputs_is_refused_and_on_signed_ones_is_not(judge: KernelJudge) -> None:
    positive = given.problem("rectified", given.case("timed", 8, 32, distribution="positive"))
    assert judge.judge(given.cpp(given.HONEST), positive).status == "refused"
    signed = given.problem("rectified", given.case("timed", 8, 32))
    verdict = judge.judge(given.cpp(given.HONEST), signed)
    assert verdict.status == "wrong"


AXPY = r"""
extern "C" int64_t axpy(const tensor* t, int64_t count, const double* s, int64_t ns) {
    const int64_t n = t->size[0], m = t->size[1];
    float *w = (float*)t[0].data, *g = (float*)t[1].data, *out = (float*)t[2].data;
    for (int64_t i = 0; i < n; ++i) {
        double sum = 0;
        for (int64_t j = 0; j < m; ++j) {
            w[i * m + j] += FACTOR * (float)s[0] * g[i * m + j];
            sum += (double)g[i * m + j] * g[i * m + j];
        }
        out[i] = (float)sum;
    }
    return 0;
}
"""


def axpy(factor: str) -> Kernel:
    return given.cpp(AXPY.replace("FACTOR", factor), entry="axpy")


def axpy_problem() -> Problem:
    inputs = (
        TensorSpec(shape=(40, 33), dtype="float32", in_place=True),
        TensorSpec(shape=(40, 33), dtype="float32"),
    )
    cases = (Case(name="timed", inputs=inputs, scalars=(0.25,), timed=True),)
    return Problem(name="axpy", reference="judge_problems:inplace_axpy", cases=cases)


def test_tensors_changed_in_place_are_judged_by_their_new_values(judge: KernelJudge) -> None:
    assert_right(judge.judge(axpy("1.0f"), axpy_problem()))
    verdict = judge.judge(axpy("1.001f"), axpy_problem())
    assert verdict.status == "wrong"


@python_sandbox
def test_a_kernel_in_python_is_judged_in_the_same_sandbox(judge: KernelJudge) -> None:
    right = "import torch\ndef silu(x, s): return (s[0] * torch.nn.functional.silu(x),)"
    assert_right(judge.judge(given.python(right), small()))
    wrong = "import torch\ndef silu(x, s): return (torch.nn.functional.silu(x),)"
    assert judge.judge(given.python(wrong), small()).status == "wrong"


def test_the_places_of_tensors_come_from_another_seed_than_their_values() -> None:
    found = {layout_seed(secret) for secret in range(1000)}
    assert len(found) == 1000
    assert not found & set(range(1000))
    assert all(0 <= seed < 1 << 48 for seed in found)


def test_a_language_that_cannot_run_here_is_unmeasured(judge: KernelJudge) -> None:
    kernel = Kernel(name="t", language="hip", source="", entry="silu")
    verdict = judge.judge(kernel, small())
    assert verdict.status == "unmeasured"
    assert "ratchet inspect" in verdict.reason


def test_a_fault_of_the_judge_is_unmeasured_and_the_next_verdict_is_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with KernelJudge() as judge:
        whole = ReferenceProcess.ask_for_memory

        def faulty(self: ReferenceProcess, **message: object) -> object:
            if message["do"] == "check":
                os.kill(self._child.pid, signal.SIGKILL)
            return whole(self, **message)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(ReferenceProcess, "ask_for_memory", faulty)
            verdict = judge.judge(given.cpp(given.HONEST), small())
        assert verdict.status == "unmeasured"
        assert "died during 'check'" in verdict.reason
        assert_right(judge.judge(given.cpp(given.HONEST), small()))


def test_a_measurement_that_fails_is_never_a_win(
    judge: KernelJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise JudgeError("the clock stood still")

    with monkeypatch.context() as patch:
        patch.setattr("ratchet.base.measure.rounds.run_rounds", broken)
        verdict = judge.judge(given.cpp(given.HONEST), small())
    assert verdict.status == "unmeasured"
    assert verdict.speedup.vs_reference is None


def test_a_time_under_the_floor_is_measured_again_and_then_no_win(
    judge: KernelJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (decide, looks):
        monkeypatch.setattr(module, "reachable", lambda *_: (False, "no machine is so fast"))
    verdict = judge.judge(given.cpp(given.HONEST), given.problem())
    assert verdict.status == "unmeasured"
    assert "cannot reach" in verdict.reason
    assert verdict.speedup.vs_reference is None
    assert any("measured again" in one.detail for one in verdict.evidence)


def test_a_candidate_sees_neither_the_machine_nor_root(judge: KernelJudge) -> None:
    if bubblewrap.program() is None:
        pytest.skip("bubblewrap does not work on this machine")
    body = r"""
    #include <fcntl.h>
    #include <sys/socket.h>
    ENTRY {
        if (getuid() == 0 || geteuid() == 0) return -2;
        if (access("/etc/passwd", R_OK) == 0 || access("HERE", F_OK) == 0) return -3;
        if (open("/usr/ratchet-test", O_CREAT | O_WRONLY, 0600) >= 0) return -4;
        if (access("/proc/1/cmdline", R_OK) != 0) return -5;
        const int others[] = {HOST_PIDS};
        for (int pid : others)
            if (kill(pid, 0) == 0 || errno != ESRCH) return -6;
        return silu_scale(t, s);
    }"""
    assert_right(judge.judge(given.cpp(given.HONEST), small()))
    own = judge.reference_pid
    assert own is not None and own != os.getpid()
    with subprocess.Popen(["sleep", "60"]) as other:  # of nobody's namespace
        pids = [pid for pid in (os.getpid(), own, other.pid) if pid > PIDS_OF_A_SANDBOX]
        if not pids:
            pytest.skip("all numbers are so low that the sandbox may have processes of its own")
        body = body.replace("HERE", str(Path(__file__)))
        body = body.replace("HOST_PIDS", ", ".join(map(str, pids)))
        verdict = judge.judge(
            given.cpp("#include <errno.h>\n#include <signal.h>\n" + body), small()
        )
        assert judge.reference_pid == own
        other.kill()
    assert_right(verdict)


def test_without_bubblewrap_the_verdict_says_so_and_faults_are_still_caught(
    monkeypatch: pytest.MonkeyPatch, others: Callable[..., set[int]]
) -> None:
    monkeypatch.setattr(bubblewrap, "program", lambda: None)
    with KernelJudge() as judge:
        verdict = judge.judge(given.cpp(given.HONEST), small())
        assert_right(verdict)
        assert "no namespaces" in verdict.isolation
        body, statuses, _ = MISBEHAVING["loop"]
        assert judge.judge(given.cpp(body), small()).status in statuses
    assert others() == set()


def test_the_candidates_worker_imports_neither_torch_nor_numpy() -> None:
    source = Path(isolation.__file__).parents[3]
    program = (
        f"import sys; sys.path.insert(0, {str(source)!r})\n"
        "import ratchet.judge.workers.candidate.cpp\n"
        "assert not {'torch', 'numpy', 'msgspec'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True)


def test_the_secret_seed_is_in_no_command_line_and_no_environment(judge: KernelJudge) -> None:
    seed = 123456789012345
    seen: list[str] = []
    made = isolation.make_sandbox

    def spy(*arguments: object, **named: object) -> isolation.Sandbox:
        sandbox = made(*arguments, **named)  # type: ignore[arg-type]
        seen.append(repr(sandbox))
        return sandbox

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ratchet.judge.trial.candidate.make_sandbox", spy)
        judge.judge(given.cpp(given.HONEST), small(), seed=seed)
    assert seen
    assert not any(str(seed) in text for text in seen)


NOT_INF = """
ENTRY {
    if (!contiguous(t)) return 1;
    for (int64_t i = 0; i < rows(t) * t->size[t->ndim - 1]; ++i) {
        const float y = expf((float)s[0] * ((const float*)t[0].data)[i]);
        ((float*)t[1].data)[i] = isinf(y) ? NAN : y;
    }
    return 0;
}"""
"""Another special value than the reference's, where that overflows."""


@pytest.mark.parametrize(("hidden_scalar", "status"), [(0.001, "right"), (10.0, "wrong")])
def test_only_a_case_s_own_values_must_overflow_alike(
    judge: KernelJudge, hidden_scalar: float, status: str
) -> None:
    """Values of 40 in the mean are the hidden case's, and the factor the timed one's."""
    cases = (
        given.case("timed", 96, 64, timed=True),
        given.case("hidden", 5, 17, hidden=True, distribution="large"),
    )
    cases = tuple(replace(one, scalars=(hidden_scalar if one.hidden else 10.0,)) for one in cases)
    verdict = judge.judge(given.cpp(NOT_INF), given.problem("exponential", *cases))
    if status == "wrong":
        assert verdict.status == "wrong", verdict.reason
        assert "case hidden" in verdict.reason
        return
    assert_right(verdict)
    (varied,) = [one.detail for one in verdict.evidence if one.check.endswith("varied")]
    assert "overflows" in varied


def test_a_time_limit_that_is_over_leaves_a_right_kernel_correct(judge: KernelJudge) -> None:
    verdict = judge.judge(given.cpp(given.HONEST), small(), time_limit_s=1e-3)
    assert verdict.status == "correct", verdict.reason
    assert verdict.not_timed and verdict.not_timed in verdict.reason
    assert verdict.speedup.vs_reference is None
    wrong = judge.judge(given.cpp(WRONG["one percent"]), small(), time_limit_s=1e-3)
    assert wrong.status == "wrong"


@pytest.mark.parametrize("direct", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_the_users_limit_ends_every_wait(
    direct: bool, judge: KernelJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A direct call of the judge has a grace, which is none here."""
    endless = given.cpp("ENTRY { for (volatile int i = 0;; ) i = 1; }")
    began = time.monotonic()
    if direct:
        monkeypatch.setattr(kernel_trial, "GRACE_S", 0.0)
        verdict = judge.judge(endless, small(), time_limit_s=6.0)
    else:
        with ends_within(6.0):
            verdict = judge.judge(endless, small(), time_limit_s=6.0)
    assert verdict.status == "unmeasured", verdict.reason
    assert "the time limit of 6 s is over" in verdict.reason and "--time-limit" in verdict.reason
    assert time.monotonic() - began < 60.0, "without the limit the kernel has its own, of work"
    assert judge.judge(given.cpp(given.HONEST), small()).status in ("proven", "correct")


def test_where_the_limit_ends_the_timing_a_kernel_is_right(
    judge: KernelJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    def over(*_: object) -> None:
        raise OutOfTime("the time ran out during 'go'")

    monkeypatch.setattr(stages, "time_until_answered", over)
    verdict = judge.judge(given.cpp(given.HONEST), small(), time_limit_s=30.0)
    assert verdict.status == "correct", verdict.reason
    assert "the time limit of 30 s is over" in verdict.not_timed
    assert verdict.speedup.vs_reference is None


def test_a_library_call_is_found_where_nothing_can_be_timed(judge: KernelJudge) -> None:
    source = "import torch\ndef silu(x, s): return (torch.nn.functional.silu(x).mul_(s[0]),)"
    asked = replace(small(), task="own")
    verdict = judge.judge(given.python(source), asked, time_limit_s=1e-3)
    assert verdict.status == "cheating", verdict.reason


COMPILES = """
import time
import torch

met = set()


def silu(x, s):
    if x.shape not in met or EVERY_TIME:
        met.add(x.shape)
        began = time.process_time()
        while time.process_time() - began < 1.5:
            pass
    return (s[0] * torch.nn.functional.silu(x),)
"""


@python_sandbox
@pytest.mark.parametrize("every_time", [False, True])
def test_a_first_call_that_compiles_is_not_too_slow_and_each_that_does_is(
    judge: KernelJudge, monkeypatch: pytest.MonkeyPatch, every_time: bool
) -> None:
    monkeypatch.setattr(open_problem, "SLOWEST_FLOOR_S", 0.5)
    monkeypatch.setattr(open_problem, "SLOWEST_FACTOR", 0.0)
    kernel = given.python(COMPILES.replace("EVERY_TIME", str(every_time)))
    verdict = judge.judge(kernel, small())
    if not every_time:
        assert_right(verdict)
        return
    assert verdict.status == "timed_out", verdict.reason
    assert "of work" in verdict.reason
