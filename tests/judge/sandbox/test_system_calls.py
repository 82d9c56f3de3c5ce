"""The filter of a candidate's system calls: its numbers, its paths, what it denies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.judge.sandbox import confine


def test_the_numbers_of_the_filtered_calls_are_the_kernels() -> None:
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.is_file():
        pytest.skip("no header with the numbers of x86-64 on this machine")
    lines = [line.split() for line in header.read_text().splitlines() if "__NR_" in line]
    known = {words[1].removeprefix("__NR_"): int(words[2]) for words in lines if len(words) == 3}
    newer = {name for name, number in confine.NUMBERS.items() if number > max(known.values())}
    told = {name: number for name, number in confine.NUMBERS.items() if name not in newer}
    assert {name: known[name] for name in told} == told
    asked = {*confine.DENIED, *confine.DENIED_AMONG_OTHERS}
    asked |= {*confine.OF_ITSELF_AMONG_OTHERS}
    assert asked <= set(confine.NUMBERS)


@pytest.mark.parametrize("among_others", [True, False])
def test_every_path_through_the_filter_ends(among_others: bool) -> None:
    program = confine.program(4711, among_others)
    for place, (code, if_true, if_false, _) in enumerate(program):
        if code not in (confine.LOAD, confine.RETURN):
            assert place + 1 + max(if_true, if_false) < len(program)
    assert program[-1] == (confine.RETURN, 0, 0, confine.ALLOW)


AMONG_OTHERS = """
import os, resource
from ratchet.base.process import families
from ratchet.judge.sandbox import confine

families.prctl(families.PR_SET_NO_NEW_PRIVS, 1)
confine.deny_needless(among_others=True)
cores, limit, judge = os.sched_getaffinity(0), resource.RLIMIT_CPU, os.getppid()
os.sched_setaffinity(0, cores)
resource.setrlimit(limit, resource.getrlimit(limit))
for harm in (
    lambda: os.sched_setaffinity(judge, cores),
    lambda: resource.prlimit(judge, limit, resource.getrlimit(limit)),
    lambda: os.setpriority(os.PRIO_PROCESS, judge, 0),
    lambda: os.sched_setscheduler(judge, os.SCHED_IDLE, os.sched_param(0)),
):
    try:
        harm()
    except PermissionError:
        print("denied")
"""


@pytest.mark.skipif(not confine.known(), reason="needs seccomp on x86-64")
def test_a_candidate_among_others_can_slow_only_itself() -> None:
    done = subprocess.run([sys.executable, "-c", AMONG_OTHERS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["denied"] * 4


SHARED_FILES = """
import ctypes, fcntl
from ratchet.base.process import families
from ratchet.judge.sandbox import confine

families.prctl(families.PR_SET_NO_NEW_PRIVS, 1)
confine.deny_needless(among_others=False)
files = [open(ctypes.__file__, "rb") for _ in range(2)]
for file in files:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
for told in (fcntl.F_GETLK, fcntl.F_SETLEASE, fcntl.F_NOTIFY):
    try:
        fcntl.fcntl(files[0], told, 0)
    except PermissionError:
        print("denied")
if ctypes.CDLL(None).inotify_init() < 0:
    print("denied")
print(open("/proc/locks").read().count(f" {__import__('os').getpid()} "))
"""


@pytest.mark.skipif(not confine.known(), reason="needs seccomp on x86-64")
def test_what_others_do_with_a_shared_file_is_not_told() -> None:
    done = subprocess.run([sys.executable, "-c", SHARED_FILES], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["denied"] * 4 + ["0"]
