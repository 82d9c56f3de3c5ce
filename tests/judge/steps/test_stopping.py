"""A family that is stopped stands still, and can be stopped whatever its processes wait for."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ratchet.base.process import families

SPAWNS = """
import os, sys
waits_here = (os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)
child = os.posix_spawn("/bin/true", ["true"], {}, file_actions=[waits_here])
os.waitpid(child, 0)
sys.stdin.readline()
"""
"""posix_spawn(3) is a vfork: the caller stands in the kernel until the child has opened the FIFO
and called execve, and no signal but SIGKILL reaches it there."""


@pytest.mark.parametrize("enclosed", [True, False])
def test_one_that_waits_for_the_execve_of_a_vfork_s_child_is_stopped(
    tmp_path: Path, enclosed: bool
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    command = [sys.executable, "-c", SPAWNS, str(fifo)]
    opener = threading.Timer(0.05, lambda: os.close(os.open(fifo, os.O_WRONLY)))
    opener.daemon = True
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as parent:
        try:
            deadline = time.monotonic() + 30
            while (state := families.read_state(parent.pid)) is None or state.state != "D":
                assert time.monotonic() < deadline, state
                time.sleep(0.001)
            opener.start()  # the child can call execve from then on, where it may run
            stopped = families.stop(parent.pid, settle_s=20.0, enclosed=enclosed)
            assert stopped is not None and parent.pid in stopped
            standing = families.read_state(parent.pid)
            assert standing is not None and standing.state == "T"
        finally:
            opener.cancel()  # it would try in the middle of another test
            families.end(parent.pid)


def test_a_vfork_s_child_that_never_ends_is_told_in_time(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)  # and nobody opens it
    command = [sys.executable, "-c", SPAWNS, str(fifo)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as parent:
        try:
            deadline = time.monotonic() + 30
            while (state := families.read_state(parent.pid)) is None or state.state != "D":
                assert time.monotonic() < deadline, state
                time.sleep(0.001)
            assert families.stop(parent.pid, settle_s=0.3) is None
        finally:
            families.end(parent.pid)
