"""Read the counts that a process reports of an emulated kernel, without trusting them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from ratchet.amd.architectures import ARCHITECTURES, occupancy
from ratchet.amd.compile.assembly import MATRIX
from ratchet.amd.emulator.estimates.bound import CYCLES, DUAL
from ratchet.base.devices import matrix
from ratchet.base.serialise import Count
from ratchet.judge.verdict import EmulatedKernel, EmulatedLine, EmulatedTimeline

MOST_KERNELS: Final = 100
MOST_LINES: Final = 40
"""Source lines of a kernel that a verdict keeps."""
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
    lanes, mixed = ARCHITECTURES[target].wavefront_size, told.by_mnemonic
    dual = sum(count for key, count in mixed.items() if key.startswith(DUAL)) // 2
    vector = sum(count for key, count in mixed.items() if key.startswith("v_"))
    products = {key: count for key, count in mixed.items() if key.startswith(MATRIX)}
    found = EmulatedKernel(
        name=name,
        launches=told.launches,
        programs=told.programs,
        waves=told.waves,
        instructions=sum(mixed.values()) - dual,
        vector_instructions=vector - dual - sum(products.values()),
        scalar_instructions=sum(count for key, count in mixed.items() if key.startswith("s_")),
        matrix_instructions=products,
        lanes_off=_lanes_off(told.lanes, mixed, lanes),
        accessed_bytes=told.bytes,
        touched_bytes=told.touched_bytes,
        lines_64=told.lines_64,
        lds_bytes=told.lds_bytes,
        lds_conflicts=told.lds_conflicts,
        lines=_lines(told, target, shown.assembly if shown else {}),
    )
    return msgspec.structs.replace(found, **_resources(shown, target)) if shown else found


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
    whole = [max(1, sum(column)) for column in zip(*map(_work, found), strict=True)]

    def share(line: EmulatedLine) -> float:
        return float(max(one / all_ for one, all_ in zip(_work(line), whole, strict=True)))

    left, kept = MOST_INSTRUCTIONS, []
    for line in sorted(found, key=share, reverse=True)[:MOST_LINES]:
        own = _hottest_of(assembly.get(line.place, []), min(left, MOST_OF_A_LINE))
        left -= len(own)
        kept.append(msgspec.structs.replace(line, assembly=own))
    return kept


def _hottest_of(own: Sequence[tuple[str, int]], most: int) -> list[tuple[str, int]]:
    """Return the instructions that were executed most, in their order."""
    places = sorted(sorted(range(len(own)), key=lambda at: -own[at][1])[:most])
    return [(own[at][0][:160], own[at][1]) for at in places]


def _work(line: EmulatedLine) -> tuple[int, int, int]:
    return line.cycles, line.lines_64, line.lds_conflicts


def _simd_cycles(by_mnemonic: Mapping[str, int], target: str) -> int:
    """Return the cycles in a SIMD of some instructions, as in the bound."""
    family = "cdna" if target.startswith("gfx9") else "rdna"
    products = {key: count for key, count in by_mnemonic.items() if key.startswith(MATRIX)}
    dual = sum(count for key, count in by_mnemonic.items() if key.startswith(DUAL)) // 2
    vector = sum(count for key, count in by_mnemonic.items() if key.startswith("v_"))
    cycles = CYCLES[family] * (vector - dual - sum(products.values()))
    return cycles + matrix.cycles_of(target, products, CYCLES[family])
