"""Start the ranks of a request with torchrun on this machine, and read what they left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from ratchet.base.errors import RanksError, WorkloadError
from ratchet.base.process import families
from ratchet.base.serialise import encoded
from ratchet.scale.parallel.rank import RankRequest, RankResult
from ratchet.train.workloads.parallel import parse_parallel

LIMIT_S: Final = 3600.0
ENDED: Final = re.compile(r"^\s*rank\s*:\s*(\d+).*?^\s*exitcode\s*:\s*(-?\d+)", re.DOTALL | re.M)
"""A rank in torchrun's own account; the root cause comes last."""
RAISED: Final = re.compile(r"^(?:\[rank\d+\]:\s*)?([\w.]*(?:Error|Exception): .*)$", re.MULTILINE)


def torchrun(ranks: int, *program: str) -> list[str]:
    """Return the command that runs a program on `ranks` ranks of this machine."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*start, f"--nproc-per-node={ranks}", *program]


def run_ranks(asked: RankRequest, folder: Path) -> tuple[RankResult, ...]:
    """Run a request on its layout's ranks and return their results, by rank.

    Ranks on a CPU share its cores. Raises WorkloadError with the line of a rank that refuses the
    request, and RanksError if a rank dies or the limit passes; no process is left.
    """
    world = parse_parallel(asked.layout).world
    request = folder / "request.json"
    request.write_bytes(encoded(asked))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    environment = {"OMP_NUM_THREADS": str(max(1, (cores or 1) // world)), **os.environ}
    command = torchrun(world, "-m", "ratchet.scale.parallel.rank", str(request), str(folder))
    said = folder / "ranks.log"
    with said.open("wb") as log:
        child = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            code = child.wait(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            raise RanksError(
                f"{asked.layout}: the ranks did not end within {LIMIT_S:g} s; give more time, or "
                "fewer steps"
            ) from None
        finally:
            if child.poll() is None:
                families.end_session(child.pid)
                child.wait()
    if code != 0:
        raise _failure(asked, folder, said.read_text(errors="replace"))
    return tuple(
        msgspec.json.decode((folder / f"rank_{rank}.json").read_bytes(), type=RankResult)
        for rank in range(world)
    )


def _failure(asked: RankRequest, folder: Path, said: str) -> RanksError | WorkloadError:
    """Return how a rank was killed, or what the rank that failed first said.

    The others lose their connections to it, and complain of that; torchrun then sends SIGTERM.
    """
    ended = [(rank, int(code)) for rank, code in ENDED.findall(said)]
    killed = [one for one in ended if one[1] < 0 and one[1] != -signal.SIGTERM]
    rank, code = (killed or ended or [("?", 1)])[-1]
    told = folder / f"error_{rank}.txt"
    if not killed and told.exists():
        return WorkloadError(told.read_text())
    raised = [] if killed else RAISED.findall(said)
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
    why = f" ({raised[0][:200]})" if raised else ""
    remedy = "see whether one rank runs it" if raised else "run it again, or with fewer ranks"
    return RanksError(f"{asked.layout}: rank {rank} ended {how}{why}; {remedy}")
