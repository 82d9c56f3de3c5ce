"""Hold the state of one turn: ledger, device, schedule, and what the ledger remembers."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TypeVar

import msgspec

from ratchet.base import Json, scratch
from ratchet.base.devices.ceilings import Ceilings
from ratchet.base.devices.probe import Device
from ratchet.base.errors import OutOfTime
from ratchet.base.ledger import Fingerprint, Ledger
from ratchet.base.ledger.schema import Payload
from ratchet.base.measure.sitting import StartScatter
from ratchet.base.serialise import document_of
from ratchet.train.turn.arms import LiveArms
from ratchet.train.turn.optimize_result import Omission
from ratchet.train.turn.schedule import SAME_END_S, Costs, TurnSchedule, starts_at_once
from ratchet.train.turn.settings import Settings

Listener = Callable[[str, Payload], None]
SCATTER, MOST_KNOWN = "scatter", 20.0
"""Evidence of how far starts differ, and the degrees of freedom that older turns keep in it."""
Answered = TypeVar("Answered")
MOST_NOISE = 1.5
"""Ratio of two copies of one step, at the end of its interval, from which a turn without proof
leaves no timings."""


@dataclass(frozen=True, slots=True)
class KnownScatter:
    """The scatter of starts that earlier turns found; None if there was none."""

    scatter: StartScatter | None


@dataclass(kw_only=True)
class Turn:
    """The state that every stage needs. A stage asks `memo` first, so nothing is proven twice."""

    settings: Settings
    ledger: Ledger
    device: Device
    ceilings: Ceilings | None
    software: dict[str, str]
    software_fingerprint: str
    listener: Listener
    schedule: TurnSchedule
    warnings: list[str] = field(default_factory=list)
    omissions: list[Omission] = field(default_factory=list)
    costs: Costs = field(default_factory=Costs)
    without_kernels: str = ""
    """The reason why no kernel can be tried on this machine; empty where kernels can be."""
    recalled: int = 0
    since: str = ""  # Evidence from before this moment (UTC, ISO 8601) is not recalled
    _noted_s: float = 0.0  # When the latest evidence was found or recalled, in seconds spent
    _own: set[str] = field(default_factory=set)
    """Keys that this turn put into the ledger itself; finding them again is not a recall."""

    def __post_init__(self) -> None:
        on_cpu = self.device.kind == "cpu"
        cores = self.device.threads if on_cpu else len(os.sched_getaffinity(0))
        self.costs.at_a_time = starts_at_once(cores)
        self.arms = LiveArms(
            settings=self.settings,
            device=self.device,
            schedule=self.schedule,
            costs=self.costs,
            tell=self.tell,
        )

    def __enter__(self) -> Turn:
        return self

    def __exit__(self, *_: object) -> None:
        self.arms.close()
        self.ledger.close()
        scratch.remove(self.arms.folder)

    def leave_out(self, what: str, reason: str, *, for_want_of_budget: bool = True) -> None:
        """Record in the result that something was left out."""
        found = Omission(what=what, reason=reason, for_want_of_budget=for_want_of_budget)
        if found not in self.omissions:
            self.omissions.append(found)

    def warn(self, words: str) -> None:
        if words not in self.warnings:
            self.warnings.append(words)

    def tell(self, event: str, **details: object) -> None:
        self.listener(event, details)

    # What the ledger remembers.

    def memo(
        self, kind: str, key: str, answer: type[Answered], compute: Callable[[], Answered]
    ) -> Answered:
        """Return the ledger's answer for this workload, device and software, or compute it.

        `answer` is its type: a dataclass, a Struct, or JSON's own.
        Raises OutOfTime if the stage ends before `compute` does, now or in an earlier turn
        whose stage ended no sooner.
        """
        found = self.known(kind, key)
        if found is not None:
            return msgspec.convert(found, answer)
        self._check_cut(kind, key)
        since_s = self._noted_s  # what `compute` remembers is not recalled once this is
        try:
            computed = compute()
        except OutOfTime:
            self.arms.forget_dead()
            until = {"until_s": self.schedule.stage_ends_s}
            self._remember("cut", f"{kind}:{key}", until, since_s=since_s)
            raise
        self._remember(kind, key, document_of(computed), since_s=since_s)
        self._noted_s = self.schedule.spent_s
        return computed

    def renew(
        self, kind: str, key: str, answer: type[Answered], compute: Callable[[], Answered]
    ) -> Answered:
        """Compute what the ledger knows once more, because a file that belongs to it is gone."""
        self.schedule.check(f"repeat this {kind}")
        computed = compute()
        self._remember(kind, key, document_of(computed), since_s=self._noted_s)
        return computed

    def _remember(self, kind: str, key: str, payload: object, *, since_s: float) -> None:
        self._own.add(f"{kind}:{key}")
        took_s = self.schedule.spent_s - since_s
        evidence = {"answer": payload, "took_s": took_s, "costs": asdict(self.costs)}
        self.ledger.remember(kind, self._full_key(key), evidence, fingerprint=self.fingerprint)

    def _check_cut(self, kind: str, key: str) -> None:
        found, ends_s = self._recall("cut", f"{kind}:{key}"), self.schedule.stage_ends_s
        if found is not None and float(found["answer"]["until_s"]) > ends_s - SAME_END_S:
            self.schedule.advance(ends_s)
            raise OutOfTime(f"an earlier turn had no time for this {kind} either")

    def known(self, kind: str, key: str) -> Json:
        """Return the ledger's answer or None; advance the clock by the time that it took.

        That is the time since the evidence before it. The clock stops at the end of the stage.
        """
        found = self._recall(kind, key)
        if found is None:
            return None
        self.recalled += not self.is_own(kind, key)
        took_s = float(found.get("took_s", 0.0))  # older ledgers lack it
        self.schedule.advance(min(self._noted_s + took_s, self.schedule.stage_ends_s))
        self._noted_s = self.schedule.spent_s
        self.costs.learn(found.get("costs", {}))
        return found["answer"]

    def is_own(self, kind: str, key: str) -> bool:
        """Return True if this turn found the answer itself."""
        return f"{kind}:{key}" in self._own

    def holds(self, kind: str, key: str) -> bool:
        """Return True if the ledger knows the answer, without advancing the clock."""
        return self._recall(kind, key) is not None

    def _recall(self, kind: str, key: str) -> Payload | None:
        return self.ledger.recall(kind, self._full_key(key), since=self.since)

    def forget_fruitless(self) -> None:
        """Forget the timings of earlier turns if the last one to finish had a bad hour.

        That is one that compared nothing, that proved nothing and whose noise floor reached
        `MOST_NOISE`, or that could try no kernel on this machine. It may have run on loaded cores:
        with its timings the budget would be too short again. Verdicts on kernels stay, and so does
        what an unfinished turn has found since.
        """
        last = self.ledger.last_finish(self.settings.key(), fingerprint=self.fingerprint)
        if last is None:
            return
        ended_at, found = last
        noise = (found.get("floor") or {}).get("high", 1.0)
        is_noisy = noise >= MOST_NOISE and found.get("recipe_is") != "proven"
        if is_noisy or not found.get("speedup") or found.get("without_kernels"):
            self.since = ended_at

    @property
    def fingerprint(self) -> Fingerprint:
        return Fingerprint(device=self.device.fingerprint, software=self.software_fingerprint)

    def _full_key(self, key: str) -> str:
        here = (self.device.fingerprint, self.software_fingerprint, self.software["ratchet"])
        return ":".join((self.settings.key(), *here, key))

    def known_scatter(self) -> StartScatter | None:
        """Return how far starts of one step differ here, as earlier turns found."""

        def known() -> KnownScatter:
            found = self.ledger.recall(SCATTER, self._machine())
            return KnownScatter(StartScatter(**found) if found else None)

        # A second turn decides as the first did.
        return self.memo("prior", SCATTER, KnownScatter, known).scatter

    def remember_scatter(self, own: StartScatter) -> None:
        """Pool what this turn found with what was known, for later turns."""
        if own.freedom <= 0:
            return
        newest = self.ledger.recall(SCATTER, self._machine())
        known = StartScatter(**(newest or {"variance": 0.0, "freedom": 0.0}))
        kept = min(known.freedom, MOST_KNOWN)
        freedom = own.freedom + kept
        variance = (own.variance * own.freedom + known.variance * kept) / freedom
        pooled = {"variance": variance, "freedom": freedom}
        self.ledger.remember(SCATTER, self._machine(), pooled, fingerprint=self.fingerprint)

    def _machine(self) -> str:
        return f"{self.device.fingerprint}:{self.software_fingerprint}"
