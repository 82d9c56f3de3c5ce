"""Hold the state of one turn: ledger, device, clock, and the live arms."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ratchet.base import scratch
from ratchet.base.errors import DeadlinePassed, RatchetError
from ratchet.devices.ceilings import Ceilings
from ratchet.devices.probe import Device
from ratchet.judge.steps.arms import ArmProcess, ArmSpec
from ratchet.ledger import Fingerprint, Ledger
from ratchet.measure.sitting import StartScatter
from ratchet.optimize.arm import FACTORY, PROBE_FACTORY
from ratchet.optimize.step import allocators
from ratchet.optimize.step.candidate import Candidate
from ratchet.optimize.turn.costs import START_TOGETHER, WARMUP_STEPS, Costs, crowding, together_s
from ratchet.optimize.turn.result import Omission
from ratchet.optimize.turn.schedule import SAME_END_S, closing_s
from ratchet.optimize.turn.settings import Settings

Listener = Callable[[str, dict[str, Any]], None]
MOST_LIVE_ARMS = 4
MEMORY_SHARE = 0.8
SCATTER, MOST_KNOWN = "scatter", 20.0
"""Evidence of how far starts differ, and the degrees of freedom that older turns keep in it."""
MOST_NOISE = 1.5
"""Ratio of two copies of one step, at the end of its interval, from which a turn without proof
leaves no timings."""


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
    started_s: float = field(default_factory=time.monotonic)
    warnings: list[str] = field(default_factory=list)
    omissions: list[Omission] = field(default_factory=list)
    costs: Costs = field(default_factory=Costs)
    without_kernels: str = ""
    """The reason why no kernel can be tried on this machine; empty where kernels can be."""
    is_random: bool = False
    """True if the step draws random numbers, once known."""
    peak_memory_bytes: int = 0
    """Peak memory of one arm of the step as written, once known."""
    recalled: int = 0
    since: str = ""
    """Evidence from before this moment (UTC, ISO 8601) is not recalled."""
    _until_s: float = math.inf
    """End of the current stage, in seconds spent."""
    _skipped_s: float = 0.0
    """Original time of recalled evidence, beyond the time this turn took to recall it."""
    _noted_s: float = 0.0
    """When the latest evidence was found or recalled, in seconds spent."""
    _own: set[str] = field(default_factory=set)
    """Keys that this turn put into the ledger itself; finding them again is not a recall."""
    _live: dict[str, ArmProcess] = field(default_factory=dict)
    _compiled: set[str] = field(default_factory=set)
    """Keys of candidates whose process compiled graphs itself and was not started anew since."""
    _probe: ArmProcess | None = None
    _folder: Path | None = None

    def __post_init__(self) -> None:
        self.costs.at_a_time = max(1, min(START_TOGETHER, self.device.threads))

    def __enter__(self) -> Turn:
        self._folder = scratch.make("turn")
        return self

    def __exit__(self, *_: object) -> None:
        self.close_arms()
        self.ledger.close()
        if self._folder is not None:
            scratch.remove(self._folder)

    @property
    def folder(self) -> Path:
        """Return a private folder for gradients, which is deleted when the turn ends."""
        assert self._folder is not None, "the turn was not entered"
        return self._folder

    # The clock.

    @property
    def elapsed_s(self) -> float:
        """Return the seconds since this turn began."""
        return time.monotonic() - self.started_s

    @property
    def spent_s(self) -> float:
        """Return the seconds of the budget used so far, including those of recalled evidence.

        A second turn therefore makes the same decisions as the first and ends once it has recalled
        everything; a larger budget continues from there.
        """
        return self.elapsed_s + self._skipped_s

    @property
    def ends_s(self) -> float:
        """Return when the last measurement must end, in seconds spent."""
        return self.settings.budget_s - closing_s(self.settings.budget_s)

    def left_s(self) -> float:
        """Return the seconds left to the current stage; not below zero."""
        return max(0.0, min(self.ends_s, self._until_s) - self.spent_s)

    @property
    def deadline_s(self) -> float:
        """Return when the current stage must end, on the clock of `time.monotonic`."""
        return time.monotonic() + self.left_s()

    @contextlib.contextmanager
    def stage(self, until_s: float) -> Iterator[None]:
        """Limit the enclosed work to `until_s` seconds spent, or to the enclosing stage's end."""
        outer = self._until_s
        self._until_s = min(outer, until_s)
        try:
            yield
        finally:
            self._until_s = outer

    def leave_out(self, what: str, reason: str, *, for_want_of_budget: bool = True) -> None:
        """Record in the result that something was left out."""
        found = Omission(what=what, reason=reason, for_want_of_budget=for_want_of_budget)
        if found not in self.omissions:
            self.omissions.append(found)

    def warn(self, words: str) -> None:
        """Record a warning once."""
        if words not in self.warnings:
            self.warnings.append(words)

    def tell(self, event: str, **details: Any) -> None:
        self.listener(event, details)

    # The memory.

    def known_scatter(self) -> StartScatter | None:
        """Return how far starts of one step differed on this machine, as earlier turns found."""

        def known() -> dict[str, Any]:
            return self.ledger.recall(SCATTER, self._machine()) or {}

        found = self.memo("prior", SCATTER, known)  # a second turn decides as the first did
        return StartScatter(**found) if found else None

    def remember_scatter(self, own: StartScatter) -> None:
        """Pool what this turn found with what was known, for later turns."""
        if own.freedom <= 0:
            return
        newest = self.ledger.recall(SCATTER, self._machine())
        known = StartScatter(**(newest or {"variance": 0.0, "freedom": 0.0}))
        kept = min(known.freedom, MOST_KNOWN)
        freedom = own.freedom + kept
        variance = (own.variance * own.freedom + known.variance * kept) / freedom
        self.ledger.remember(
            SCATTER,
            self._machine(),
            {"variance": variance, "freedom": freedom},
            fingerprint=self.fingerprint,
        )

    def _machine(self) -> str:
        return f"{self.device.fingerprint}:{self.software_fingerprint}"

    def memo(self, kind: str, key: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the ledger's answer for this workload, device and software, or compute it.

        Raises DeadlinePassed if the stage ends before `compute` does, now or in an earlier turn
        whose stage ended no sooner.
        """
        found = self.known(kind, key)
        if found is not None:
            self.recalled += not self.is_own(kind, key)
            return found
        self._check_cut(kind, key)
        try:
            payload = compute()
        except DeadlinePassed:
            self._live = {name: arm for name, arm in self._live.items() if arm.pid is not None}
            self._remember("cut", f"{kind}:{key}", {"until_s": min(self.ends_s, self._until_s)})
            raise
        self._remember(kind, key, payload)
        self._noted_s = self.spent_s
        return payload

    def renew(self, kind: str, key: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Compute what the ledger knows once more, because a file that belongs to it is gone."""
        if self.left_s() <= 0:
            raise DeadlinePassed(f"no time is left to repeat this {kind}")
        payload = compute()
        self._remember(kind, key, payload)
        return payload

    def _remember(self, kind: str, key: str, payload: dict[str, Any]) -> None:
        self._own.add(f"{kind}:{key}")
        took_s = self.spent_s - self._noted_s
        evidence = {"answer": payload, "took_s": took_s, "costs": asdict(self.costs)}
        self.ledger.remember(kind, self._full_key(key), evidence, fingerprint=self.fingerprint)

    def _check_cut(self, kind: str, key: str) -> None:
        found = self._recall("cut", f"{kind}:{key}")
        ends_s = min(self.ends_s, self._until_s)
        if found is not None and float(found["answer"]["until_s"]) > ends_s - SAME_END_S:
            self._move_to(ends_s)
            raise DeadlinePassed(f"an earlier turn had no time for this {kind} either")

    def known(self, kind: str, key: str) -> dict[str, Any] | None:
        """Return the ledger's answer and advance the clock by the time that it took.

        That is the time since the evidence before it. The clock stops at the end of the stage.
        """
        found = self._recall(kind, key)
        if found is None:
            return None
        took_s = float(found.get("took_s", 0.0))  # older ledgers lack it
        self._move_to(min(self._noted_s + took_s, self.ends_s, self._until_s))
        self._noted_s = self.spent_s
        self.costs.learn(found.get("costs", {}))
        answer: dict[str, Any] = found["answer"]
        return answer

    def _move_to(self, spent_s: float) -> None:
        self._skipped_s += max(0.0, spent_s - self.spent_s)

    def is_own(self, kind: str, key: str) -> bool:
        """Return True if this turn found the answer itself."""
        return f"{kind}:{key}" in self._own

    def holds(self, kind: str, key: str) -> bool:
        """Return True if the ledger knows the answer, without advancing the clock."""
        return self._recall(kind, key) is not None

    def _recall(self, kind: str, key: str) -> dict[str, Any] | None:
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
        parts = (self.settings.key(), *here, key)
        return ":".join(parts)

    # The arms.

    def written_spec(self) -> ArmSpec:
        """Return the arm spec of the step as its author wrote it, before its config is known."""
        arguments: dict[str, Any] = {
            "workload": self.settings.workload,
            "options": self.settings.options,
            "config": None,
            "kernels": [],
        }
        return ArmSpec(
            name="as written", factory=FACTORY, arguments=arguments, deadline_s=self.deadline_s
        )

    def probe_vectors(self) -> None:
        """Have torch test the CPU's vector instructions beside the step as written's start."""
        if self.device.kind == "cpu":
            self._probe = ArmProcess(ArmSpec(name="probe", factory=PROBE_FACTORY))
            with contextlib.suppress(RatchetError):  # the first compile then does it itself
                self._probe.begin_start()
                self._probe.finish_start()
                self._probe.begin_call("probe")

    def spec(self, candidate: Candidate, *, factory: str = FACTORY, name: str = "") -> ArmSpec:
        """Return the spec with which the judge starts a candidate in its own process."""
        arguments = candidate.arguments(self.settings.workload, self.settings.options)
        return ArmSpec(
            name=name or candidate.key(),
            title=candidate.title,
            factory=factory,
            arguments={**arguments, "is_random": self.is_random},
            environment=allocators.environment(candidate.config),
            deadline_s=self.deadline_s,
        )

    def live(self, candidate: Candidate) -> ArmProcess:
        """Return a candidate's running arm; start it and warm it up if necessary."""
        key = candidate.key()
        if key not in self._live:
            self._start([candidate])
        arm = self._live[key]
        arm.deadline_s = self.deadline_s
        return arm

    def adopt(self, candidate: Candidate, arm: ArmProcess, gradients: Path) -> None:
        """Use an arm that already runs a candidate, and the gradients it wrote, for the turn."""
        gradients.replace(self.gradients_path(candidate))
        self._live[candidate.key()] = arm

    def is_live(self, candidate: Candidate) -> bool:
        return candidate.key() in self._live

    def will_restart(self, candidate: Candidate) -> bool:
        """Return True if its process, or one that is still to start, will be started anew."""
        if self.device.kind != "cpu":
            return False
        key = candidate.key()
        return key in self._compiled if key in self._live else self.costs.is_cold(candidate)

    def restart_compiled(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Start arms anew that compiled their code themselves, now from warm caches; return them.

        Such a process stays slower than one that found the code in the cache, by about 4 % (a step
        of moe-42m on two Intel cores), and users' later runs find it there. What could not be
        started is started by `live`, which tells why.
        """
        again = [one for one in candidates if self.is_live(one) and self.will_restart(one)]
        for one in again:
            self.drop(one)
        if again:
            try:
                self._start(again)
            except DeadlinePassed:
                raise
            except RatchetError:
                pass
        self._compiled -= {one.key() for one in again}
        return again

    def start_together(self, candidates: Sequence[Candidate]) -> None:
        """Start arms at the same time, since each imports and traces on one core.

        If that fails, `live` starts the arms one by one and reports the reason.
        """
        wanted = {one.key() for one in candidates}
        missing = [one for one in candidates if one.key() not in self._live]
        if len(missing) < 2 or len(wanted) > self.most_live or self.device.kind != "cpu":
            return
        for key in [key for key in self._live if key not in wanted]:
            self._live.pop(key).close()
        with contextlib.suppress(RatchetError):
            self._start(missing)

    @property
    def most_live(self) -> int:
        """Return how many arms may be in memory at once."""
        fitting = MEMORY_SHARE * self.device.memory_bytes / max(1, self.peak_memory_bytes)
        return max(2, min(MOST_LIVE_ARMS, int(fitting)))

    def _start(self, candidates: Sequence[Candidate]) -> None:
        self._make_room(len(candidates))
        cold, count = sum(self.costs.is_cold(one) for one in candidates), len(candidates)
        crowd = crowding(cold) if cold else together_s([1.0] * count, count)
        begun = time.monotonic()
        arms = [ArmProcess(self.spec(candidate)) for candidate in candidates]
        with contextlib.ExitStack() as stack:
            for arm, candidate in zip(arms, candidates, strict=True):
                self.tell("start", title=candidate.title)
                stack.callback(arm.close)
                arm.begin_start()
            for arm, candidate in zip(arms, candidates, strict=True):
                arm.finish_start()
                self.costs.note_plain(arm.setup_time_s)
                arm.begin_call("gradients", path=str(self.gradients_path(candidate)))
            for arm in arms:
                arm.finish_call()
                arm.begin_run(1)
            for arm, candidate in zip(arms, candidates, strict=True):
                arm.finish_run()
                setup_s = time.monotonic() - begun
                compiled = int(arm.describe().get("compiled_graphs", 0)) > 0
                self.costs.note_setup(
                    candidate, setup_s, alone_s=setup_s / crowd, compiled=compiled
                )
                (self._compiled.add if compiled else self._compiled.discard)(candidate.key())
            for arm in arms:
                arm.run(WARMUP_STEPS - 1)
            stack.pop_all()
        self._live |= {one.key(): arm for one, arm in zip(candidates, arms, strict=True)}

    def gradients_path(self, candidate: Candidate) -> Path:
        return self.folder / f"{candidate.key()}.safetensors"

    def drop(self, candidate: Candidate) -> None:
        """End a candidate's process if it is running."""
        arm = self._live.pop(candidate.key(), None)
        if arm is not None:
            arm.close()

    def close_arms(self) -> None:
        if self._probe is not None:
            self._probe.close()
        for arm in self._live.values():
            arm.close()
        self._live.clear()

    def _make_room(self, count: int) -> None:
        """Close the oldest arms to make room for `count` new ones."""
        while self._live and len(self._live) + count > self.most_live:
            oldest = next(iter(self._live))
            self._live.pop(oldest).close()
