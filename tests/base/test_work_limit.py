"""A limit of work: a busy machine does not shorten it, sleeping does not lengthen it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ratchet.base import process as limits
from ratchet.base.process import WALL_FACTOR, WorkLimit, families

Seen = tuple[float, bool]


class Machine:
    """A clock on the wall, and what a family of processes has done by each of its times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.seen: Seen = (0.0, True)
        monkeypatch.setattr(limits.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(limits, "at_work", lambda members: self.seen)

    def lasts_s(self, limit_s: float, *, core_share: float, awake: bool) -> float:
        """How long a family waits for its end that gets so much of a core."""
        limit, began = WorkLimit(limit_s, list), self.now_s
        while limit.left_s() > 0:
            self.now_s += 0.05
            self.seen = (self.seen[0] + 0.05 * core_share, awake)
        return self.now_s - began


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.mark.parametrize(
    ("core_share", "awake", "lasts_s"),
    [
        (1.0, True, 10.0),
        (2.0, True, 10.0),  # on two cores it is at work for no longer than the wall clock runs
        (0.25, True, 40.0),  # a busy machine
        (0.01, True, 10 * WALL_FACTOR),
        (0.0, False, 10.0),  # it sleeps
    ],
)
def test_what_counts_is_how_long_a_family_could_work(
    machine: Machine, core_share: float, awake: bool, lasts_s: float
) -> None:
    assert machine.lasts_s(10.0, core_share=core_share, awake=awake) == pytest.approx(
        lasts_s, rel=0.1
    )


def test_a_process_that_computes_is_awake_and_one_that_sleeps_is_not() -> None:
    computes = "print(flush=True)\nwhile True: pass"
    sleeps = "import time\nprint(flush=True)\ntime.sleep(600)"
    for source, awake in ((computes, True), (sleeps, False)):
        command = [sys.executable, "-c", source]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                process.stdout.readline()
                while limits.at_work([process.pid])[1] != awake:
                    pass  # printing itself may be seen
                assert process.pid in families.family(os.getpid(), enclosed=True)
            finally:
                process.kill()
    assert limits.at_work([process.pid]) == (0.0, False)
