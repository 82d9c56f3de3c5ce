"""Start ranks with torchrun, read what they left, and keep a turn's launches in the ledger."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from ratchet.base import scratch
from ratchet.base.devices.probe import probe
from ratchet.base.errors import RanksError, RatchetError, WorkloadError
from ratchet.base.ledger import Ledger
from ratchet.base.ledger.connect import utc_now
from ratchet.base.ledger.schema import Payload
from ratchet.base.measure.contest import LEAST_ROUNDS, MOST_ROUNDS, even_rounds
from ratchet.base.process import families
from ratchet.base.serialise import document_of, encoded
from ratchet.scale.parallel.rank import PROFILED_STEPS, RankRequest, RankResult
from ratchet.trace.analysis import analyse
from ratchet.trace.read import read
from ratchet.train.recipe import Candidate
from ratchet.train.turn.settings import Settings
from ratchet.train.workloads.parallel import parse_parallel

LIMIT_S: Final = 3600.0
ENDED: Final = re.compile(r"^\s*rank\s*:\s*(\d+).*?^\s*exitcode\s*:\s*(-?\d+)", re.DOTALL | re.M)
"""A rank in torchrun's own account; the root cause comes last."""
ABORTED: Final = re.compile(r"^\s*what\(\):\s*(.+)$", re.MULTILINE)  # Of an exception in C++
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
    raised = (ABORTED if killed else RAISED).findall(said)
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
    why = f" ({raised[0][:200]})" if raised else ""
    is_own = raised and not killed
    remedy = "see whether one rank runs it" if is_own else "run it again, or with fewer ranks"
    return RanksError(f"{asked.layout}: rank {rank} ended {how}{why}; {remedy}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Communication:
    """One rank's communication in a step, in seconds, from its trace."""

    total_s: float
    exposed_s: float
    """The part that no compute hides; on CPUs it holds waiting for ranks that come later."""

    @property
    def overlap(self) -> float:
        """Return the share that compute hides; 0 without communication."""
        return 1 - self.exposed_s / self.total_s if self.total_s else 0.0


def communication_of(trace: Path) -> Communication:
    """Return the communication of a step, from a trace of PROFILED_STEPS steps."""
    whole = analyse(read(trace)).activity.whole()
    per_step = 1e9 * PROFILED_STEPS
    return Communication(
        total_s=whole.communication / per_step,
        exposed_s=whole.exposed_communication / per_step,
    )


TURN, LAUNCH = "parallel-turn", "parallel-launch"
"""Kinds of evidence: a turn that began or ended, and the results of one launch of its ranks."""


class RankLaunches:
    """Runs arms in new ranks, one launch after the other, within a turn's budget.

    Each launch's results go into the ledger. A turn that was cut off is resumed from them.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings, self.layout = settings, str(settings.layout)
        self.end_s = time.monotonic() + settings.budget_s - settings.gone_s
        self.launches = 0
        self.setup_s = self.step_s = 0.0
        """Start of the last launch that was timed, and a mean step of an arm."""
        self._began_at = ""  # evidence of any age, until it is known when the turn began
        self._began_at = self._begin()

    @property
    def left_s(self) -> float:
        return self.end_s - time.monotonic()

    def rounds(self, arms: int, launches: int) -> int:
        """Return the rounds for which each of so many launches has time; 0 for too few."""
        left_s = self.left_s / launches - self.setup_s
        found = even_rounds(left_s, arms * self.step_s, most=MOST_ROUNDS)
        return found if found >= LEAST_ROUNDS else 0

    def run(
        self, arms: Mapping[str, Candidate | None], rounds: int, **changes: Any
    ) -> tuple[list[RankResult], list[float]]:
        """Run arms in new ranks; return the results, and each arm's exposed communication."""
        asked = RankRequest(
            workload=self.settings.workload,
            options={**self.settings.options, **changes.pop("options", {})},
            layout=self.layout,
            arms=dict(arms),
            rounds=rounds,
            launch=self.launches,
            **changes,
        )
        self.launches += 1
        told = self._recall(LAUNCH, self._key(asked)) if self.settings.resume else None
        if told is None:
            told = self._launch(asked)
            self._remember(LAUNCH, self._key(asked), told)
        if not asked.shrunk:
            self.setup_s, self.step_s = told["setup_s"], told["step_s"]
        return [msgspec.convert(one, RankResult) for one in told["ranks"]], told["exposed_s"]

    def finish(self) -> None:
        """Note that the turn came to its end, so that nothing is left to resume."""
        self._remember(TURN, self._key(), {"finished": True})

    def _launch(self, asked: RankRequest) -> Payload:
        began_s = time.monotonic()
        with scratch.folder("ranks") as folder:
            found = run_ranks(asked, folder)
            exposed = [
                max(communication_of(folder / one.arms[name].trace).exposed_s for one in found)
                for name in (asked.arms if asked.traced else ())
            ]
        timed_s = [one.wall_time_s for one in found[0].samples] or [0.0]
        return {
            "ranks": [document_of(one) for one in found],
            "exposed_s": exposed,
            "setup_s": time.monotonic() - began_s - sum(timed_s),
            "step_s": sum(timed_s) / len(timed_s),
        }

    def _begin(self) -> str:
        """Note that the turn begins; return when it first began (UTC, ISO 8601)."""
        if not self.settings.resume:
            began_at = utc_now()
            self._remember(TURN, self._key(), {"began_at": began_at})
            return began_at
        found = self._recall(TURN, self._key())
        if found is None or "began_at" not in found:
            raise RatchetError(
                f"there is no unfinished turn of {self.settings.title!r} on {self.layout} in this "
                "ledger: run it without --resume"
            )
        return str(found["began_at"])

    def _key(self, asked: RankRequest | None = None) -> str:
        content: Payload = {"settings": self.settings.key()}
        if asked is not None:  # its rounds are what the budget has time for
            content["asked"] = document_of(asked)
            del content["asked"]["rounds"]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def _recall(self, kind: str, key: str) -> Payload | None:
        with Ledger.open(self.settings.ledger) as ledger:
            here = ledger.here(probe(str(self.settings.options["device"])))
            return ledger.recall(kind, key, fingerprint=here, since=self._began_at)

    def _remember(self, kind: str, key: str, payload: Payload) -> None:
        with Ledger.open(self.settings.ledger) as ledger:
            here = ledger.here(probe(str(self.settings.options["device"])))
            ledger.remember(kind, key, payload, fingerprint=here)
