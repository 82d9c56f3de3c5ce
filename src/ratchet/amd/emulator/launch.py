"""Run one launch of a decoded kernel on memory of this process, and count what it did."""

from __future__ import annotations

import ctypes
import linecache
import math
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ratchet.amd.architectures import ARCHITECTURES
from ratchet.amd.emulator import waits
from ratchet.amd.emulator.decode import DecodedKernel, KernelArgument
from ratchet.amd.emulator.estimates import matrix_cycles
from ratchet.base.errors import KernelError

INSTRUCTION_LIMIT: Final = 2_000_000_000  # most wave instructions of one launch
MAX_PROGRAMS: Final = 1 << 24
MOST_RUNS: Final = 1 << 15  # most instructions of a workgroup's waves that are noted
RUN_BYTES: Final = 12
ISSUE_CYCLES: Final = {64: 4, 32: 1}  # cycles of an instruction, by the lanes of a wave
SLACK_BYTES: Final = 256  # padding after the arguments: a preload reads whole blocks
GROUP_IN_TRAP_REGISTERS: Final = ("gfx1201",)
"""`ttmp7` and `ttmp9` hold a workgroup's numbers, bits 25 to 29 of `ttmp8` a wave's (LLVM's
AMDGPUUsage, "Architected SGPRs")."""
NOT_EMULATED: Final = ("not emulated", "too large to be emulated", "cannot be emulated")
"""Words of a failure that is the emulator's, and not the kernel's."""
REFUSED: Final = ("dispatch_ptr", "queue_ptr", "dispatch_id", "private_segment_size")
PACKS: Final = {"fp64": "<d", "fp32": "<f", "fp16": "<e", "f32": "<f", "f64": "<d", "f16": "<e"}
ZERO_KINDS: Final = (
    "hidden_remainder_x", "hidden_remainder_y", "hidden_remainder_z", "hidden_global_offset_x",
    "hidden_global_offset_y", "hidden_global_offset_z", "hidden_none", "hidden_printf_buffer",
    "hidden_hostcall_buffer", "hidden_multigrid_sync_arg", "hidden_heap_v1",
    "hidden_default_queue", "hidden_completion_action", "hidden_queue_ptr",
    "hidden_dynamic_lds_size", "hidden_private_base", "hidden_shared_base",
)  # fmt: skip
"""Hidden arguments of features that a launch does not use; a read through one is a fault."""


@dataclass(frozen=True, slots=True)
class LaunchMemory:
    """A stretch of memory that a launch may touch."""

    address: int
    size: int


LaunchValue = tuple[str, int | float | bool | bytes]
"""An argument: Triton's type of it, and a pointer or a number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelLaunch:
    """A launch of a kernel on memory of this process."""

    kernel: DecodedKernel
    grid: tuple[int, int, int]  # workgroups
    threads: int
    shared_bytes: int
    values: Sequence[LaunchValue]
    memories: Sequence[LaunchMemory]
    sides: tuple[int, int] | None = None
    """A block's threads along x and y, if it has several dimensions."""

    @property
    def workgroups(self) -> int:
        return math.prod(self.grid)

    @property
    def waves(self) -> int:
        return -(-self.threads // self.kernel.lanes)

    @property
    def lds_bytes(self) -> int:
        return max(self.kernel.lds_bytes, self.shared_bytes)


WaveRuns = bytes  # a name of its own, since a field below is called `bytes`


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchCounts:
    instructions: int
    by_mnemonic: dict[str, int]  # instructions that waves executed
    lanes: dict[str, int]  # lanes that were on, summed over the instructions; scalar ones have none
    bytes: int  # bytes of tensors that lanes read and wrote
    stored_bytes: int  # bytes of tensors that lanes wrote
    touched_bytes: int  # bytes of tensors in whole lines of 64 bytes, each counted once
    lines_64: int
    lines_128: int
    lds_bytes: int
    lds_conflicts: int
    by_place: dict[str, PlaceCounts]
    """Counts of each source line, as `file:line`; "" for instructions without one."""
    executed: tuple[int, ...]  # executions by waves, for each record of the kernel
    runs: tuple[WaveRuns, ...]
    """For each wave of the first workgroup: what it ran in order, as `Run` in machine.hpp."""


@dataclass(kw_only=True, slots=True)
class PlaceCounts:
    """Exact counts of one source line's instructions."""

    by_mnemonic: dict[str, int]
    lanes: int = 0
    lines_64: int = 0
    lds_conflicts: int = 0


class _MachineRange(ctypes.Structure):
    _fields_ = (("first", ctypes.c_uint64), ("size", ctypes.c_uint64))


class _MachineLaunch(ctypes.Structure):
    """The struct `Launch` in machine.hpp."""

    _fields_ = (
        ("code", ctypes.c_char_p),
        ("length", ctypes.c_uint64),
        ("ranges", ctypes.POINTER(_MachineRange)),
        ("range_count", ctypes.c_uint64),
        ("kernarg", ctypes.c_uint64),
        ("kernarg_size", ctypes.c_uint64),
        ("limit", ctypes.c_uint64),
        ("grid", ctypes.c_uint32 * 3),
        ("threads", ctypes.c_uint32),
        ("lds_bytes", ctypes.c_uint32),
        ("scratch_bytes", ctypes.c_uint32),
        ("kernarg_sgpr", ctypes.c_uint32),
        ("preload_sgprs", ctypes.c_uint32),
        ("preload_offset", ctypes.c_uint32),
        ("group_sgpr", ctypes.c_uint32),
        ("group_ids", ctypes.c_uint32),
        ("group_in_trap_registers", ctypes.c_uint32),
        ("registers", ctypes.c_uint32),
        ("counts", ctypes.POINTER(ctypes.c_uint64)),
        ("lanes", ctypes.POINTER(ctypes.c_uint64)),
        ("conflicts", ctypes.c_uint64),
        ("lines64", ctypes.c_uint64),
        ("lines128", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("stored", ctypes.c_uint64),
        ("touched64", ctypes.c_uint64),
        ("lds_bytes_moved", ctypes.c_uint64),
        ("seen", ctypes.POINTER(ctypes.POINTER(ctypes.c_uint64))),
        ("lds_unit", ctypes.c_uint32),
        ("backwards", ctypes.c_uint32),
        ("races_pass", ctypes.c_uint32),
        ("apart", ctypes.c_uint32),
        ("other", ctypes.c_uint64),
        ("sides", ctypes.c_uint32 * 2),
        ("lines_at", ctypes.POINTER(ctypes.c_uint64)),
        ("conflicts_at", ctypes.POINTER(ctypes.c_uint64)),
        ("touched", ctypes.c_char_p),
        ("cycles", ctypes.POINTER(ctypes.c_uint32)),
        ("runs", ctypes.c_void_p),
        ("run_room", ctypes.c_uint32),
        ("run_counts", ctypes.POINTER(ctypes.c_uint32)),
        ("step", ctypes.c_uint64),
        ("trace", ctypes.c_void_p),
    )


def sampling_step(grid: Sequence[int], sample: int) -> int:
    """Return the step between the workgroups of about `sample` spread over a grid; 0 asks for all.

    It shares no factor with the grid's width, or only some columns would run.
    """
    step = max(1, math.prod(grid) // sample) if sample else 1
    while step > 1 and math.gcd(step, grid[0]) > 1:
        step -= 1
    return step


class Emulator:
    """The compiled machine."""

    def __init__(self, library: Path) -> None:
        machine = ctypes.CDLL(str(library))
        self._lanes = ctypes.c_int.in_dll(machine, "ratchet_lanes").value
        self._cycles: dict[int, tuple[DecodedKernel, ctypes.Array[ctypes.c_uint32]]] = {}
        self._run, self._play = machine.ratchet_emulate, machine.ratchet_play
        self._run.restype = self._play.restype = ctypes.c_int

    def run(
        self,
        given: KernelLaunch,
        *,
        limit: int = INSTRUCTION_LIMIT,
        backwards: bool = False,
        races_pass: bool = False,
        step: int = 1,
    ) -> LaunchCounts:
        """Execute every `step`th workgroup; raises KernelError with the source line of a fault.

        The waves of a workgroup run in turn from barrier to barrier, or the last first if
        `backwards`: a right kernel gives the same result. With `races_pass`, races in LDS are no
        faults.
        """
        launch, kept = self._prepared(given, limit=limit, races_pass=races_pass)
        launch.backwards, launch.step = backwards, step
        _started(given.kernel, launch, self._run, ctypes.byref(launch))
        return _counted(given.kernel, launch, kept)

    def play(self, given: KernelLaunch, clock: ctypes.Structure, samples: int, limit: int) -> None:
        """Execute workgroups of one die without their products, and play them by a `Clock`.

        Memory stays as it is.
        """
        launch, kept = self._prepared(given, limit=limit, races_pass=True)
        count = ctypes.c_uint64(samples)
        _started(given.kernel, launch, self._play, ctypes.byref(launch), ctypes.byref(clock), count)
        del kept

    def _prepared(
        self, given: KernelLaunch, *, limit: int, races_pass: bool
    ) -> tuple[_MachineLaunch, _Kept]:
        """Return what the machine is given, and the arrays that its pointers lead to."""
        kernel, threads, waves = given.kernel, given.threads, given.waves
        if kernel.lanes != self._lanes:
            raise KernelError(f"code for {kernel.target} is not emulated beside another target's")
        check_launch(given)
        across = given.sides or (threads, 1)
        block = (*across, threads // max(1, math.prod(across)))
        arguments = packed_arguments(kernel, given.values, given.grid, block)
        buffer = ctypes.create_string_buffer(arguments + bytes(SLACK_BYTES))
        own = LaunchMemory(ctypes.addressof(buffer), len(arguments) + SLACK_BYTES)
        # An atomic operation on the whole word may change 16 bits of it. The other half may lie
        # beside the tensor; GPUs allocate by more than words.
        atomics = ("atomic_cmpswap", "atomic_pk_add")
        whole_words = any(one in name for name in kernel.mnemonics for one in atomics)
        joined = _joined([*given.memories, own], whole_words=whole_words)
        ranges = (_MachineRange * len(joined))(
            *(_MachineRange(one.address, one.size) for one in joined)
        )
        seen = [(ctypes.c_uint64 * (one.size // 4096 + 2))() for one in joined]
        pointer = ctypes.POINTER(ctypes.c_uint64)
        length = len(kernel.mnemonics)
        row = ctypes.c_uint64 * length
        counts, lanes, lines_at, conflicts_at = row(), row(), row(), row()
        room = MOST_RUNS // waves
        runs = ctypes.create_string_buffer(RUN_BYTES * room * waves)
        noted = (ctypes.c_uint32 * waves)()
        user = kernel.directives
        launch = _MachineLaunch(
            code=kernel.code,
            length=length,
            ranges=ranges,
            range_count=len(joined),
            kernarg=own.address,
            kernarg_size=len(arguments),
            limit=limit,
            grid=given.grid,
            threads=threads,
            lds_bytes=given.lds_bytes,
            scratch_bytes=kernel.scratch_bytes,
            kernarg_sgpr=4 * user.get("user_sgpr_private_segment_buffer", 0),
            preload_sgprs=user.get("user_sgpr_kernarg_preload_length", 0),
            preload_offset=4 * user.get("user_sgpr_kernarg_preload_offset", 0),
            group_sgpr=user.get("user_sgpr_count", 2),
            group_ids=sum(
                user.get(f"system_sgpr_workgroup_id_{axis}", int(axis == "x")) << index
                for index, axis in enumerate("xyz")
            ),
            group_in_trap_registers=kernel.target in GROUP_IN_TRAP_REGISTERS,
            registers=kernel.register_mask,
            counts=counts,
            lanes=lanes,
            seen=(pointer * len(seen))(*(ctypes.cast(one, pointer) for one in seen)),
            lds_unit=kernel.lds_unit,
            races_pass=races_pass,
            apart=user.get("workgroup_processor_mode", 0),
            sides=across,
            lines_at=lines_at,
            conflicts_at=conflicts_at,
            touched=kernel.touched,
            cycles=self._cycles_of(kernel),
            runs=ctypes.addressof(runs),
            run_room=room,
            run_counts=noted,
        )
        rows = (counts, lanes, lines_at, conflicts_at)
        return launch, _Kept(rows=rows, room=room, noted=noted, others=(buffer, ranges, seen, runs))

    def _cycles_of(self, kernel: DecodedKernel) -> ctypes.Array[ctypes.c_uint32]:
        """Return the counted cycles for which each record occupies its SIMD."""
        found = self._cycles.get(id(kernel))
        if found is None or found[0] is not kernel:
            issue, known = ISSUE_CYCLES[kernel.lanes], matrix_cycles(kernel.target)
            each = [known.get(name, issue) for name in kernel.mnemonics]
            found = self._cycles[id(kernel)] = (kernel, (ctypes.c_uint32 * len(each))(*each))
        return found[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kept:
    rows: tuple[ctypes.Array[ctypes.c_uint64], ...]  # by instruction
    room: int
    noted: ctypes.Array[ctypes.c_uint32]
    others: tuple[object, ...]


def _started(
    kernel: DecodedKernel, launch: _MachineLaunch, function: Callable[..., int], *given: object
) -> None:
    """Call the machine; raises KernelError with the source line of a fault."""
    message, where = ctypes.create_string_buffer(256), ctypes.c_uint64(0)
    if function(*given, message, 256, ctypes.byref(where)):
        raise KernelError(_fault(kernel, message.value.decode(), where.value, launch.other))


def _counted(kernel: DecodedKernel, launch: _MachineLaunch, kept: _Kept) -> LaunchCounts:
    executed, lanes, lines_at, conflicts_at = (row[:] for row in kept.rows)
    by_mnemonic, on, by_place = _added_up(kernel, executed, lanes, lines_at, conflicts_at)
    return LaunchCounts(
        instructions=sum(executed),
        by_mnemonic=by_mnemonic,
        lanes=on,
        bytes=launch.bytes,
        stored_bytes=launch.stored,
        touched_bytes=64 * launch.touched64,
        lines_64=launch.lines64,
        lines_128=launch.lines128,
        lds_bytes=launch.lds_bytes_moved,
        lds_conflicts=launch.conflicts,
        by_place=by_place,
        executed=tuple(executed),
        runs=tuple(
            ctypes.string_at(launch.runs + RUN_BYTES * kept.room * wave, RUN_BYTES * count)
            for wave, count in enumerate(kept.noted)
        ),
    )


def check_launch(launch: KernelLaunch) -> None:
    """Raise KernelError if the device refuses the launch."""
    kernel, (x, y, z) = launch.kernel, launch.grid
    if min(x, y, z) < 1:
        raise KernelError(f"the kernel {kernel.name} is launched on an empty grid {x} x {y} x {z}")
    if x * y * z > MAX_PROGRAMS:
        raise KernelError(f"a grid of {x} x {y} x {z} is too large to be emulated")
    if not 1 <= launch.threads <= 1024:
        raise KernelError(f"a workgroup of {launch.threads} threads cannot be launched")
    for name in REFUSED:
        if kernel.directives.get(f"user_sgpr_{name}"):
            raise KernelError(f"the kernel asks for {name}, which is not emulated")
    most = ARCHITECTURES[kernel.target].lds_bytes_per_workgroup
    if launch.lds_bytes > most:
        raise KernelError(
            f"the kernel asks for {launch.lds_bytes} bytes of LDS: {kernel.target} has {most}"
        )


def packed_arguments(
    kernel: DecodedKernel, values: Sequence[LaunchValue], grid: Sequence[int], block: Sequence[int]
) -> bytes:
    """Return the argument memory, with hidden arguments, by the kernel's metadata."""
    memory = bytearray(max(kernel.argument_bytes, 1))
    left = list(values)
    for one in kernel.arguments:
        if one.kind.startswith("hidden_"):
            data = _hidden(one, grid, block)
        elif left:
            data = _packed(left.pop(0), one)
        else:
            data = bytes(one.size)  # scratch memory that Triton gives no kernel that needs none
        memory[one.offset : one.offset + one.size] = data
    if left:
        raise KernelError(f"the kernel {kernel.name} was given {len(left)} arguments too many")
    return bytes(memory)


def _packed(given: LaunchValue, one: KernelArgument) -> bytes:
    kind, value = given
    if isinstance(value, bytes):
        return value
    try:
        if isinstance(value, float) or kind in PACKS or kind == "bf16":
            if kind == "bf16":
                return struct.pack("<f", value)[2:]
            return struct.pack(PACKS[kind], value)
        return int(value).to_bytes(one.size, "little", signed=value < 0)
    except (struct.error, OverflowError, KeyError) as error:
        raise KernelError(f"the argument {value!r:.40} does not fit the type {kind}") from error


def _hidden(one: KernelArgument, grid: Sequence[int], block: Sequence[int]) -> bytes:
    known = {"hidden_grid_dims": 3}
    for axis, blocks, size in zip("xyz", grid, block, strict=True):
        known |= {f"hidden_block_count_{axis}": blocks, f"hidden_group_size_{axis}": size}
    if one.kind not in known and one.kind not in ZERO_KINDS:
        raise KernelError(f"the hidden argument {one.kind:.60} is not emulated")
    return known.get(one.kind, 0).to_bytes(one.size, "little")


def _joined(memories: Sequence[LaunchMemory], *, whole_words: bool = False) -> list[LaunchMemory]:
    """Return the stretches in order, with overlapping ones merged; `whole_words` rounds them up."""
    found: list[LaunchMemory] = []
    if whole_words:
        memories = [
            LaunchMemory(one.address & -4, (one.address % 4 + one.size + 3) & -4)
            for one in memories
            if one.size
        ]
    for one in sorted(memories, key=lambda memory: memory.address):
        if found and one.address < found[-1].address + found[-1].size:
            last = found.pop()
            end = max(last.address + last.size, one.address + one.size)
            one = LaunchMemory(last.address, end - last.address)
        if one.size:
            found.append(one)
    return found


def source_line(place: str, file: str) -> str:
    """Return the text of a place `name:line` if `file` is its file; "" otherwise."""
    name, _, line = place.rpartition(":")
    if not line.isdecimal() or Path(file).name != name:
        return ""
    return " ".join(linecache.getline(file, int(line)).split())[:100]


def _fault(kernel: DecodedKernel, message: str, where: int, other: int) -> str:
    """Return the error at record `where`; `other` is 1 plus the access that it races with, or 0."""
    rest = ""
    if other:
        if message.endswith(("waiting for it", "waited for")):
            message += f" ({waits.counter(kernel.mnemonics[other - 1], kernel.target)})"
        rest = f", there{_place(kernel, other - 1)}"
    return f"in the kernel {kernel.name}{_place(kernel, where)}: {message}{rest}"


def _place(kernel: DecodedKernel, where: int) -> str:
    known = where < len(kernel.places)
    place = f" at {kernel.places[where]}" if known and kernel.places[where] else ""
    return place + (f" ({kernel.mnemonics[where]})" if known else "")


def _added_up(
    kernel: DecodedKernel,
    executed: Sequence[int],
    lanes: Sequence[int],
    lines_at: Sequence[int],
    conflicts_at: Sequence[int],
) -> tuple[dict[str, int], dict[str, int], dict[str, PlaceCounts]]:
    """Return executions by mnemonic, lanes by mnemonic, and all counts by source line."""
    by_mnemonic: Counter[str] = Counter()
    lanes_on: Counter[str] = Counter()
    places: dict[str, PlaceCounts] = {}
    for at, count in enumerate(executed):
        if not count:
            continue
        name = kernel.mnemonics[at]
        on = 0 if name.startswith("s_") else lanes[at]
        by_mnemonic[name] += count
        lanes_on[name] += on
        one = places.setdefault(kernel.places[at], PlaceCounts(by_mnemonic={}))
        one.by_mnemonic[name] = one.by_mnemonic.get(name, 0) + count
        one.lanes += on
        one.lines_64 += lines_at[at]
        one.lds_conflicts += conflicts_at[at]
    return dict(by_mnemonic), dict(+lanes_on), places


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedLaunch:
    """A launch that was not executed to its end, and the reason."""

    kernel: str
    reason: str
    kind: Literal["refused", "fault"]
    """`refused`: the emulator cannot run it. `fault`: the kernel did what a GPU forbids."""


# The executed instructions of a launch by source line, and the order of the waves' lines.

MOST_INSTRUCTIONS: Final = 2000  # most instructions of a kernel; the most executed are kept
SLOTS: Final = 240  # slots of the waves' cycles; each shows the line with most of its cycles
MOST_WAVES: Final = 16
MOST_BARRIERS: Final = 200
RUN: Final = struct.Struct("<3I")


def assembly(kernel: DecodedKernel, counts: LaunchCounts) -> dict[str, list[tuple[str, int]]]:
    """Return the executed instructions and their counts, by source line."""
    executed = [at for at, count in enumerate(counts.executed) if count]
    if len(executed) > MOST_INSTRUCTIONS:
        hottest = sorted(executed, key=lambda at: -counts.executed[at])
        executed = sorted(hottest[:MOST_INSTRUCTIONS])
    found: dict[str, list[tuple[str, int]]] = {}
    for at in executed:
        line = found.setdefault(kernel.places[at], [])
        line.append((kernel.texts[at][:160], counts.executed[at]))
    return found


def timeline(kernel: DecodedKernel, counts: LaunchCounts) -> dict[str, object]:
    """Return the line that each wave of the first workgroup ran, in slots of counted cycles."""
    waves = [list(RUN.iter_unpack(one)) for one in counts.runs[:MOST_WAVES]]
    longest: dict[int, int] = {}
    for runs in waves:
        own: Counter[int] = Counter()
        for epoch, _, cycles in runs:
            own[epoch] += cycles
        for epoch, cycles in own.items():
            longest[epoch] = max(longest.get(epoch, 0), cycles)
    begins: dict[int, int] = {}
    total = 0
    for epoch in sorted(longest):
        begins[epoch] = total
        total += longest[epoch]
    places = list(dict.fromkeys(kernel.places))
    slot = max(1, -(-total // SLOTS))
    return {
        "cycles": total,
        "slot": slot,
        "barriers": sorted(begins.values())[1 : MOST_BARRIERS + 1],
        "places": places,
        "waves": [_slots(runs, begins, slot) for runs in waves],
    }


def _slots(
    runs: Iterable[tuple[int, int, int]], begins: dict[int, int], slot: int
) -> list[tuple[int, int, int]]:
    """Return runs of slots of one wave: the number of the line, the first slot and one past it."""
    most: dict[int, dict[int, int]] = {}
    at, before = 0, -1
    for epoch, line, cycles in runs:
        if epoch != before:
            at, before = begins[epoch], epoch
        end = at + cycles
        for number in range(at // slot, -(-end // slot)):
            inside = min(end, (number + 1) * slot) - max(at, number * slot)
            lines = most.setdefault(number, {})
            lines[line] = lines.get(line, 0) + inside
        at = end
    found: list[tuple[int, int, int]] = []
    for number in sorted(most):
        lines = most[number]
        line = max(lines, key=lambda one: lines[one])
        if found and found[-1][0] == line and found[-1][2] == number:
            found[-1] = (line, found[-1][1], number + 1)
        else:
            found.append((line, number, number + 1))
    return found
