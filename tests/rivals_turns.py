"""What candidates' processes do while it is their rival's turn: they must stand still.

A slower rival is hard to see in a few rounds on a busy machine; time on a core is not.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import pytest

from ratchet.base.measure import Timing
from ratchet.base.process import families
from ratchet.judge.trial.arms import RivalArm


@dataclass(kw_only=True, slots=True)
class RivalsTurns:
    """What was seen of every turn of the rival, from its start to its answer."""

    count: int = 0
    candidates_s: list[float] = field(default_factory=list)
    """Seconds on a core of all candidates' threads, of each turn."""
    cores: list[set[int]] = field(default_factory=list)
    """On which cores the rival's process might run, at the end of each turn."""
    nice: list[int] = field(default_factory=list)
    fates: set[str] = field(default_factory=set)
    """What became of the rival's outputs."""

    def assert_undisturbed(self) -> None:
        """There were turns, and no candidate ran in any of them."""
        assert self.count > 0
        assert max(self.candidates_s) < families.WAKING_S, self.candidates_s


def watch_rivals_turns(monkeypatch: pytest.MonkeyPatch) -> RivalsTurns:
    """Note all turns of the reference in this process's judges."""
    seen, run = RivalsTurns(), RivalArm.run

    def noted(self: RivalArm, iterations: int) -> Timing:
        began = candidates_work()
        timing = run(self, iterations)
        ended = candidates_work()
        seen.count += 1
        seen.candidates_s.append(
            sum(time_ns - began.get(thread, 0) for thread, time_ns in ended.items()) / 1e9
        )
        seen.fates.add(self.outputs)
        rival = self.process.pid
        seen.cores.append(os.sched_getaffinity(rival))
        seen.nice.append(os.getpriority(os.PRIO_PROCESS, rival))
        return timing

    monkeypatch.setattr(RivalArm, "run", noted)
    return seen


def candidates_work() -> dict[tuple[int, int], int]:
    """Nanoseconds on a core of each thread of the candidates that this process has started."""
    ours = families.family(os.getpid(), enclosed=True)
    heads = [pid for pid in ours if runs_candidate(pid)]
    work = families.work_done([*families.family(*heads)])
    return {thread: done[0] for thread, done in work.items()}


def runs_candidate(pid: int) -> bool:
    """Whether a process is a candidate's worker, or stands at its head: perhaps a zygote's fork."""
    if b"ratchet.judge.workers.candidate" in families._read(f"/proc/{pid}/cmdline"):
        return True
    state = families.read_state(pid)
    return state is not None and is_zygote(pid) and is_zygote(state.parent)


def is_zygote(pid: int) -> bool:
    """Whether a process is a zygote of candidates, or a fork of one."""
    command = families._read(f"/proc/{pid}/cmdline")
    return b"ratchet.judge.workers.zygote" in command and b"bwrap" not in command.split(b"\0")[0]


def let_candidates_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a control: no candidate is stopped any more, and nobody looks whether one has run."""
    stop = families.stop

    def unless_candidate(root: int, **named: object) -> list[int] | None:
        return [] if runs_candidate(root) else stop(root, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(families, "stop", unless_candidate)
