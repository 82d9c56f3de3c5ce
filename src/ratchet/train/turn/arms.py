"""The processes that a turn keeps alive, each of which runs one candidate's step."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ratchet.base import scratch
from ratchet.base.devices.probe import Device
from ratchet.base.errors import OutOfTime, RatchetError
from ratchet.judge.steps.arms import ArmProcess, ArmSpec
from ratchet.train.recipe import Candidate, with_config
from ratchet.train.recipe.facts import ArmFacts, StepFacts
from ratchet.train.turn.arm import FACTORY, PROBE_FACTORY
from ratchet.train.turn.schedule import WARMUP_STEPS, Costs, TurnSchedule, crowding, together_s
from ratchet.train.turn.settings import Settings

MOST_LIVE_ARMS = 4
MEMORY_SHARE = 0.8


@dataclass(kw_only=True)
class LiveArms:
    """The arms in memory. The oldest make room for new ones."""

    settings: Settings
    device: Device
    schedule: TurnSchedule
    costs: Costs
    tell: Callable[..., None]
    folder: Path = field(default_factory=lambda: scratch.make("turn"))
    """A private folder for gradients, which is deleted when the turn ends."""
    is_random: bool = False  # True if the step draws random numbers, once known
    peak_memory_bytes: int = 0  # Peak memory of one arm of the step as written, once known
    _peaks_bytes: dict[str, int] = field(default_factory=dict)
    """Peak memory of the arms of other candidates, by key."""
    _live: dict[str, ArmProcess] = field(default_factory=dict)
    _compiled: set[str] = field(default_factory=set)
    """Keys of candidates whose process compiled graphs itself and was not started anew since."""
    _probe: ArmProcess | None = None

    def probe_vectors(self) -> None:
        """Have torch test the CPU's vector instructions beside the step as written's start."""
        if self.device.kind == "cpu":
            self._probe = ArmProcess(ArmSpec(name="probe", factory=PROBE_FACTORY))
            with contextlib.suppress(RatchetError):  # the first compile then does it itself
                self._probe.begin_start()
                self._probe.finish_start()
                self._probe.begin_call("probe")

    def written_spec(self) -> ArmSpec:
        """Return the arm spec of the step as its author wrote it, before its config is known."""
        given = {"workload": self.settings.workload, "options": self.settings.options}
        return ArmSpec(
            name="as written",
            factory=FACTORY,
            arguments={**given, "config": None, "kernels": []},
            deadline_s=self.schedule.deadline_s,
        )

    def spec(
        self,
        candidate: Candidate,
        *,
        factory: str = FACTORY,
        name: str = "",
        batch_size: int | None = None,
    ) -> ArmSpec:
        """Return the spec with which the judge starts a candidate in its own process."""
        options = self.settings.options.copy()
        if batch_size is not None:
            options["batch_size"] = batch_size
        arguments = candidate.arguments(self.settings.workload, options)
        return ArmSpec(
            name=name or candidate.key(),
            title=candidate.title,
            factory=factory,
            arguments={**arguments, "is_random": self.is_random},
            environment=candidate.config.variables(),
            deadline_s=self.schedule.deadline_s,
        )

    def live(self, candidate: Candidate) -> ArmProcess:
        """Return a candidate's running arm; start it and warm it up if necessary."""
        key = candidate.key()
        if key not in self._live:
            self._start([candidate])
        arm = self._live[key]
        arm.deadline_s = self.schedule.deadline_s
        return arm

    def adopt(self, candidate: Candidate, arm: ArmProcess, gradients: Path) -> None:
        """Use an arm that already runs a candidate, and the gradients it wrote, for the turn."""
        gradients.replace(self.gradients_path(candidate))
        self._live[candidate.key()] = arm

    def learn(self, facts: StepFacts) -> None:
        """Take over what the step as written is known to need."""
        self.is_random, self.peak_memory_bytes = facts.is_random, facts.peak_memory_bytes
        self.note_peak(with_config(facts.written, {}), facts.peak_memory_bytes)

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
        try:
            self._start(again)
        except OutOfTime:
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
        missing = [one for one in candidates if not self.is_live(one)]
        if len(missing) < 2 or len(missing) > self.costs.at_a_time or not self._fit(wanted):
            return
        for key in self._live.keys() - wanted:
            self._live.pop(key).close()
        with contextlib.suppress(RatchetError):
            self._start(missing)

    def _fit(self, keys: Collection[str]) -> bool:
        """Return True if arms of these keys may be in memory at once: two always may."""
        if len(keys) <= 2:
            return True
        return len(keys) <= MOST_LIVE_ARMS and self._needed_bytes(keys) <= self._room_bytes

    @property
    def _room_bytes(self) -> float:
        return MEMORY_SHARE * self.device.memory_bytes

    def _needed_bytes(self, keys: Iterable[str]) -> int:
        return sum(self._peaks_bytes.get(key, self.peak_memory_bytes) for key in keys)

    def note_peak(self, candidate: Candidate, peak_bytes: int) -> None:
        self._peaks_bytes[candidate.key()] = peak_bytes

    def peak_bytes(self, candidate: Candidate) -> int:
        """Return the peak memory of a candidate's arm that ran; 0 if none did."""
        return self._peaks_bytes.get(candidate.key(), 0)

    def fit_together(self, candidates: Iterable[Candidate]) -> bool:
        """Return True if arms of these candidates can be timed side by side.

        A candidate that never ran counts as much memory as the step as written.
        """
        return self._needed_bytes(one.key() for one in candidates) < self._room_bytes

    def _start(self, candidates: Sequence[Candidate]) -> None:
        if not candidates:
            return
        new = {one.key() for one in candidates}
        while self._live and not self._fit(self._live.keys() | new):
            self._live.pop(next(iter(self._live))).close()
        cold, count = sum(self.costs.is_cold(one) for one in candidates), len(candidates)
        crowd = crowding(cold, self.costs.at_a_time) if cold else together_s([1.0] * count, count)
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
                told = msgspec.convert(arm.describe(), ArmFacts)
                self.note_peak(candidate, told.peak_memory_bytes)
                compiled = told.compiled_graphs > 0
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

    def forget_dead(self) -> None:
        """Forget the arms that were ended at their deadline."""
        self._live = {name: arm for name, arm in self._live.items() if arm.pid is not None}

    def close(self) -> None:
        """End all processes."""
        if self._probe is not None:
            self._probe.close()
        for arm in self._live.values():
            arm.close()
        self._live.clear()
