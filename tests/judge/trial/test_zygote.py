"""Candidates in Python are forked from one process that has torch: as new ones, only sooner."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

import judge_problems as given
import pytest
from answers import assert_right

from ratchet.base.process import Clock
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Problem
from ratchet.judge.sandbox import bubblewrap
from ratchet.judge.sandbox.zygote import CandidateZygote
from ratchet.judge.trial.candidate import CandidateProcess
from ratchet.judge.trial.kernel_trial import KernelJudge
from ratchet.judge.verdict import CandidateFault

pytestmark = pytest.mark.skipif(
    bubblewrap.program() is None, reason="bubblewrap does not work here"
)
STATE = """
import gc, json, os, random, resource, signal, sys
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
names = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs")
limits = [name for name in dir(resource) if name.startswith("RLIMIT")]
told = {
    "status": {name: status[name].split() for name in (*names, "Seccomp")},
    "limits": {name: resource.getrlimit(getattr(resource, name)) for name in limits},
    "signals": [str(signal.getsignal(number)) for number in (2, 13, 15)],
    "environment": dict(os.environ),
    "folder": os.getcwd(),
    "descriptors": len(os.listdir("/proc/self/fd")),
    "umask": os.umask(0),
    "oom": open("/proc/self/oom_score_adj").read(),
    "dumpable": os.stat("/proc/self/mem").st_uid == os.getuid(),
    "ids": [os.getpid(), os.getppid(), os.getsid(0), os.getpgid(0)],
    "collects": gc.get_threshold(),
    "hash": hash("text"),
    "threads": __import__("torch").get_num_threads(),
    "modules": sorted(one for one in sys.modules if one.startswith(("torch", "numpy", "triton"))),
}
"""
DRAWS = """
import random, numpy.random
import torch, uuid
told = [random.random(), float(numpy.random.rand()), uuid.uuid4().hex]
told += [torch.initial_seed(), float(torch.rand(1))]
"""


@pytest.fixture(scope="module")
def zygote() -> Iterator[CandidateZygote]:
    with contextlib.closing(CandidateZygote(threads=2)) as started:
        if not started.able:
            pytest.skip("no namespaces inside the sandbox on this machine")
        yield started


def told(source: str, zygote: CandidateZygote | None) -> Any:
    """What a process tells of itself as it loads a kernel, in as many pieces as it takes."""
    text, piece = "", ""
    while not text or len(piece) == 400:
        shown = f"{source}\nraise ValueError('|' + json.dumps(told)[{len(text)}:][:400] + '|')"
        kernel = Kernel(name="tells", language="torch", source=f"import json\n{shown}", entry="f")
        process = CandidateProcess(
            kernel, threads=2, memory_bytes=64 << 30, clock=Clock.of(60), zygote=zygote
        )
        try:
            with pytest.raises(CandidateFault) as refused:
                process.load(kernel, None)
        finally:
            process.close()
        piece = str(refused.value).split("|")[1]
        text += piece
    return json.loads(text)


def test_a_fork_is_what_a_new_process_is(zygote: CandidateZygote) -> None:
    short = STATE + "told['modules'] = hash(str(told['modules']))\n"
    new, forked = told(short, None), told(short, zygote)
    for uid in ("Uid", "Gid"):
        assert (os.geteuid() == 0) == (new["status"].pop(uid) != forked["status"].pop(uid))
    if os.geteuid() != 0:  # there a fork's user namespace lets it lower this too
        assert set("".join(forked["status"].pop("CapBnd"))) == {"0"}
        new["status"].pop("CapBnd")
        for one in (new, forked):
            one["limits"].pop("RLIMIT_NPROC")  # it counts what else the user runs
    mark = {one["environment"].pop("RATCHET_STARTED_BY") for one in (new, forked)}
    assert len(mark) == 1
    assert forked == new


def test_what_is_drawn_is_not_the_zygote_s(zygote: CandidateZygote) -> None:
    first, second = told(DRAWS, zygote), told(DRAWS, zygote)
    assert not set(first) & set(second)


PYTHON = "import torch\ndef silu(x, s):\n    y = x * s[0]\n    return (y * torch.sigmoid(x),)"


def small() -> Problem:
    return given.problem("silu", given.case("timed", 16, 32, timed=True))


def test_a_judge_keeps_one_and_starts_another_where_it_died(
    few_rounds: None, zygote: CandidateZygote
) -> None:
    with KernelJudge(threads=1) as judge:
        kernel, asked = given.python(PYTHON), small()
        assert_right(judge.judge(kernel, asked))
        first = judge._tools.zygotes["torch"]
        assert first is not None and first.able
        assert_right(judge.judge(kernel, asked))
        assert judge._tools.zygotes["torch"] is first
        os.kill(first.pid, 9)
        while not first.has_ended:
            pass
        assert_right(judge.judge(kernel, asked))
        assert judge._tools.zygotes["torch"] is not first
    assert "torch" not in judge._tools.zygotes


def test_where_nothing_can_be_forked_each_process_starts_anew(
    few_rounds: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "ratchet.judge.sandbox.zygote.TMP_BYTES", "no number"
    )  # its trial cannot mount
    with KernelJudge(threads=1) as judge:
        verdict = judge.judge(given.python(PYTHON), small())
        assert judge._tools.zygotes["torch"] is not None and not judge._tools.zygotes["torch"].able
        refused = judge._tools.zygotes["torch"]
        assert_right(verdict)
        judge.judge(given.python("def silu(x, s):\n    return (x,)"), small())
        assert judge._tools.zygotes["torch"] is refused, "it is not tried again"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("os._exit(7)", "exit code 7"),
        ("os.kill(os.getpid(), 9)", "SIGKILL"),
        ("__import__('ctypes').string_at(0)", "SIGSEGV"),
        ("os.abort()", "SIGABRT"),
        ("print('last words', flush=True); os._exit(1)", "last words"),
    ],
)
def test_how_a_fork_ended_is_told(zygote: CandidateZygote, body: str, words: str) -> None:
    kernel = given.python(f"import os\n{body}")
    process = CandidateProcess(
        kernel, threads=1, memory_bytes=64 << 30, clock=Clock.of(60), zygote=zygote
    )
    try:
        with pytest.raises(CandidateFault, match=words) as crashed:
            process.load(kernel, None)
    finally:
        process.close()
    assert crashed.value.decided.status == "crashed"
