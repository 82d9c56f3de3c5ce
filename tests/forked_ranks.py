"""Run Python in forks, which share the imports of the process that tests: alone, or on gloo ranks.

torchrun starts them as processes that import torch anew; tests of its own work use it instead.
"""

from __future__ import annotations

import importlib
import os
import runpy
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

from ratchet.base.process import families


def in_fork(
    work: Callable[[], int | None], *, limit_s: float = 400, **variables: str
) -> CompletedProcess[str]:
    """Do work in a fork of this process, with a session of its own; return what it printed.

    The exit code is 1 if the work raised, whose traceback is on stderr.
    """
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as failed:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.setsid()
                os.dup2(said.fileno(), 1)
                os.dup2(failed.fileno(), 2)
                sys.stdout, sys.stderr = open(1, "w"), open(2, "w")  # noqa: SIM115
                os.environ |= variables
                warnings.simplefilter("default")  # no errors, as they are in the process that tests
                code = work() or 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        ends_s = time.monotonic() + limit_s
        while not families.has_ended_within(child, 1.0) and time.monotonic() < ends_s:
            pass
        os.killpg(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        failed.seek(0)
        return CompletedProcess([], code, said.read(), failed.read())


def run_forked(
    ranks: int, modules: str, script: Path, *words: str, limit_s: float = 400, **variables: str
) -> CompletedProcess[str]:
    """Run the script on every rank; the exit code is 0 if that of each rank is.

    The modules are imported first, for all ranks; that may start no thread.
    """
    return in_fork(lambda: main(ranks, modules, str(script), *words), limit_s=limit_s, **variables)


def run_rank(rank: int, ranks: int, port: int, script: str) -> None:
    """Be one rank: torch's own variables name it, and a store of the parent's at `port`."""
    number = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ |= {name: str(value) for name, value in number.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    runpy.run_path(script, run_name="__main__")


def main(ranks: int, modules: str, script: str, *words: str) -> int:
    for module in modules.split(","):
        importlib.import_module(module)
    importlib.import_module("torch").set_num_threads(1)  # a fork has none of the parent's threads
    sys.argv = [script, *words]
    sys.path.insert(0, str(Path(script).parent))
    read, write = os.pipe()
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            run_rank(rank, ranks, int(os.read(read, 5)), script)
            return 0
        children.append(child)
    from torch.distributed import TCPStore  # its server is a thread: it starts after the forks

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(write, b"%5d" % store.port * ranks)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children)
