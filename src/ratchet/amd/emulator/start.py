"""Begin the emulation in this process: torch and Triton meet the GPU until the process ends."""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from pathlib import Path
from typing import Final

import msgspec
import torch
import triton

from ratchet import base
from ratchet.amd.compile.torch_cuda import asked
from ratchet.amd.emulator.estimates import bound_s
from ratchet.amd.emulator.launch import FailedLaunch
from ratchet.amd.emulator.loading import EmulatedLaunch, EmulatorDriver, poison_new_memory
from ratchet.amd.emulator.pretending import EmulatedGpu
from ratchet.amd.emulator.program import VARIABLE, ProcessRecord, ProgramSettings
from ratchet.base import Json
from ratchet.judge.workers.candidate.census import add_launch

WRITE_EVERY_S: Final = 5.0
LIBRARIES: Final = tuple(
    f"{folder}{os.sep}"
    for folder in (Path(torch.__file__).parent, Path(triton.__file__).parent, base.FOLDER)
)


_begun: Final = contextlib.ExitStack()
"""Everything that was changed; nothing is undone before the process ends."""
_drivers: Final[list[RecordingDriver]] = []


class RecordingDriver(EmulatorDriver):
    """Writes the launches of this process into the program's folder."""

    def __init__(self, settings: ProgramSettings) -> None:
        super().__init__(
            settings.pretended(),
            Path(settings.library),
            lambda path: not path.startswith(LIBRARIES),
            predicts=True,
        )
        self.limit = settings.limit
        self.has_prices = settings.autotune == "bound"
        self._settings = settings
        self._forget()
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.write)

    def _forget(self) -> None:
        """Begin anew, in a forked process too: the parent writes what was before."""
        self._groups: dict[str, dict[str, Json]] = {}
        self._failed: dict[FailedLaunch, int] = {}
        self._written_s = time.monotonic()
        asked.clear()

    def add(self, launch: EmulatedLaunch) -> None:
        """Count a launch; those of one kernel on equal grids are added up."""
        key = f"{launch.name}|{launch.programs}|{launch.waves}"
        add_launch(self._groups, launch, key=key, shown=False)
        self._groups[key]["file"] = launch.file
        if time.monotonic() - self._written_s > WRITE_EVERY_S:
            self.write()

    def fail(self, launch: FailedLaunch) -> None:
        """Count a launch that was not executed."""
        self._failed[launch] = self._failed.get(launch, 0) + 1
        self.write()

    def price_s(self, launch: EmulatedLaunch) -> float:
        """Return the lower bound on the time of a launch; 0 without a known device."""
        told: dict[str, Json] = {}
        add_launch(told, launch, shown=False)
        return bound_s(told, self._settings.target)

    def write(self) -> None:
        """Write everything so far, unless nothing happened."""
        self._written_s = time.monotonic()
        if not (self._groups or self._failed or asked):
            return
        record = ProcessRecord(
            groups=self._groups,
            failed=[(one, count) for one, count in self._failed.items()],
            asked=dict(asked),
        )
        path = Path(self._settings.folder) / f"{os.getpid()}.json"
        if not path.parent.exists():  # the suite is over, and has told
            return
        part = path.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(record))
        part.replace(path)


def begin_from_environment() -> None:
    """Begin once, with the settings that a parent process handed over, if one did."""
    text = os.environ.get(VARIABLE)
    if not text or _drivers:
        return
    settings = msgspec.json.decode(text, type=ProgramSettings)
    driver = RecordingDriver(settings)
    poison_new_memory()
    driver.install()
    _begun.enter_context(EmulatedGpu(settings.pretended()).entered())
    _drivers.append(driver)


def write_now() -> None:
    """Write what this process has launched so far."""
    for one in _drivers:
        one.write()
