"""The launches of ranks in one turn: the time that is left for them, and what the ledger kept."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from ratchet.base import scratch
from ratchet.base.devices.probe import Device, probe
from ratchet.base.errors import RatchetError
from ratchet.base.ledger import Ledger
from ratchet.base.ledger.connect import utc_now
from ratchet.base.ledger.schema import Payload
from ratchet.base.measure.contest import LEAST_ROUNDS, MOST_ROUNDS, even_rounds
from ratchet.base.serialise import document_of
from ratchet.scale.parallel.bench import communication_of
from ratchet.scale.parallel.launch import run_ranks
from ratchet.scale.parallel.rank import RankArm, RankRequest, RankResult
from ratchet.train.turn.settings import Settings
from ratchet.train.workloads.parallel import ParallelLayout

TURN, LAUNCH = "parallel-turn", "parallel-launch"
"""Kinds of evidence: a turn that began or ended, and the results of one launch of its ranks."""


class RankLaunches:
    """Runs arms in new ranks, one launch after the other, within a turn's budget.

    Each launch's results go into the ledger. A turn that was cut off is resumed from them.
    """

    def __init__(self, settings: Settings, layout: ParallelLayout) -> None:
        self.settings, self.layout = settings, layout
        self.end_s = time.monotonic() + settings.budget_s - settings.gone_s
        self.launches = 0
        self.setup_s = self.step_s = 0.0
        """Start of the last launch that was timed, and a mean step of an arm."""
        self._began_at = ""
        self._began_at = self._begin()

    @property
    def left_s(self) -> float:
        """Return the seconds of the budget that are left."""
        return self.end_s - time.monotonic()

    def rounds(self, arms: int, launches: int) -> int:
        """Return the rounds for which each of so many launches has time; 0 for too few."""
        left_s = self.left_s / launches - self.setup_s
        found = even_rounds(left_s, arms * self.step_s, most=MOST_ROUNDS)
        return found if found >= LEAST_ROUNDS else 0

    def run(
        self, arms: Mapping[str, RankArm], rounds: int, **changes: Any
    ) -> tuple[list[RankResult], list[float]]:
        """Run arms in new ranks; return the results, and each arm's exposed communication."""
        asked = RankRequest(
            workload=self.settings.workload,
            options={**self.settings.options, **changes.pop("options", {})},
            layout=str(self.layout),
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
        content: Payload = {"settings": self.settings.key(), "layout": str(self.layout)}
        if asked is not None:  # its rounds are what the budget has time for
            content["asked"] = document_of(asked)
            del content["asked"]["rounds"]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def _recall(self, kind: str, key: str) -> Payload | None:
        with Ledger.open(self.settings.ledger) as ledger:
            here = ledger.here(self._device())
            return ledger.recall(kind, key, fingerprint=here, since=self._began_at)

    def _remember(self, kind: str, key: str, payload: Payload) -> None:
        with Ledger.open(self.settings.ledger) as ledger:
            ledger.remember(kind, key, payload, fingerprint=ledger.here(self._device()))

    def _device(self) -> Device:
        return probe(str(self.settings.options["device"]))
