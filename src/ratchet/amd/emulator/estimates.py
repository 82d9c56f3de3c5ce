"""A lower bound on a kernel's time on a GPU that is not here, from what the emulator counted.

For each unit of the device, its work over its rate on paper, as if it never waited:

    memory   lines of 64 bytes that were touched, each moved once, over the memory's bandwidth
    matrix   cycles of the matrix instructions over the SIMDs that have a wave and the clock
    vector   4 cycles (RDNA: 1) for each other vector instruction of a wave, likewise
    LDS      bytes and bank conflicts over 128 bytes a cycle in each compute unit that has a program
             (RDNA: in both compute units of the work-group processor that has one)

The bound is the largest. It leaves out latency, stalls, caches, launches and clocks under load.

Sources: a SIMD has 16 lanes, so a wave of 64 takes 4 cycles (catalogue: 128 FP32 operations without
packing per cycle and compute unit, 4 SIMDs); the LDS has 32 banks of 4 bytes a cycle ("AMD Instinct
MI300 Instruction Set Architecture", chapter "Data Share Operations"); `mfma.csv` has the cycles.
RDNA: a SIMD has 32 lanes, so a wave of 32 takes a cycle, and the two operations of one `v_dual`
share it (catalogue: RX 7900 XTX, 61.4 TFLOP/s in FP32 at the "dual-issue rate"); the LDS of a
work-group processor has two sets of 32 banks ("RDNA3 Instruction Set Architecture", chapter "Data
Share Operations").
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import msgspec

from ratchet.amd.architectures import ARCHITECTURES, occupancy
from ratchet.amd.compile.assembly import MATRIX
from ratchet.base.devices import catalogue, matrix
from ratchet.base.devices.catalogue import CatalogueDevice
from ratchet.base.serialise import Count
from ratchet.judge.verdict import (
    EmulatedBound,
    EmulatedCase,
    EmulatedKernel,
    EmulatedLine,
    EmulatedTimeline,
    PredictedTime,
)

CYCLES: Final = {"cdna": 4, "rdna": 1}
UNITS_PER_PROGRAM: Final = {"cdna": 1, "rdna": 2}  # compute units whose LDS one program can use
LDS_BYTES_PER_CYCLE: Final = 128
SHOWN_SHARE, SHOWN_OFF = 0.01, 0.2
SPAN: Final = (0.4, 5.0)
"""Factors of a predicted time's interval: at least four of five published times of each space that
it was taken from lie in it (benchmarks/amd/amd_clock.py; docs/reference/emulator.md)."""
DUAL: Final = "v_dual_"
"""Prefix of each of the two operations of one instruction, counted under their own names."""


@functools.cache
def matrix_cycles(target: str) -> dict[str, int]:
    """Return the cycles of a target's matrix instructions, of the slowest type of each."""
    names = {row.name for row in matrix.load() if row.gfx == target}
    return {name: row.cycles for name in sorted(names) if (row := matrix.find(target, name))}


def hottest(kernel: EmulatedKernel, source: str, count: int = 3) -> list[str]:
    """Return a sentence for each of the hottest lines, with its text from `source`."""
    cycles = max(1, sum(one.cycles for one in kernel.lines))
    lines_64 = max(1, sum(one.lines_64 for one in kernel.lines))
    texts = source.splitlines()
    said = []
    for one in kernel.lines[:count]:
        if max(one.cycles / cycles, one.lines_64 / lines_64) < SHOWN_SHARE:
            continue
        file, _, number = one.place.rpartition(":")
        own = file.startswith("kernel") and number.isdecimal() and 0 < int(number) <= len(texts)
        text = " ".join(texts[int(number) - 1].split())[:80] if own else ""
        line = f"{one.place or 'no line'}: {one.cycles / cycles:.0%} of the cycles, "
        line += f"{one.lines_64 / lines_64:.0%} of the bytes"
        line += f", {one.lds_conflicts:,} LDS conflicts" if one.lds_conflicts else ""
        line += f", {one.lanes_off:.0%} of the lanes off" if one.lanes_off > SHOWN_OFF else ""
        said.append(line + (f": {text}" if text else ""))
    return said


def estimate(case: str, target: str, kernels: Sequence[EmulatedKernel]) -> EmulatedCase:
    """Return the bound of one case on each device of the catalogue that runs the target's code.

    If the cycles of a matrix instruction are unknown, there is none, and `no_estimate` says so.
    """
    unknown = matrix.missing_cycles(target, (n for one in kernels for n in one.matrix_instructions))
    devices = [] if unknown else _devices(target)
    return EmulatedCase(
        case=case,
        target=target,
        kernels=list(kernels),
        bounds=[bound for one in devices if (bound := bound_on(one, target, kernels))],
        predicted=total_time([one.predicted for one in kernels]),
        no_estimate=unknown,
    )


def prediction(device: str, time_s: float, span: tuple[float, float] = SPAN) -> PredictedTime:
    """Return a time with its interval, whose ends are factors of it."""
    low, high = span
    return PredictedTime(device=device, time_s=time_s, low_s=low * time_s, high_s=high * time_s)


def total_time(times: Sequence[PredictedTime | None]) -> PredictedTime | None:
    """Return the sum of times on one device, of the intervals' ends too, as if all erred alike.

    None if one is unknown or there is none.
    """
    known = [one for one in times if one is not None]
    if not known or len(known) < len(times):
        return None
    return PredictedTime(
        device=known[0].device,
        time_s=math.fsum(one.time_s for one in known),
        low_s=math.fsum(one.low_s for one in known),
        high_s=math.fsum(one.high_s for one in known),
    )


@functools.cache
def _devices(target: str) -> list[CatalogueDevice]:
    found = catalogue.load().of_target(target)
    return sorted(found, key=lambda one: -(one.number("compute_units") or 0))


def largest_device(target: str) -> CatalogueDevice:
    """Return the device that bounds and predictions name first."""
    return _devices(target)[0]


def bound_s(told: object, target: str) -> float:
    """Return the bound of what a process reports on the target's largest device; 0 without one."""
    bounds = estimate("", target, read_told(told, target)).bounds
    return bounds[0].time_s if bounds else 0.0


def bound_on(
    device: CatalogueDevice, target: str, kernels: Sequence[EmulatedKernel]
) -> EmulatedBound | None:
    """Return the bound of one call on a device; None if the catalogue lacks one of its rates."""
    units, clock_ghz = device.units, device.number("max_engine_clock")
    bandwidth = device.memory_bytes_per_s()
    if not units or not clock_ghz or not bandwidth or not kernels:
        return None
    clock = clock_ghz * 1e9
    family = _family(target)
    rows = []
    for one in kernels:
        simds = min(one.waves / one.launches, units * matrix.SIMDS_PER_CU[family])
        programs = one.programs / one.launches
        shared_cycles = one.lds_bytes / LDS_BYTES_PER_CYCLE + one.lds_conflicts
        rows.append(
            (
                one.touched_bytes / bandwidth,
                matrix.cycles_of(target, one.matrix_instructions, CYCLES[family]) / simds / clock,
                CYCLES[family] * one.vector_instructions / simds / clock,
                shared_cycles / min(programs * UNITS_PER_PROGRAM[family], units) / clock,
            )
        )
    memory, products, vector, shared = (sum(column) for column in zip(*rows, strict=True))
    return EmulatedBound(
        device=device.name,
        time_s=sum(max(row) for row in rows),
        memory_s=memory,
        matrix_s=products,
        vector_s=vector,
        lds_s=shared,
    )


def words(case: EmulatedCase) -> str:
    """Return in one line the bound on the first device, and its parts."""
    lines = sum(one.lines_64 for one in case.kernels) * 64
    needed = sum(one.accessed_bytes for one in case.kernels)
    conflicts = sum(one.lds_conflicts for one in case.kernels)
    said = f"{sum(one.instructions for one in case.kernels):,} instructions of waves, "
    said += f"{sum(one.touched_bytes for one in case.kernels):,} bytes touched, "
    said += f"{lines / max(1, needed):.2f} bytes moved for each one used, "
    said += f"{conflicts:,} LDS conflicts"
    if not case.bounds:
        return f"no bound: {case.no_estimate}; {said}" if case.no_estimate else said
    one = case.bounds[0]
    parts = {"memory": one.memory_s, "matrix": one.matrix_s, "vector": one.vector_s}
    parts["LDS"] = one.lds_s
    listed = ", ".join(f"{name} {time_s * 1e6:.3g}" for name, time_s in parts.items())
    time = f"predicted {case.predicted.words}, not measured; " if case.predicted else ""
    return f"at least {one.time_s * 1e6:.3g} us on {one.device} ({listed}); {time}{said}"


# What a process reports of an emulated kernel is read without trusting it.

MOST_KERNELS: Final = 100
MOST_LINES: Final = 40  # source lines of a kernel that a verdict keeps
MOST_INSTRUCTIONS, MOST_OF_A_LINE = 400, 40
"""Instructions of a kernel, and of one line, whose text a verdict keeps."""
MOST_WAVES, MOST_SLOTS = 16, 256
MOST_RESOURCES: Final = 1 << 20


class _ToldPlace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The counts of one source line."""

    by_mnemonic: dict[str, Count]
    lanes: Count
    lines_64: Count
    lds_conflicts: Count


class _ToldTimeline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An `EmulatedTimeline` with every place of the kernel."""

    cycles: Count
    slot: Count
    barriers: list[Count]
    places: list[str]
    waves: list[list[tuple[Count, Count, Count]]]


class _ToldShown(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of `EmulatedLaunch.shown` for a kernel's first launch."""

    assembly: dict[str, list[tuple[str, Count]]]
    timeline: _ToldTimeline
    vgprs: Count
    workgroup_waves: Count
    workgroup_lds_bytes: Count


class _Told(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The counts of one kernel over the launches of one call."""

    launches: Count
    programs: Count
    waves: Count
    by_mnemonic: dict[str, Count]
    lanes: Count
    bytes: Count
    touched_bytes: Count
    lines_64: Count
    lds_bytes: Count
    lds_conflicts: Count
    by_place: dict[str, _ToldPlace]
    predicted_s: Annotated[float, msgspec.Meta(ge=0)] | None = None
    shown: _ToldShown | None = None


def read_told(told: object, target: str, *, shown: bool = True) -> list[EmulatedKernel]:
    """Read the counts of a call on a target; raises ValueError if they are nonsense.

    Without `shown`, assembly and timelines are left out.
    """
    if not isinstance(told, Mapping) or len(told) > MOST_KERNELS:
        raise ValueError("no counts of emulated kernels")
    found = msgspec.convert(told, dict[str, _Told])
    if any(min(one.launches, one.programs, one.waves) < 1 for one in found.values()):
        raise ValueError("a kernel without a program")
    return [
        _kernel(name[:100], one, target, one.shown if shown else None)
        for name, one in found.items()
    ]


def _kernel(name: str, told: _Told, target: str, shown: _ToldShown | None) -> EmulatedKernel:
    time_s = told.predicted_s
    lanes, mixed = ARCHITECTURES[target].wavefront_size, told.by_mnemonic
    vector, dual, products = _vector_work(mixed)
    found = EmulatedKernel(
        name=name,
        launches=told.launches,
        programs=told.programs,
        waves=told.waves,
        instructions=sum(mixed.values()) - dual,
        vector_instructions=vector,
        scalar_instructions=sum(count for key, count in mixed.items() if key.startswith("s_")),
        matrix_instructions=products,
        lanes_off=_lanes_off(told.lanes, mixed, lanes),
        accessed_bytes=told.bytes,
        touched_bytes=told.touched_bytes,
        lines_64=told.lines_64,
        lds_bytes=told.lds_bytes,
        lds_conflicts=told.lds_conflicts,
        predicted=None if time_s is None else prediction(largest_device(target).name, time_s),
        lines=_lines(told, target, shown.assembly if shown else {}),
    )
    return msgspec.structs.replace(found, **_resources(shown, target)) if shown else found


def _vector_work(mixed: Mapping[str, int]) -> tuple[int, int, dict[str, int]]:
    """Return the numbers of plain vector instructions and of dual ones, and the matrix ones."""
    dual = sum(count for key, count in mixed.items() if key.startswith(DUAL)) // 2
    products = {key: count for key, count in mixed.items() if key.startswith(MATRIX)}
    all_of = sum(count for key, count in mixed.items() if key.startswith("v_"))
    return all_of - dual - sum(products.values()), dual, products


def _lanes_off(on: int, mixed: Mapping[str, int], lanes: int) -> float:
    """Return the share of lanes that are off, over all instructions that are not scalar."""
    all_of = lanes * sum(count for key, count in mixed.items() if not key.startswith("s_"))
    return 1 - on / all_of if all_of else 0.0


def _resources(shown: _ToldShown, target: str) -> dict[str, object]:
    """Return a workgroup's resources, the waves that they allow, and the timeline."""
    numbers = (shown.vgprs, shown.workgroup_waves - 1, shown.workgroup_lds_bytes)
    if min(numbers) < 0 or max(numbers) > MOST_RESOURCES:
        raise ValueError("a workgroup that no GPU has")
    architecture = ARCHITECTURES[target]
    found = occupancy(
        architecture,
        vgprs=shown.vgprs,
        lds_bytes=shown.workgroup_lds_bytes,
        workgroup_waves=shown.workgroup_waves,
    )
    return {
        "vgprs": shown.vgprs,
        "workgroup_waves": shown.workgroup_waves,
        "workgroup_lds_bytes": shown.workgroup_lds_bytes,
        "occupancy_waves": found.waves_per_simd,
        "max_waves": architecture.max_waves_per_simd,
        "occupancy_limit": found.limit,
        "timeline": _timeline(shown.timeline),
    }


def _timeline(told: _ToldTimeline) -> EmulatedTimeline:
    """Return the timeline with only the places that it names; raises ValueError for nonsense."""
    runs = [run for wave in told.waves for run in wave]
    last = told.cycles // max(1, told.slot) + 1
    if len(told.waves) > MOST_WAVES or len(runs) > MOST_WAVES * MOST_SLOTS or told.slot < 1:
        raise ValueError("a timeline of too many waves")
    if any(not (0 <= at < len(told.places) and 0 <= a < b <= last) for at, a, b in runs):
        raise ValueError("a timeline that ends before it begins")
    kept = {at: number for number, at in enumerate(dict.fromkeys(run[0] for run in runs))}
    return EmulatedTimeline(
        cycles=told.cycles,
        slot=told.slot,
        barriers=told.barriers[:MOST_SLOTS],
        places=[told.places[at][:200] for at in kept],
        waves=[[(kept[at], a, b) for at, a, b in wave] for wave in told.waves],
    )


def _lines(
    told: _Told, target: str, assembly: Mapping[str, list[tuple[str, int]]]
) -> list[EmulatedLine]:
    """Return the lines with the largest share of the kernel's cycles, bytes or conflicts."""
    lanes = ARCHITECTURES[target].wavefront_size
    found = [
        EmulatedLine(
            place=place[:200],
            instructions=sum(one.by_mnemonic.values()),
            cycles=_simd_cycles(one.by_mnemonic, target),
            lanes_off=_lanes_off(one.lanes, one.by_mnemonic, lanes),
            lines_64=one.lines_64,
            lds_conflicts=one.lds_conflicts,
        )
        for place, one in told.by_place.items()
    ]
    work = [(one.cycles, one.lines_64, one.lds_conflicts) for one in found]
    whole = [max(1, sum(column)) for column in zip(*work, strict=True)]
    shares = [max(one / all_ for one, all_ in zip(each, whole, strict=True)) for each in work]
    left, kept = MOST_INSTRUCTIONS, []
    for at in sorted(range(len(found)), key=lambda at: -shares[at])[:MOST_LINES]:
        own = assembly.get(found[at].place, [])
        most = sorted(range(len(own)), key=lambda at: -own[at][1])[: min(left, MOST_OF_A_LINE)]
        texts = [(own[at][0][:160], own[at][1]) for at in sorted(most)]
        left -= len(texts)
        kept.append(msgspec.structs.replace(found[at], assembly=texts))
    return kept


def _simd_cycles(by_mnemonic: Mapping[str, int], target: str) -> int:
    """Return the cycles in a SIMD of some instructions, as in the bound."""
    issue = CYCLES[_family(target)]
    vector, _, products = _vector_work(by_mnemonic)
    return issue * vector + matrix.cycles_of(target, products, issue)


def _family(target: str) -> str:
    return "cdna" if target.startswith("gfx9") else "rdna"
