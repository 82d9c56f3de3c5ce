"""The state of one turn: ledger, device, clock, and the arms that are alive."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from ratchet.devices.ceilings import Ceilings
from ratchet.devices.probe import Device
from ratchet.judge.arms import ArmProcess, ArmSpec
from ratchet.ledger import Fingerprint, Ledger
from ratchet.optimize import allocators
from ratchet.optimize.arm import FACTORY
from ratchet.optimize.candidate import Candidate
from ratchet.optimize.settings import Settings

Listener = Callable[[str, dict[str, Any]], None]
FOLDER_PREFIX = "ratchet-turn-"
MOST_LIVE_ARMS = 3
WARMUP_STEPS = 3


@dataclass(kw_only=True)
class Turn:
    """Everything a stage needs. A stage asks `memo` first, so that nothing is proven twice."""

    settings: Settings
    ledger: Ledger
    device: Device
    ceilings: Ceilings | None
    software: dict[str, str]
    software_fingerprint: str
    listener: Listener
    started_s: float = field(default_factory=time.monotonic)
    warnings: list[str] = field(default_factory=list)
    peak_memory_bytes: int = 0
    """Of one arm of the step as written, once it is known."""
    recalled: int = 0
    _own: set[str] = field(default_factory=set)
    """What this turn put into the ledger itself: finding it again is no recall."""
    _live: dict[str, ArmProcess] = field(default_factory=dict)
    _folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Turn:
        clear_folders_of_the_dead()
        self._folder = tempfile.TemporaryDirectory(prefix=f"{FOLDER_PREFIX}{os.getpid()}-")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close_arms()
        self.ledger.close()
        if self._folder is not None:
            self._folder.cleanup()

    @property
    def folder(self) -> Path:
        """A private folder for gradients, gone when the turn ends."""
        assert self._folder is not None, "the turn was not entered"
        return Path(self._folder.name)

    # The clock.

    @property
    def spent_s(self) -> float:
        return time.monotonic() - self.started_s

    def left_s(self, share: float = 1.0) -> float:
        """Seconds left of the first `share` of the budget; not below zero."""
        return max(0.0, self.settings.budget_s * share - self.spent_s)

    def tell(self, event: str, **details: Any) -> None:
        self.listener(event, details)

    # The memory.

    def memo(self, kind: str, key: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What the ledger holds for this workload, device and software, or what `compute` gives."""
        found = self.ledger.recall(kind, self._full_key(key))
        if found is not None:
            self.recalled += f"{kind}:{key}" not in self._own
            return found
        payload = compute()
        self._own.add(f"{kind}:{key}")
        self.ledger.remember(kind, self._full_key(key), payload, fingerprint=self.fingerprint)
        return payload

    def known(self, kind: str, key: str) -> dict[str, Any] | None:
        return self.ledger.recall(kind, self._full_key(key))

    @property
    def fingerprint(self) -> Fingerprint:
        return Fingerprint(device=self.device.fingerprint, software=self.software_fingerprint)

    def _full_key(self, key: str) -> str:
        here = (self.device.fingerprint, self.software_fingerprint, self.software["ratchet"])
        parts = (self.settings.key(), *here, key)
        return ":".join(parts)

    # The arms.

    def written_spec(self) -> ArmSpec:
        """How the step is started as its author wrote it, before its config is known."""
        arguments: dict[str, Any] = {
            "workload": self.settings.workload,
            "options": self.settings.options,
            "config": None,
            "kernels": [],
        }
        return ArmSpec(name="as written", factory=FACTORY, arguments=arguments)

    def spec(self, candidate: Candidate, *, factory: str = FACTORY, name: str = "") -> ArmSpec:
        """How the judge starts a candidate in a process of its own."""
        return ArmSpec(
            name=name or candidate.key(),
            factory=factory,
            arguments=candidate.arguments(self.settings.workload, self.settings.options),
            environment=allocators.environment(candidate.config),
        )

    def live(self, candidate: Candidate) -> ArmProcess:
        """The running arm of a candidate, started and warmed up where it is not."""
        key = candidate.key()
        if key not in self._live:
            self._make_room()
            self.tell("start", title=candidate.title)
            begun = time.monotonic()
            arm = ArmProcess(self.spec(candidate))
            arm.__enter__()
            self._live[key] = arm
            arm.call("gradients", path=str(self.gradients_path(candidate)))
            arm.run(1)
            self._note_setup(candidate, time.monotonic() - begun)
            arm.run(WARMUP_STEPS - 1)
        return self._live[key]

    def setup_s(self, candidate: Candidate) -> float:
        """Seconds from the start of the candidate's process to the end of its first step.

        Of the first start on this machine, before compile caches were warm; 0 where unknown.
        """
        known = self.known("setup", candidate.key())
        return float(known["setup_s"]) if known else 0.0

    def _note_setup(self, candidate: Candidate, setup_s: float) -> None:
        self.memo("setup", candidate.key(), lambda: {"setup_s": setup_s})

    def gradients_path(self, candidate: Candidate) -> Path:
        return self.folder / f"{candidate.key()}.safetensors"

    def drop(self, candidate: Candidate) -> None:
        """End a candidate's process, where it runs."""
        arm = self._live.pop(candidate.key(), None)
        if arm is not None:
            arm.close()

    def close_arms(self) -> None:
        for arm in self._live.values():
            arm.close()
        self._live.clear()

    def _make_room(self) -> None:
        """Keep few arms alive: the oldest goes first."""
        while len(self._live) >= MOST_LIVE_ARMS:
            oldest = next(iter(self._live))
            self._live.pop(oldest).close()


def clear_folders_of_the_dead() -> None:
    """Remove the gradients that killed turns left behind: each folder carries its process's id."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        owner = folder.name.removeprefix(FOLDER_PREFIX).partition("-")[0]
        if owner.isdigit() and not Path("/proc", owner).exists():
            shutil.rmtree(folder, ignore_errors=True)
