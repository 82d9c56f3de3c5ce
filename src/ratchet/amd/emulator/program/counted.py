"""The result of an emulated program: launches, faults, hot lines and bounds."""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import msgspec

from ratchet.amd.emulator.estimates.bound import estimate
from ratchet.amd.emulator.estimates.counts import read_told
from ratchet.amd.emulator.loading import FailedLaunch
from ratchet.base import Json
from ratchet.judge.verdict import EmulatedBound, EmulatedKernel

HOTTEST: Final = 3
UNITS: Final = ("memory", "matrix", "vector", "lds")


class ProcessRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The launches of one process, as they are written to a file."""

    groups: dict[str, dict[str, Json]]
    """Counts in the form of a census, by kernel, programs and waves, and the kernel's file."""
    failed: list[tuple[FailedLaunch, int]]
    asked: dict[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class HotLine:
    """A source line with its shares of the kernel's cycles and bytes."""

    place: str
    text: str
    cycles: float
    moved: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramKernel:
    """The launches of one kernel, added up."""

    name: str
    launches: int
    instructions: int
    touched_bytes: int
    bound_s: float | None
    """A lower bound on the time of all launches; None without a known device."""
    limit: str
    """The unit with most of the bound: memory, matrix, vector or lds."""
    hottest: tuple[HotLine, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramFault:
    """A launch that failed, with how often it did."""

    kernel: str
    kind: str
    """`refused`: the emulator cannot run it. `fault`: the kernel did what a GPU forbids."""
    reason: str
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramResult:
    """An emulated program, when it is over."""

    target: str
    device: str
    command: tuple[str, ...]
    exit_code: int
    kernels: tuple[ProgramKernel, ...]
    faults: tuple[ProgramFault, ...]
    asked: Mapping[str, int] = field(default_factory=dict)
    """Questions of the program that have no true answer, with counts."""

    @property
    def launches(self) -> int:
        """The launches that were executed."""
        return sum(one.launches for one in self.kernels)

    @property
    def code(self) -> int:
        """The exit code: the program's, or 1 if it hid a launch that failed."""
        return self.exit_code or int(bool(self.faults))

    def as_json(self) -> dict[str, object]:
        return {"launches": self.launches, **asdict(self)}

    def as_junit(self) -> bytes:
        """Return JUnit's XML: a test case for each kernel, which fails if one launch did."""
        names = dict.fromkeys([*(one.name for one in self.kernels), *_failing(self.faults)])
        suite = ElementTree.Element(
            "testsuite",
            name=f"ratchet emulate {self.target}",
            tests=str(len(names)),
            failures=str(len(set(_failing(self.faults)))),
        )
        for name in names:
            case = ElementTree.SubElement(suite, "testcase", classname=self.target, name=name)
            for fault in self.faults:
                if fault.kernel == name:
                    said = ElementTree.SubElement(
                        case, "failure", type=fault.kind, message=fault.reason
                    )
                    said.text = f"{fault.count} times"
        text: bytes = ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
        return text


def _failing(faults: Iterable[ProgramFault]) -> list[str]:
    return [one.kernel for one in faults]


def read_result(
    folder: Path, *, target: str, device: str, command: tuple[str, ...], exit_code: int
) -> ProgramResult:
    """Return the result of the processes that wrote into a folder."""
    records = [
        msgspec.json.decode(path.read_bytes(), type=ProcessRecord)
        for path in sorted(folder.glob("*.json"))
    ]
    found: dict[str, list[tuple[EmulatedKernel, str]]] = {}
    failed: Counter[FailedLaunch] = Counter()
    asked: Counter[str] = Counter()
    for record in records:
        asked.update(record.asked)
        for launch, count in record.failed:
            failed[launch] += count
        for key, told in record.groups.items():
            name = key.partition("|")[0]
            file = str(told.pop("file", ""))
            found.setdefault(name, []).extend(
                (one, file) for one in read_told({name: told}, target)
            )
    kernels = [_kernel(name, parts, target) for name, parts in found.items()]
    return ProgramResult(
        target=target,
        device=device,
        command=command,
        exit_code=exit_code,
        kernels=tuple(sorted(kernels, key=lambda one: -(one.bound_s or 0))),
        faults=tuple(
            ProgramFault(
                kernel=one.kernel,
                kind="refused" if one.is_refused else "fault",
                reason=one.reason,
                count=count,
            )
            for one, count in failed.most_common()
        ),
        asked=dict(asked),
    )


def _kernel(name: str, parts: list[tuple[EmulatedKernel, str]], target: str) -> ProgramKernel:
    bounds: list[EmulatedBound] = []
    for one, _ in parts:
        bounds += estimate("", target, [one]).bounds[:1]
    units = {unit: sum(getattr(one, f"{unit}_s") for one in bounds) for unit in UNITS}
    return ProgramKernel(
        name=name,
        launches=sum(one.launches for one, _ in parts),
        instructions=sum(one.instructions for one, _ in parts),
        touched_bytes=sum(one.touched_bytes for one, _ in parts),
        bound_s=sum(one.time_s for one in bounds) if bounds else None,
        limit=max(units, key=lambda unit: units[unit]) if bounds else "",
        hottest=_hottest(parts),
    )


def _hottest(parts: list[tuple[EmulatedKernel, str]]) -> tuple[HotLine, ...]:
    """Return the lines with the largest share of the cycles or bytes."""
    cycles: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    for kernel, _ in parts:
        for line in kernel.lines:
            cycles[line.place] += line.cycles
            moved[line.place] += line.lines_64
    all_cycles, all_moved = max(1, cycles.total()), max(1, moved.total())
    lines = [
        HotLine(
            place=place or "no line",
            text=source_line(place, parts[0][1]),
            cycles=cycles[place] / all_cycles,
            moved=moved[place] / all_moved,
        )
        for place in cycles
    ]
    return tuple(sorted(lines, key=lambda one: -max(one.cycles, one.moved))[:HOTTEST])


def source_line(place: str, file: str) -> str:
    """Return the text of a place `name:line` if `file` is its file; "" otherwise."""
    name, _, line = place.rpartition(":")
    if not line.isdecimal() or Path(file).name != name:
        return ""
    return " ".join(linecache.getline(file, int(line)).split())[:100]
