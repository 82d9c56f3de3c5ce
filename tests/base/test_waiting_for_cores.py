"""How long a process waited for a core, from a real one that shares it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from ratchet.base.process import families

WORKS = "import os; os.sched_setaffinity(0, {int(os.environ['CORE'])})\nwhile True: pass"


@contextlib.contextmanager
def workers(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run processes that share one core."""
    core = str(min(os.sched_getaffinity(0)))
    command = [sys.executable, "-S", "-c", WORKS]
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            found.append(stack.enter_context(subprocess.Popen(command, env={"CORE": core})))
            stack.callback(found[-1].kill)
        yield found


@pytest.mark.skipif(
    not os.path.exists("/proc/self/schedstat"), reason="this kernel does not tell who waits"
)
def test_a_process_that_shares_its_core_waits_for_it() -> None:
    with workers(2) as (first, _):
        deadline = time.monotonic() + 20
        while not families.waited_s(first.pid) > 0.02 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert families.waited_s(first.pid) > 0.02
    assert families.waited_s(first.pid) == 0  # it is gone
