"""The processes that a turn keeps alive, each of which runs one candidate's step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ratchet.base import scratch
from ratchet.base.devices.probe import Device
from ratchet.base.errors import OutOfTime, RatchetError
from ratchet.judge.steps.arms import ArmProcess, ArmSpec, calling, running
from ratchet.train.recipe import Candidate, with_config
from ratchet.train.recipe.facts import ArmFacts, StepFacts
from ratchet.train.turn.arm import FACTORY, PROBE_FACTORY
from ratchet.train.turn.schedule import (
    STARTING,
    WARMUP_STEPS,
    Costs,
    TurnSchedule,
    crowding,
    together_s,
)
from ratchet.train.turn.settings import Settings

MOST_LIVE_ARMS = 4
MEMORY_SHARE = 0.8


@dataclass(frozen=True, kw_only=True, slots=True)
class Starting:
    """An arm that starts while the turn does something else."""

    candidate: Candidate
    arm: ArmProcess
    crowd: float  # How much longer it takes than alone, for what starts beside it


@dataclass(kw_only=True)
class LiveArms:
    """The arms in memory. The oldest make room for new ones.

    An arm may start while the turn does something else: `begin`, then `live`. Whoever times
    anything stops those that start meanwhile (`quiet`).
    """

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
    _starting: dict[str, Starting] = field(default_factory=dict)
    _compiled: set[str] = field(default_factory=set)
    """Keys of candidates whose process compiled graphs itself and was not started anew since."""
    _probe: ArmProcess | None = None

    def probe_vectors(self) -> None:
        """Have torch test the CPU's vector instructions beside the step as written's start."""
        if self.device.kind == "cpu":
            self._probe = ArmProcess(ArmSpec(name="probe", factory=PROBE_FACTORY))
            with contextlib.suppress(RatchetError):  # the first compile then does it itself
                self._probe.begin_start(calling("probe"))

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
        """Return a candidate's running arm, warmed up; start it first if no one has."""
        key = candidate.key()
        if key not in self._live:
            if key not in self._starting:
                self._begin([candidate])
            self._finish([key])
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
        """Return True if its arm runs, or starts."""
        return candidate.key() in self._live or candidate.key() in self._starting

    @property
    def any_starts(self) -> bool:
        return bool(self._starting)

    @property
    def are_busy(self) -> bool:
        """Return True if an arm that starts is not ready yet."""
        return any(not one.arm.has_answered for one in self._starting.values())

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
            self._begin(again)
            self._finish([one.key() for one in again])
        except OutOfTime:
            raise
        except RatchetError:
            pass
        self._compiled -= {one.key() for one in again}
        return again

    def begin(self, candidates: Sequence[Candidate]) -> None:
        """Let arms start, each on one core for its imports and tracing, and go on at once.

        What cannot start beside the others is started by `live`, which also reports why one failed.
        """
        missing = [one for one in candidates if not self.is_live(one)]
        room = self.costs.at_a_time - len(self._starting)
        wanted = {one.key() for one in candidates}
        if not missing or len(missing) > room or not self._fit(wanted | self._starting.keys()):
            return
        with contextlib.suppress(RatchetError):
            self._begin(missing, kept=wanted)

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Stop the arms that start, while something is timed."""
        stopped, beside = [], [one.arm for one in self._starting.values()]
        for arm in (*beside, self._probe) if self._probe is not None else beside:
            with contextlib.suppress(RatchetError):  # `live` reports an arm that has died
                arm.pause()
                stopped.append(arm)
        try:
            yield
        finally:
            for arm in stopped:
                with contextlib.suppress(RatchetError):
                    arm.resume()

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

    def _begin(self, candidates: Sequence[Candidate], kept: Collection[str] = ()) -> None:
        """Let arms start; the oldest make room for them, those in `kept` the last."""
        if not candidates:
            return
        new = {one.key() for one in candidates} | self._starting.keys()
        oldest = sorted(self._live, key=lambda key: key in kept)
        while oldest and not self._fit(self._live.keys() | new):
            self._live.pop(oldest.pop(0)).close()
        beside = [*candidates, *(one.candidate for one in self._starting.values())]
        cold, count = sum(self.costs.is_cold(one) for one in beside), len(beside)
        crowd = crowding(cold, self.costs.at_a_time) if cold else together_s([1.0] * count, count)
        with contextlib.ExitStack() as stack:
            begun = {}
            for one in candidates:
                self.tell("start", title=one.title)
                arm = ArmProcess(self.spec(one))
                stack.callback(arm.close)
                path = str(self.gradients_path(one))
                arm.begin_start(calling("gradients", path=path), running(1))
                begun[one.key()] = Starting(candidate=one, arm=arm, crowd=crowd)
            stack.pop_all()
        self._starting |= begun

    def _finish(self, keys: Sequence[str]) -> None:
        """Wait for arms that start, then warm them up."""
        finished = [self._starting.pop(key) for key in keys]
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.schedule.doing(STARTING))
            for one in finished:
                stack.callback(one.arm.close)
            for one in finished:
                arm, candidate = one.arm, one.candidate
                arm.deadline_s = self.schedule.deadline_s
                arm.finish_start()
                self.costs.note_plain(arm.setup_time_s)
                told = msgspec.convert(arm.describe(), ArmFacts)
                self.note_peak(candidate, told.peak_memory_bytes)
                compiled, setup_s = told.compiled_graphs > 0, arm.ready_time_s
                self.costs.note_setup(
                    candidate, setup_s, alone_s=setup_s / one.crowd, compiled=compiled
                )
                (self._compiled.add if compiled else self._compiled.discard)(candidate.key())
            for one in finished:
                one.arm.run(WARMUP_STEPS - 1, timed=not self._starting)
            stack.pop_all()
        self._live |= {one.candidate.key(): one.arm for one in finished}

    def gradients_path(self, candidate: Candidate) -> Path:
        return self.folder / f"{candidate.key()}.safetensors"

    def drop(self, candidate: Candidate) -> None:
        """End a candidate's process if it is running."""
        key = candidate.key()
        if key in self._starting:
            self._starting.pop(key).arm.close()
        if key in self._live:
            self._live.pop(key).close()

    def forget_dead(self) -> None:
        """Forget the arms that were ended at their deadline."""
        self._live = {name: arm for name, arm in self._live.items() if arm.pid is not None}

    def close(self) -> None:
        if self._probe is not None:
            self._probe.close()
            self._probe = None
        for arm in (*self._live.values(), *(one.arm for one in self._starting.values())):
            arm.close()
        self._live.clear()
        self._starting.clear()
