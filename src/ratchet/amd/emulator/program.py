"""Run a command whose Python processes meet an emulated GPU, and tell what they launched.

The command is the user's own and is trusted as such: it is not confined.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Final, Literal, get_args

import msgspec

from ratchet.amd.architectures import PretendedDevice
from ratchet.amd.emulator.estimates import estimate, read_told, total_time
from ratchet.amd.emulator.hip_build import compiled_machine
from ratchet.amd.emulator.launch import INSTRUCTION_LIMIT, FailedLaunch, source_line
from ratchet.base import Json
from ratchet.base.devices import catalogue
from ratchet.base.errors import KernelError
from ratchet.base.process.child import run_command
from ratchet.base.show import model as m
from ratchet.base.show.junit import JunitCase, JunitOutcome, junit
from ratchet.base.show.words import ABSENT, counted, show_bytes, show_time
from ratchet.judge.kernels.kernel import TARGETS
from ratchet.judge.verdict import EmulatedBound, EmulatedKernel, PredictedTime

VARIABLE: Final = "RATCHET_EMULATE"  # it hands the settings to the program's processes
RUNNER: Final = "ratchet.amd.emulator.hip_program"  # runs a compiled program's main
BEGIN: Final = "ratchet.amd.emulator.start:begin_from_environment"
"""The function that begins the emulation in a process; its module imports torch."""
Autotune = Literal["first", "bound"]
LARGEST: Final = {"gfx90a": "MI250X", "gfx942": "MI300X", "gfx950": "MI355X"}
"""The device that a program is told about, of those that run a target's code."""
MAKER: Final = {"MI": "AMD Instinct", "RX": "AMD Radeon"}


class ProgramSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that every process of an emulated program needs to know."""

    target: str
    library: str  # the compiled emulator
    folder: str  # the folder in which each process writes what it launched
    device: dict[str, str | int]  # what the program is told about the GPU
    autotune: Autotune = "first"
    limit: int = INSTRUCTION_LIMIT  # the most wave instructions of one launch

    def pretended(self) -> PretendedDevice:
        return PretendedDevice.of(self.target, self.device)

    def text(self) -> str:
        return msgspec.json.encode(self).decode()


def check_autotune(mode: str) -> Autotune:
    """Return a way to choose an autotuner's configuration; raises KernelError for another."""
    for one in get_args(Autotune):
        if one == mode:
            return one  # type: ignore[no-any-return]
    raise KernelError(f"--autotune {mode} is not known: use first or bound")


def pretended_device(target: str) -> PretendedDevice:
    found = catalogue.load().of_target(target)
    chosen = next((one for one in found if one.name == LARGEST.get(target)), None)
    device = chosen or max(found, key=lambda one: one.units or 0)
    maker = MAKER.get(device.name[:2], "AMD")
    told = {
        "name": f"{maker} {device.name}",
        "units": int(device.units or 0),
        "memory_bytes": int((device.number("memory") or 64) * (1 << 30) / device.logical_devices),
    }
    return PretendedDevice.of(target, told)


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
    name: str
    launches: int
    instructions: int
    touched_bytes: int
    bound_s: float | None  # a lower bound on the time of all launches; None without a known device
    predicted: PredictedTime | None
    """The clock's time of all launches; None if it plays one of them not."""
    limit: str  # the unit with most of the bound: memory, matrix, vector or lds
    hottest: tuple[HotLine, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramFault(FailedLaunch):
    """A launch that failed, with how often it did."""

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
        names = dict.fromkeys(one.name for one in self.kernels)
        names |= dict.fromkeys(one.kernel for one in self.faults)
        cases = [
            JunitCase(
                name=name,
                classname=self.target,
                found=[
                    JunitOutcome(
                        kind="failure", message=one.reason, type=one.kind, text=f"{one.count} times"
                    )
                    for one in self.faults
                    if one.kernel == name
                ],
            )
            for name in names
        ]
        return junit(f"ratchet emulate {self.target}", cases)


def read_records(folder: Path) -> list[ProcessRecord]:
    texts = (path.read_bytes() for path in sorted(folder.glob("*.json")))
    return [msgspec.json.decode(one, type=ProcessRecord) for one in texts]


def read_result(
    records: Sequence[ProcessRecord], *, target: str, command: tuple[str, ...], exit_code: int
) -> ProgramResult:
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
        device=pretended_device(target).name,
        command=command,
        exit_code=exit_code,
        kernels=tuple(sorted(kernels, key=lambda one: -(one.bound_s or 0))),
        faults=tuple(
            ProgramFault(**asdict(one), count=count) for one, count in failed.most_common()
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
        predicted=total_time([one.predicted for one, _ in parts]),
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


NO_TRITON: Final = "triton is not installed: pip install 'torch-ratchet[triton]'"


def settings_for(
    target: str, folder: str, autotune: Autotune = "first", limit: int = INSTRUCTION_LIMIT
) -> ProgramSettings:
    """Return the settings of a program, with the emulator compiled.

    Raises KernelError for an unknown target, or without Triton or a C++ compiler.
    """
    if target not in TARGETS:
        raise KernelError(f"target {target!r} is not emulated: use one of {', '.join(TARGETS)}")
    if importlib.util.find_spec("triton") is None:
        raise KernelError(NO_TRITON)
    device = pretended_device(target)
    return ProgramSettings(
        target=target,
        library=str(compiled_machine(target)),
        folder=folder,
        device={"name": device.name, "units": device.units, "memory_bytes": device.memory_bytes},
        autotune=autotune,
        limit=limit,
    )


def emulate(
    command: Sequence[str],
    target: str,
    *,
    autotune: Autotune = "first",
    limit: int = INSTRUCTION_LIMIT,
    stdout: IO[bytes] | IO[str] | None = None,
    program: Path | None = None,
) -> ProgramResult:
    """Run a command and return what its processes launched on the emulated GPU.

    Its output goes where ours goes, or its stdout to the open file `stdout`. If the command is a
    source and its arguments, `program` is the folder of what it was compiled to.

    Raises KernelError if the command cannot start, and as `settings_for` does.
    """
    if not command:
        raise KernelError("no COMMAND: write ratchet emulate --target gfx942 -- pytest test_it.py")
    from ratchet.trace.record import injected  # not in the program's processes, which import this

    with tempfile.TemporaryDirectory(prefix="ratchet-emulate-") as folder:
        settings = settings_for(target, folder, autotune, limit)
        run, environment = command, injected(os.environ)
        if program is None:
            environment["RATCHET_AFTER_TORCH"] = BEGIN
        else:
            run, environment = (
                [sys.executable, "-m", RUNNER, str(program), *command],
                {**os.environ},
            )
        environment[VARIABLE] = settings.text()
        try:
            code = run_command(run, environment, stdout)
        except OSError as error:
            said = shlex.join(command)
            raise KernelError(
                f"{said} cannot start ({error.strerror}): check the command"
            ) from None
        return read_result(
            read_records(Path(folder)),
            target=target,
            command=tuple(command),
            exit_code=code if code >= 0 else 128 - code,
        )


MOST_KERNELS: Final = 20
MOST_FAULTS: Final = 30
COLUMNS: Final = (
    m.name("kernel", "name"),
    m.number("launches", "launches", lambda value: f"{value:,}"),
    m.number("bytes touched", "touched_bytes", show_bytes),
    m.number("at least", "bound_s", show_time),
    m.Column("predicted", lambda row: row.predicted.words if row.predicted else ABSENT),
    m.Column("limit", "limit"),
)


def emulate_report(result: ProgramResult) -> m.ResultReport:
    """Return the summary of a program that ran on an emulated GPU."""
    faults = [
        (one.kind, one.kernel, f"{one.count:,}", one.reason) for one in result.faults[:MOST_FAULTS]
    ]
    asked = [f"{counted(count, 'call')} of {what}" for what, count in result.asked.items()]
    hottest = _hottest_lines(result.kernels[:MOST_KERNELS])
    left = len(result.kernels) - MOST_KERNELS
    return m.ResultReport(
        title=f"emulated on {result.target}",
        heading="emulate",
        headline=headline(result),
        sections=m.blocks(
            m.section("Failed launches", m.grid(("kind", "kernel", "times", "why"), faults, left=2))
            if faults
            else None,
            m.section(
                "Kernels",
                m.ResultTable(COLUMNS, result.kernels[:MOST_KERNELS]),
                f"and {counted(left, 'more kernel')}" if left > 0 else None,
                "The bound says what a kernel cannot be faster than. The predicted time has its "
                "interval in brackets and leaves out the start of a launch. Nothing was timed.",
            )
            if result.kernels
            else None,
            m.section("Hottest lines", m.Lines(hottest)) if hottest else None,
            m.section("Not answered", m.Lines(asked)) if asked else None,
        ),
    )


def headline(result: ProgramResult) -> str:
    """Return the answer in a sentence."""
    where = f"on an emulated {result.device} ({result.target})"
    if not result.launches and not result.faults:
        return f"no kernel was launched {where}"
    return launches_in_words(result, where)


def launches_in_words(result: ProgramResult, where: str = "") -> str:
    """Return how many launches there were, and how many failed."""
    failed = sum(one.count for one in result.faults)
    said = f"{counted(result.launches, 'launch').replace('launchs', 'launches')} of "
    said += f"{counted(len(result.kernels), 'kernel')} {where}".rstrip()
    return said + (f"; {failed:,} failed" if failed else "; none failed")


def _hottest_lines(kernels: Sequence[ProgramKernel]) -> list[str]:
    said = []
    for one in kernels:
        for line in one.hottest[:1]:
            shares = f"{line.cycles:.0%} of the cycles, {line.moved:.0%} of the bytes"
            text = f": {line.text}" if line.text else ""
            said.append(f"{one.name} at {line.place}, {shares}{text}")
    return said
