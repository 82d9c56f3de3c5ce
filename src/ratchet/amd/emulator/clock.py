"""Predict the time of a launch: waves of neighbouring workgroups, played on one die's units.

The machine executes a sample of the workgroups that one die holds at a time, without the sums of
their matrix products, and notes each wave's instructions in order with the lines that they touch.
They are then played: each wave in order, on the units of its SIMD; waits against its own loads in
flight; L1 by compute unit, L2 by die, the Infinity Cache and the memory shared; barriers; the
registers of matrix products. What was cut off goes on at the pace while all waves were there.
Rounds of workgroups follow by the pace of the first ones, and a tail by its own play.

Rates are in `architectures.RATES`, each with its source.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ratchet.amd.architectures import ARCHITECTURES, RATES, Rates, occupancy
from ratchet.amd.compile.assembly import MATRIX
from ratchet.amd.emulator.decode import DecodedKernel
from ratchet.amd.emulator.estimates import largest_device, matrix_cycles
from ratchet.amd.emulator.launch import ISSUE_CYCLES, Emulator, KernelLaunch, LaunchCounts
from ratchet.amd.emulator.source import numbers
from ratchet.base.devices.catalogue import CatalogueDevice
from ratchet.base.errors import KernelError

BUDGET: Final = 1_500_000
"""Instructions of waves that are noted, at most."""
LEAST_ROOM: Final = 2_000  # instructions of a wave that are noted, if it has so many
LONGEST: Final = 16  # times the instructions that these workgroups execute on average
SLACK: Final = 1_000_000
FEW_ROUNDS: Final = 4
ROUNDS, LEAST_UNITS = 3, 4  # of whole waves that are played, and the units that they need
RECORD_BYTES: Final = 112  # of an `Instruction` in machine.hpp
SALU, VALU, PRODUCT, LOAD, STORE, LDS, SMEM, WAIT, BARRIER, FREE = range(10)
"""Units, as in machine.hpp."""
UNITS: Final = (
    "scalar", "vector", "matrix", "load", "store", "LDS", "scalar load", "wait", "barrier", "none",
)  # fmt: skip
NOT_ISSUED: Final = ("s_nop", "s_delay_alu", "s_endpgm", "s_sleep", "s_clause", "s_setprio")
TRANSCENDENTAL: Final = re.compile(r"v_(?:s_)?(?:exp|log|rcp|rsq|sqrt|sin|cos)_")
CONVERSION: Final = re.compile(r"v_cvt_(?:[fiu]\d\d_[fiu]\d\d|f16_f32|f32_f16)(?:_|$)")
WIDE_PRODUCT: Final = re.compile(r"v_(?:mul_(?:lo|hi)_[iu]32|mad_[iu]64_[iu]32)")
REGISTERS: Final = re.compile(r"^\S+\s+[va]\[(\d+):(\d+)\]")


class _Level(ctypes.Structure):
    _fields_ = (
        ("bytes", ctypes.c_uint32),
        ("line", ctypes.c_uint32),
        ("latency", ctypes.c_uint32),
        ("bytes_per_cycle", ctypes.c_double),
    )


class _Clock(ctypes.Structure):
    """The struct `Clock` in clock.hpp."""

    _fields_ = (
        ("units", ctypes.c_char_p),
        ("cost", ctypes.POINTER(ctypes.c_uint16)),
        ("latency", ctypes.POINTER(ctypes.c_uint16)),
        ("results", ctypes.c_char_p),
        ("place", ctypes.POINTER(ctypes.c_uint32)),
        ("l1", _Level),
        ("l2", _Level),
        ("mall", _Level),
        ("memory", _Level),
        ("code_bytes", ctypes.c_uint32),
        ("code_line", ctypes.c_uint32),
        ("lds_latency", ctypes.c_uint32),
        ("lds_bytes_per_cycle", ctypes.c_double),
        ("compute_units", ctypes.c_uint32),
        ("simds", ctypes.c_uint32),
        ("resident", ctypes.c_uint32),
        ("issue", ctypes.c_uint32),
        ("room", ctypes.c_uint64),
        ("stride", ctypes.c_uint32),
        ("cycles", ctypes.c_double),
        ("refill_cycles", ctypes.c_double * 2),
        ("steady_cycles", ctypes.c_double * 2),
        ("steps", ctypes.c_uint64),
        ("steady_steps", ctypes.c_uint64 * 2),
        ("hits", ctypes.c_uint64 * 3),
        ("accesses", ctypes.c_uint64 * 3),
        ("stalled", ctypes.c_double * 10),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """A launch's time on a device, as it was played."""

    time_s: float
    hits: tuple[float, float, float]
    """Shares of lines that were in L1, of the others in L2, of the rest in the Infinity Cache."""
    stalled: dict[str, float]
    """Shares of the waves' stalls: at waits for memory or LDS, at barriers, and at each unit."""
    steps: int  # instructions of waves that were played
    workgroups: int  # that were played


class LaunchClock:
    """Predicts the times of launches on the largest device of their target, equal ones once."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator
        self._known: dict[object, tuple[DecodedKernel, float | None]] = {}

    def predicted_s(self, launch: KernelLaunch, counts: LaunchCounts, ran: int) -> float | None:
        """Return the time of a launch of which `ran` workgroups were counted; None without one.

        Launches of a kernel with equal grids and counts have one time. Workgroups that wait for
        each other have none.
        """
        kernel = launch.kernel
        counted = (counts.instructions, counts.lines_64, counts.lds_conflicts)
        key = (id(kernel), launch.grid, launch.threads, launch.shared_bytes, counted)
        known = self._known.get(key)
        if known is None:
            instructions, found = counts.instructions / ran / launch.waves, None
            with contextlib.suppress(KernelError):
                found = played(self._emulator, launch, largest_device(kernel.target), instructions)
            known = self._known[key] = (kernel, None if found is None else found.time_s)
        return known[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Records:
    """Facts that the clock needs of each record of a kernel."""

    units: bytes
    cost: Any
    latency: Any
    results: bytes
    place: Any


def unit_of(name: str, operation: int) -> int:
    """Return the unit of an instruction; `operation` is the record's."""
    if operation == numbers()["wait_for"]:
        return WAIT
    if name.startswith("s_barrier"):
        return FREE if "signal" in name else BARRIER
    if name.startswith(("s_load", "s_buffer_load")):
        return SMEM
    if name.startswith(("s_wait", *NOT_ISSUED)):
        return FREE
    if name.startswith("s_"):
        return SALU
    if name.startswith(MATRIX):
        return PRODUCT
    if name.startswith("ds_"):
        return LDS
    if name.startswith("v_"):
        return VALU
    return STORE if "store" in name else LOAD


def _records(kernel: DecodedKernel) -> _Records:
    cycles: Mapping[str, int] = matrix_cycles(kernel.target)
    issue = ISSUE_CYCLES[kernel.lanes]
    rates = RATES[kernel.target]
    units, cost, latency, results, place = bytearray(), [], [], bytearray(), []
    at, second = 0, False
    for index, (name, text) in enumerate(zip(kernel.mnemonics, kernel.texts, strict=True)):
        begin = index * RECORD_BYTES
        unit = unit_of(name, int.from_bytes(kernel.code[begin : begin + 2], "little"))
        busy = late = issue
        if unit == PRODUCT:
            busy = cycles.get(name, 16)
            late = busy + 2 * issue
        elif unit == VALU:
            busy, late = _vector(name, rates, issue)
            if name.startswith("v_dual_"):  # two records, one instruction
                busy, second = (0, False) if second else (busy, True)
        elif unit in (LOAD, STORE):
            busy = rates.address_cycles
        elif unit == FREE:
            busy = issue * (1 + int(text.split()[1], 0)) if name == "s_nop" else 0
        found = REGISTERS.match(text)
        units.append(unit)
        cost.append(busy)
        latency.append(late)
        results.append(min(255, int(found[2]) - int(found[1]) + 1) if found else 1)
        place.append(at)
        at += 4 if name.endswith("_e32") or (name.startswith("s_") and unit != SMEM) else 8
    return _Records(
        units=bytes(units),
        cost=(ctypes.c_uint16 * len(cost))(*cost),
        latency=(ctypes.c_uint16 * len(latency))(*latency),
        results=bytes(results),
        place=(ctypes.c_uint32 * len(place))(*place),
    )


def _vector(name: str, rates: Rates, issue: int) -> tuple[int, int]:
    """Return the cycles that an instruction keeps its SIMD, and until its result is there."""
    quarter = (
        TRANSCENDENTAL.match(name)
        or (WIDE_PRODUCT.match(name) and rates.has_slow_products)
        or (CONVERSION.match(name) and rates.has_slow_conversions)
    )
    busy = 4 * issue if quarter else issue
    return busy, max(busy, rates.vector_latency + (busy - issue))


def played(
    emulator: Emulator, launch: KernelLaunch, device: CatalogueDevice, wave_instructions: float
) -> Played | None:
    """Return a launch's time on a device; None if the catalogue lacks one of its numbers.

    `wave_instructions` are those of a whole wave, on average.
    """
    kernel, waves = launch.kernel, launch.waves
    rates, architecture = RATES[kernel.target], ARCHITECTURES[kernel.target]
    engine, bandwidth = device.number("max_engine_clock"), device.memory_bytes_per_s()
    if not (device.units and engine and bandwidth):
        return None
    hertz = engine * 1e9
    whole = kernel.lanes == 64 or bool(kernel.directives.get("workgroup_processor_mode", 0))
    units = int(device.units) if kernel.lanes == 64 or not whole else int(device.units) // 2
    simds = 4 if whole else 2
    caches = 2 if whole and kernel.lanes == 32 else 1  # of a work-group processor's two units
    held = occupancy(
        architecture,
        vgprs=max(1, kernel.vgprs),
        lds_bytes=launch.lds_bytes,
        workgroup_waves=waves,
    )
    resident = max(1, held.workgroups * simds // architecture.simds_per_unit)
    dies = int(device.number("xcds") or 1)
    units = max(1, units // dies)
    share = math.ceil(launch.workgroups / dies)  # workgroups of one die
    records = _records(kernel)

    def play(per_unit: int, groups: int, cut: int, some: int) -> _Clock:
        part = some / units
        clock = _Clock(
            units=records.units, cost=records.cost, latency=records.latency,
            results=records.results, place=records.place,
            l1=_Level(
                rates.l1_bytes * caches, rates.l1_line, rates.l1_latency,
                rates.l1_bytes_per_cycle * caches,
            ),
            l2=_Level(
                max(1 << 16, int(rates.l2_bytes * part)), rates.l2_line, rates.l2_latency,
                rates.l2_bytes_per_cycle * part,
            ),
            mall=_Level(
                int(rates.mall_bytes * part), rates.l2_line, rates.mall_latency,
                max(1.0, rates.mall_bytes_per_cycle * part),
            ),
            memory=_Level(
                0, 0, rates.memory_latency,
                bandwidth * rates.memory_share / dies / hertz * part,
            ),
            code_bytes=rates.code_bytes, code_line=rates.code_line, lds_latency=rates.lds_latency,
            lds_bytes_per_cycle=rates.lds_bytes_per_cycle, compute_units=some, simds=simds,
            resident=per_unit, issue=ISSUE_CYCLES[kernel.lanes], room=cut, stride=dies,
        )  # fmt: skip
        usual = groups * waves * wave_instructions  # of a workgroup that waits, it is far less
        emulator.play(launch, clock, groups, int(LONGEST * usual) + SLACK)
        return clock

    length = min(wave_instructions, LEAST_ROOM)
    some = max(1, min(units, int(BUDGET / (resident * waves * length))))
    rounds = math.ceil(share / (units * resident))
    three = int(BUDGET / (ROUNDS * resident * waves * wave_instructions))
    if rounds > 1 and three >= LEAST_UNITS:  # fewer units, and whole waves in each other's place
        some = min(units, three)
    here = max(1, math.ceil(share * some / units))  # workgroups of the units that are played
    slots = some * resident
    cut = max(LEAST_ROOM, int(BUDGET / (min(here, slots) * waves)))
    if cut >= 1.5 * wave_instructions:  # whole waves, and a second round if there is room
        fit = int(BUDGET / (waves * wave_instructions))
        groups = min(here, max(min(here, slots), min(ROUNDS * slots, fit)))
        clock = play(resident, groups, 1 << 40, some)
        cycles = clock.cycles
        if here > groups > slots:
            first, last = clock.refill_cycles
            pace = last / (groups - slots)
            if groups > 2 * slots:
                pace = (last - first) / (groups - slots - 1)
            cycles += pace * (here - groups)
        elif here > groups:
            cycles *= here / groups
    else:
        groups = min(here, slots)
        clock = play(resident, groups, cut, some)
        rounds, rest = divmod(here, groups)
        if rounds >= FEW_ROUNDS:  # the tail is small
            rest = 0
        cycles = _whole(clock, wave_instructions * waves * (here - rest))
        if rest:
            tail = play(resident, rest, cut, some)
            cycles += _whole(tail, wave_instructions * waves * rest)
    return Played(
        time_s=cycles / hertz,
        hits=tuple(
            hit / most if most else 0.0
            for hit, most in zip(clock.hits, clock.accesses, strict=True)
        ),  # type: ignore[arg-type]
        stalled=_shares(clock.stalled),
        steps=clock.steps,
        workgroups=groups,
    )


def _shares(stalled: Sequence[float]) -> dict[str, float]:
    """Return the shares of each unit in all stalls, without units of no share."""
    total = sum(stalled) or 1.0
    return {name: one / total for name, one in zip(UNITS, stalled, strict=True) if one}


def _whole(clock: _Clock, instructions: float) -> float:
    """Return the cycles of whole waves, by the pace while all waves were there."""
    left = max(0.0, instructions - clock.steps)
    (first, last), (before, after) = clock.steady_cycles, clock.steady_steps
    pace = (last - first) / (after - before) if after > before else clock.cycles / clock.steps
    return float(clock.cycles + left * pace)
