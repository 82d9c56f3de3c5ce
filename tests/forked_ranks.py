"""Run a Python script on gloo ranks that share one import of torch: each is a fork of one process.

torchrun starts them as processes that import torch anew; tests of its own work use it instead.
`forked_ranks.py RANKS MODULES SCRIPT WORDS...` imports the modules first, which starts no thread.
"""

from __future__ import annotations

import importlib
import os
import runpy
import subprocess
import sys
from pathlib import Path


def run_forked(
    ranks: int, modules: str, script: Path, *words: str, limit_s: float = 400, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the script on every rank; the exit code is 0 if that of each rank is."""
    return subprocess.run(
        [sys.executable, __file__, str(ranks), modules, str(script), *words],
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True, text=True, timeout=limit_s, check=False,
    )  # fmt: skip


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


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), *sys.argv[2:]))
