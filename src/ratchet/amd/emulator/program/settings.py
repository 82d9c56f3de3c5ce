"""Settings of an emulated program, and the variable that hands them to its processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal, get_args

import msgspec

from ratchet.amd.architectures import ARCHITECTURES, PretendedDevice
from ratchet.amd.emulator.decode import TARGETS
from ratchet.amd.emulator.launch import INSTRUCTION_LIMIT
from ratchet.base.devices import catalogue
from ratchet.base.errors import KernelError

VARIABLE: Final = "RATCHET_EMULATE"
Autotune = Literal["first", "bound"]
LARGEST: Final = {"gfx90a": "MI250X", "gfx942": "MI300X", "gfx950": "MI355X"}
"""The device that a program is told about, of those that run a target's code."""
MAKER: Final = {"MI": "AMD Instinct", "RX": "AMD Radeon"}


class ProgramSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that every process of an emulated program needs to know."""

    target: str
    library: str
    """The compiled emulator."""
    folder: str
    """The folder in which each process writes what it launched."""
    autotune: Autotune = "first"
    limit: int = INSTRUCTION_LIMIT
    """The most wave instructions of one launch."""

    def publish(self) -> None:
        """Hand the settings to the processes that this one starts."""
        os.environ[VARIABLE] = self.text()

    def text(self) -> str:
        """Return the value of the variable."""
        return msgspec.json.encode(self).decode()


def published() -> ProgramSettings | None:
    """Return the settings that a parent process handed over, if one did."""
    text = os.environ.get(VARIABLE)
    return msgspec.json.decode(text, type=ProgramSettings) if text else None


def check_target(target: str) -> str:
    """Return a target that can be emulated; raises KernelError for another."""
    if target not in TARGETS:
        raise KernelError(f"target {target!r} is not emulated: use one of {', '.join(TARGETS)}")
    return target


def check_autotune(mode: str) -> Autotune:
    """Return a way to choose an autotuner's configuration; raises KernelError for another."""
    for one in get_args(Autotune):
        if one == mode:
            return one  # type: ignore[no-any-return]
    raise KernelError(f"--autotune {mode} is not known: use first or bound")


def pretended_device(target: str) -> PretendedDevice:
    """Return the device that a program on a target is told about."""
    found = catalogue.load().of_target(target)
    chosen = next((one for one in found if one.name == LARGEST.get(target)), None)
    device = chosen or max(found, key=lambda one: one.units or 0)
    maker = MAKER.get(device.name[:2], "AMD")
    return PretendedDevice(
        architecture=ARCHITECTURES[target],
        name=f"{maker} {device.name}",
        units=int(device.units or 0),
        memory_bytes=int((device.number("memory") or 64) * (1 << 30) / device.logical_devices),
    )


def inject_folder() -> Path:
    """Return the folder whose sitecustomize begins the emulation."""
    return Path(__file__).with_name("inject")
