"""Faults: whatever a candidate does, a verdict in time, nothing left, and the next one unharmed."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import judge_problems as given
import pytest
from answers import RIGHT, assert_right, is_right

import ratchet
from ratchet.base import scratch
from ratchet.base.errors import CompilerMissing
from ratchet.base.ledger import Ledger
from ratchet.base.process import families
from ratchet.base.process.channel import open_pair
from ratchet.base.process.child import Child, ChildFailure, program
from ratchet.judge.kernels.languages import cpp
from ratchet.judge.problems.problem import Problem
from ratchet.judge.sandbox import bubblewrap, isolation
from ratchet.judge.sandbox import keeper as landlock
from ratchet.judge.trial import open_problem, plan
from ratchet.judge.trial.kernel_trial import KernelJudge
from ratchet.judge.verdict import Verdict

pytestmark = pytest.mark.compiler
LIMIT_S, GRACE_S = 40.0, 20.0
HEAD = r"""
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/stat.h>
static int channel() {
    struct stat kind;
    for (int fd = 3; fd < 64; ++fd)
        if (!fstat(fd, &kind) && S_ISSOCK(kind.st_mode)) return fd;
    return -1;
}
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """What a candidate does, and the verdicts that are true of it."""

    body: str
    statuses: frozenset[str]
    words: str = ""


OWN_FILES = f"ratchet-test-{os.getpid()}"
"""How the files begin that a fault leaves: other processes run the same tests."""


def fault(body: str, *statuses: str, words: str = "") -> Fault:
    body = HEAD + body.replace("OWN_FILES", OWN_FILES)
    return Fault(body=body, statuses=frozenset(statuses), words=words)


FAULTS = {
    "segfaults": fault("ENTRY { *(volatile int*)8 = 1; return 0; }", "crashed", words="SIGSEGV"),
    "loops for ever": fault("ENTRY { for (volatile int i = 0;; ) (void)i; }", "timed_out"),
    "forks without end": fault("ENTRY { for (;;) fork(); }", "timed_out", "crashed"),
    "eats addresses": fault(
        "ENTRY { for (;;) { void* p = malloc(1 << 28); if (!p) abort(); memset(p, 1, 4096); } }",
        "crashed",
        words="SIGABRT",
    ),
    "fills the disk": fault(
        r"""
        ENTRY {  // many files, as the size of one is bounded
            static char block[1 << 20];
            signal(SIGXFSZ, SIG_IGN);
            for (int number = 0; number < 4; ++number) {
                char name[64];
                snprintf(name, sizeof name, "/tmp/OWN_FILES-fill-%d", number);
                const int file = open(name, O_CREAT | O_WRONLY, 0600);
                while (file >= 0 && write(file, block, sizeof block) == sizeof block) {}
                if (file >= 0) close(file);
            }
            return silu_scale(t, s);
        }""",
        *RIGHT,
        "timed_out",
    ),
    "writes outside its folder": fault(
        r"""
        ENTRY {
            const char* places[] = {OUTSIDE};
            for (const char* place : places)
                if (open(place, O_CREAT | O_WRONLY, 0600) >= 0) return -2;
            return silu_scale(t, s);
        }""",
        *RIGHT,
    ),
    "opens a socket": fault(
        r"""
        ENTRY {
            const int families[] = {AF_INET, AF_INET6, AF_UNIX};
            for (int family : families)
                if (socket(family, SOCK_STREAM, 0) >= 0 && DENIED) return -2;
            sockaddr_in there = {};
            there.sin_family = AF_INET;
            there.sin_port = htons(53);
            there.sin_addr.s_addr = htonl(0x08080808);
            const int out = socket(AF_INET, SOCK_DGRAM, 0);
            if (out >= 0 && connect(out, (sockaddr*)&there, sizeof there) == 0) return -3;
            return silu_scale(t, s);
        }""",
        *RIGHT,
    ),
    "kills its parent": fault(
        "ENTRY { for (;;) kill(getppid(), SIGKILL); }", "crashed", "timed_out"
    ),
    "kills its group": fault(
        "ENTRY { kill(0, SIGKILL); kill(-1, SIGKILL); killpg(getpgrp(), 9); return 0; }",
        "crashed",
        "wrong",
    ),
    "closes its pipes": fault(
        "ENTRY { for (int i = 0; i < 64; ++i) close(i); return 0; }", "crashed", "timed_out"
    ),
    "floods its pipes": fault(
        "ENTRY { static char b[65536]; for (;;) (void)!write(1 + (calls++ & 1), b, sizeof b); }",
        "timed_out",
    ),
    "floods its channel": fault(
        r"""
        ENTRY {
            static char b[65536];
            const uint32_t length = htonl(1 << 19);
            (void)!write(channel(), &length, 4);
            for (;;) (void)!write(channel(), b, sizeof b);
        }""",
        "crashed",
        words="nonsense",
    ),
    "trickles an answer": fault(
        r"""
        ENTRY {
            const uint32_t length = htonl(1 << 19);
            (void)!write(channel(), &length, 4);
            for (;;) { (void)!write(channel(), " ", 1); usleep(1000); }
        }""",
        "timed_out",
    ),
    "dies half-way through an answer": fault(
        r"""
        ENTRY {
            const uint32_t length = htonl(40);
            (void)!write(channel(), &length, 4);
            (void)!write(channel(), "{\"codes\": [0", 12);
            _exit(0);
        }""",
        "crashed",
        words="died during",
    ),
    "answers with a number that is none": fault(
        r"""
        ENTRY {
            const int64_t code = silu_scale(t, s);
            static char answer[600] = "{\"codes\": [0], \"cpu_time_s\": 1";
            for (int i = strlen(answer); i < 500; ++i) answer[i] = '0';
            strcat(answer, "}");
            const uint32_t length = htonl(strlen(answer));
            (void)!write(channel(), &length, 4);
            (void)!write(channel(), answer, strlen(answer));
            return code;
        }""",
        "crashed",
        words="nonsense",
    ),
    "answers with words for the terminal": fault(
        r"""
        ENTRY {
            const char* answer = "{\"error\": {\"known\": true, "
                                 "\"message\": \"\\ud800\\u001b[2J\\u0000\\nproven\"}}";
            const uint32_t length = htonl(strlen(answer));
            (void)!write(channel(), &length, 4);
            (void)!write(channel(), answer, strlen(answer));
            return 0;
        }""",
        "crashed",
        words="the kernel raised: [2J proven",
    ),
    "dies while its child holds the answer": fault(
        r"""
        ENTRY {
            const uint32_t length = htonl(40);
            if (fork()) { (void)!write(channel(), &length, 4); _exit(3); }
            for (;;) pause();
        }""",
        "crashed",
        words="exit code 3",
    ),
    "leaves a daemon": fault(
        r"""
        ENTRY {
            if (!calls++ && !fork()) { setsid(); if (fork()) _exit(0); for (;;) sleep(100); }
            return silu_scale(t, s);
        }""",
        *RIGHT,
    ),
    "burns every core": fault(
        r"""
        static void* burn(void*) { for (volatile long i = 0;; ++i) {} return nullptr; }
        ENTRY {
            pthread_t other;
            if (!calls++)
                for (int i = 0; i < 4; ++i)
                    if (!fork()) { pthread_create(&other, nullptr, burn, nullptr); burn(nullptr); }
            return silu_scale(t, s);
        }""",
        *RIGHT,  # whether it gains by it is asked of the exploits: sleeper, headless process
    ),
    "stops itself": fault("ENTRY { for (;;) raise(SIGSTOP); }", "timed_out"),
}
WITHOUT_NAMESPACES = (
    "forks without end",
    "fills the disk",
    "kills its parent",
    "kills its group",
    "opens a socket",
    "dies while its child holds the answer",
    "leaves a daemon",
    "burns every core",
)


@pytest.fixture(scope="module")
def compiler() -> None:
    try:
        cpp.find_compiler()
    except CompilerMissing as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def judge(compiler: None) -> Iterator[KernelJudge]:
    with KernelJudge() as kept:
        # The reference worker starts here, and not within the first fault's time limit.
        kept.judge(given.cpp(given.HONEST), small(), time_limit_s=120)
        yield kept


uids: set[int] = set()
"""Fresh uids that this process has given away: other tests may run beside these."""


@pytest.fixture(autouse=True)
def noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Note the uid of each sandbox."""
    made = isolation.make_sandbox

    def spy(*arguments: Any, **named: Any) -> isolation.Sandbox:
        sandbox = made(*arguments, **named)
        if sandbox.uid is not None:
            uids.add(sandbox.uid)
        return sandbox

    monkeypatch.setattr("ratchet.judge.trial.candidate.make_sandbox", spy)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Few rounds, and little patience where a kernel may never answer."""
    monkeypatch.setattr(plan, "LAUNCHES", 2)
    monkeypatch.setattr(plan, "MAX_ROUNDS", 4)
    monkeypatch.setattr(plan, "LOOKS", 1)
    monkeypatch.setattr(plan, "MAX_CALLS", 4)
    asked = getattr(request.node, "callspec", None)
    how = asked.params.get("how") if asked else None
    if how in FAULTS and "timed_out" in FAULTS[how].statuses:
        monkeypatch.setattr(open_problem, "SLOWEST_FLOOR_S", 1.0)


def small() -> Problem:
    """A problem whose one case is tiny."""
    return given.problem("silu", given.case("timed", 16, 32, timed=True))


def outside(folder: Path) -> list[Path]:
    """Places of the machine where no candidate may write."""
    places = [folder, Path.home(), Path("/usr"), Path("/etc"), Path("/var/lib")]
    return [place / f"{OWN_FILES}-outside" for place in places]


def left_files(judge: int) -> list[str]:
    """What a judge's candidates have left in the folders where everybody may write."""
    found: list[str] = []
    for folder in isolation.OPEN_FOLDERS:
        if folder.is_dir():
            found += [str(path) for path in folder.glob(f"{OWN_FILES}-*")]
            found += [str(path) for path in folder.glob(f"{scratch.PREFIX}candidate-{judge}-*")]
    return found


def left_processes(judge: KernelJudge) -> list[int]:
    """What runs for this judge beside its reference worker, once it had a moment to end."""
    deadline = time.monotonic() + 30
    while True:
        kept = judge._reference._child.pid if judge._reference else -1
        mine = set(_descendants(os.getpid())) - {kept}
        candidates = [pid for pid in mine if b"workers.candidate" in _command(pid)]
        candidates += [pid for uid in uids for pid in families.of_user(uid)]
        if not candidates or time.monotonic() > deadline:
            return candidates
        time.sleep(0.05)


def _descendants(root: int) -> list[int]:
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    states = {pid: state for pid in pids if (state := families.read_state(pid)) and state.alive}
    found, waiting = [], [root]
    while waiting:
        parent = waiting.pop()
        children = [pid for pid, state in states.items() if state.parent == parent]
        found += children
        waiting += children
    return found


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def judged(judge: KernelJudge, how: str, folder: Path) -> Verdict:
    """The verdict on a fault, which must come in time and leave nothing."""
    quoted = ", ".join(f'"{place}"' for place in outside(folder))
    denied = "1" if "system calls filtered" in isolation.isolation_name() else "0"
    body = FAULTS[how].body.replace("OUTSIDE", quoted).replace("DENIED", denied)
    began = time.monotonic()
    verdict = judge.judge(given.cpp(body), small(), time_limit_s=LIMIT_S)
    assert time.monotonic() - began < LIMIT_S + GRACE_S
    statuses = FAULTS[how].statuses
    allowed = verdict.status in statuses or (is_right(verdict) and statuses.issuperset(RIGHT))
    assert allowed, (verdict.status, verdict.reason)
    assert FAULTS[how].words in verdict.reason
    assert verdict.reason and verdict.reason.isprintable()
    if verdict.status not in RIGHT:
        assert verdict.speedup.vs_reference is None
    assert left_processes(judge) == []
    assert left_files(os.getpid()) == []
    assert not [place for place in outside(folder) if place.exists()]
    return verdict


@pytest.mark.parametrize("how", list(FAULTS))
def test_a_fault_gets_a_verdict_and_does_no_harm(
    judge: KernelJudge, how: str, tmp_path: Path
) -> None:
    judged(judge, how, tmp_path)
    after = judge.judge(given.cpp(given.HONEST), small())
    assert_right(after)


@pytest.mark.parametrize("how", WITHOUT_NAMESPACES)
def test_a_fault_does_no_harm_where_there_is_no_namespace(
    judge: KernelJudge, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bubblewrap, "program", lambda: None)
    judged(judge, how, tmp_path)


def test_what_takes_all_memory_is_ended_before_the_machine_has_none(
    judge: KernelJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "_floor", lambda free, total: free - (300 << 20))
    monkeypatch.setattr(open_problem, "SLOWEST_FLOOR_S", 20.0)
    body = r"""
    ENTRY {
        for (int i = 0; i < 60; ++i) { memset(malloc(1 << 24), 1, 1 << 24); usleep(10000); }
        for (;;) pause();
    }"""
    verdict = judge.judge(given.cpp(body), small(), time_limit_s=30)
    assert verdict.status == "crashed", verdict.reason
    assert "memory left" in verdict.reason
    assert left_processes(judge) == []


def test_a_floor_leaves_half_of_what_was_free() -> None:
    assert isolation._floor(100, 1000) == 50
    assert isolation._floor(900, 1000) == 50
    assert isolation._floor(10, 1000) == 5
    assert isolation.Headroom([Path("/tmp")]).shortage() is None


def test_the_folders_of_killed_judges_are_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a candidate's folder may be, not only where the next one is made."""
    open_to_all = tmp_path / "open to all"
    open_to_all.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(isolation, "OPEN_FOLDERS", (open_to_all,))
    places = [place / f"{scratch.PREFIX}candidate-1-x" for place in (tmp_path, open_to_all)]
    for place in places:
        place.mkdir()
    made = isolation.private_folder(None)
    assert not any(place.exists() for place in places)
    kept = isolation.private_folder(None)
    assert made.exists()
    for folder in (made, kept):
        scratch.remove(folder)


def test_a_child_that_takes_no_message_is_given_up_in_time() -> None:
    sleeper = ["-c", "import time; print('up', flush=True); time.sleep(60)"]
    child = Child(program(lambda _: [sys.executable, *sleeper], dict(os.environ)))
    began = time.monotonic()
    with pytest.raises(ChildFailure, match="did not answer 'fill'"):
        child.send({"do": "fill", "words": "x" * (8 << 20)}, limit_s=0.5)
    assert time.monotonic() - began < 30
    assert child.closed
    ours, theirs = open_pair()  # the descriptors of a closed child are free again
    ours.close()
    theirs.close()


JUDGING = """
import json, msgspec, sys
from ratchet.judge.trial import plan
from ratchet.judge.trial.kernel_trial import KernelJudge
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.languages import cpp
from ratchet.judge.problems.problem import Problem
from ratchet.base.ledger import Fingerprint, Ledger

plan.LAUNCHES, plan.MAX_ROUNDS = 2, 4
kernel, problem = json.loads(sys.argv[2])
kernel, problem = Kernel.from_json(kernel), Problem.from_json(problem)
here = Fingerprint(device="a device", software="some software")
print("started", flush=True)
with Ledger.open(sys.argv[1]) as ledger, KernelJudge() as judge:
    while True:
        verdict = judge.judge(kernel, problem, time_limit_s=30)
        ledger.record_verdict(msgspec.to_builtins(verdict), fingerprint=here)
        print("judged", flush=True)
"""
LOOPING = "ENTRY { for (;;) sleep(1); }"


@pytest.mark.parametrize(
    ("wait_for", "delay_s", "body"),
    [
        ("started", 0.4, given.HONEST),
        ("started", 3.0, LOOPING),
        ("judged", 0.0, given.HONEST),
        ("judged", 0.4, given.HONEST),
    ],
    ids=["compiling", "looping", "recorded", "judging"],
)
def test_a_killed_judge_leaves_no_process_and_a_whole_ledger(
    compiler: None, tmp_path: Path, wait_for: str, delay_s: float, body: str
) -> None:
    place = tmp_path / "ledger.db"
    folders = [str(Path(ratchet.__file__).parents[1]), str(Path(__file__).parents[1])]
    asked = json.dumps([given.cpp(body).as_json(), small().as_json()])
    program = subprocess.Popen(
        [sys.executable, "-c", JUDGING, str(place), asked],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        text=True,
    )
    assert program.stdout is not None
    with program.stdout as lines:
        while lines.readline().strip() != wait_for:
            assert program.poll() is None
        time.sleep(delay_s)
        os.kill(program.pid, signal.SIGSTOP)  # what it runs now is what it leaves
        family = _descendants(program.pid)
        program.kill()
        judged_before = 1 if wait_for == "judged" else 0
        program.wait()
    deadline = time.monotonic() + 15
    while any(_runs(pid) for pid in family) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [pid for pid in family if _runs(pid)] == []
    if bubblewrap.program() is None:
        scratch.clear_abandoned()  # as the next judge does: no private /tmp vanished by itself
    assert left_files(program.pid) == []
    _assert_whole(place, judged_before)


LEAVES_ONE = """
ENTRY {
    if (fork() == 0) { setsid(); if (fork()) _exit(0); setsid(); for (;;) sleep(9); }
    for (;;) sleep(1);
}
"""
UNENCLOSED = "from ratchet.judge.sandbox import bubblewrap\nbubblewrap.program = lambda: None\n"


@pytest.mark.skipif(landlock.abi() == 0, reason="this kernel has no Landlock")
def test_a_killed_judge_leaves_no_daemon_where_there_is_no_namespace(
    compiler: None, tmp_path: Path
) -> None:
    """It has left its session, its parent is dead, and the candidate may have the judge's uid."""
    folders = [str(Path(ratchet.__file__).parents[1]), str(Path(__file__).parents[1])]
    asked = json.dumps([given.cpp(HEAD + LEAVES_ONE).as_json(), small().as_json()])
    program = subprocess.Popen(
        [sys.executable, "-c", UNENCLOSED + JUDGING, str(tmp_path / "ledger.db"), asked],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
    )
    found: set[int] = set()
    deadline = time.monotonic() + 60
    while not found and time.monotonic() < deadline:
        time.sleep(0.02)
        assert program.poll() is None
        found = _families_with_daemons(program.pid)
    program.kill()
    program.wait()
    assert found
    deadline = time.monotonic() + 15
    while any(_runs(pid) for pid in found) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [pid for pid in found if _runs(pid)] == []
    scratch.clear_abandoned()


def _families_with_daemons(root: int) -> set[int]:
    """All processes below a keeper under a process, where one is of a third session."""
    found: set[int] = set()
    for keeper in _descendants(root):
        if b"sandbox.keeper" in _command(keeper):
            family = families.family(keeper, enclosed=True)
            if len({state.session for state in family.values()}) > 1:
                found |= set(family)
    return found


def _runs(pid: int) -> bool:
    state = families.read_state(pid)
    return state is not None and state.alive


def _assert_whole(place: Path, verdicts: int) -> None:
    with Ledger.open(place):
        pass
    with sqlite3.connect(place) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        (count,) = database.execute("select count(*) from verdicts").fetchone()
        assert count >= verdicts
    database.close()
