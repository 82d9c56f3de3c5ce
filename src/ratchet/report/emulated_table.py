"""The source of an emulated kernel with heat by line, for the page of a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console

from ratchet.report.console import heading, table
from ratchet.report.words import show_bytes, show_time

OWN: Final = "kernel"
"""How the file of the judged source begins; other files are the compiler's libraries."""
AROUND: Final = 2
"""Lines that are shown before the first and after the last one that did work."""
NO_LINE: Final = "no line"
HUES: Final = 12
"""Colours of a timeline: the lines with most of its cycles; all others share one."""
LIMITS: Final = {
    "registers": "the registers of a lane",
    "lds": "the LDS of a workgroup",
    "workgroups": "the number of workgroups that a compute unit holds",
    "none": "nothing",
}
ESTIMATED: Final = "estimated_speedup"
SAID: Final = "of lower bounds, not timed"


@dataclass(frozen=True, kw_only=True, slots=True)
class HeatRow:
    """One source line, its shares of the kernel's work, and its instructions."""

    place: str
    text: str
    cycles: str
    moved: str
    conflicts: str
    lanes_off: str
    heat: float
    """The largest of its shares, 0 to 1."""
    assembly: tuple[tuple[str, str], ...] = ()
    """Each instruction and how often waves executed it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimelineBar:
    """A stretch of one wave in percent of the width; `hue` is the number of a colour."""

    left: float
    width: float
    hue: int
    title: str


@dataclass(frozen=True, kw_only=True, slots=True)
class WaveTimeline:
    """The first workgroup's waves in order of issue; `cycles` are counted, and no time."""

    cycles: str
    barriers: tuple[float, ...]
    """In percent of the width."""
    waves: tuple[tuple[TimelineBar, ...], ...]
    legend: tuple[tuple[int, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeatTable:
    """One kernel's lines, and those of libraries that it took in."""

    title: str
    rows: tuple[HeatRow, ...]
    libraries: tuple[HeatRow, ...]
    hottest: tuple[HeatRow, ...]
    """Those of `rows` and `libraries` whose instructions are known, the hottest first."""
    occupancy: str
    timeline: WaveTimeline | None


def heat_tables(cases: Sequence[Mapping[str, Any]], source: str) -> list[HeatTable]:
    """Return a table for each kernel of the first emulated case; none without line counts."""
    found = []
    for case in cases[:1]:
        for kernel in case["kernels"]:
            if kernel.get("lines"):
                found.append(_table(case, kernel, source.splitlines()))
    return found


def _table(case: Mapping[str, Any], kernel: Mapping[str, Any], texts: Sequence[str]) -> HeatTable:
    lines = kernel["lines"]
    whole = {
        key: max(1, sum(int(one[key]) for one in lines))
        for key in ("cycles", "lines_64", "lds_conflicts")
    }
    own: dict[int, HeatRow] = {}
    others, hottest = [], []
    for one in lines:
        number = _own_line(str(one["place"]), len(texts))
        if number is None:
            row = _row(one, str(one["place"]) or NO_LINE, "", whole)
            others.append(row)
        else:
            row = own[number] = _row(one, str(number), texts[number - 1], whole)
        if row.assembly:
            hottest.append(row)
    rows = []
    if own:
        first, last = max(1, min(own) - AROUND), min(len(texts), max(own) + AROUND)
        rows = [
            own.get(number) or _idle_row(str(number), texts[number - 1])
            for number in range(first, last + 1)
        ]
    return HeatTable(
        title=f"{kernel['name']} on {case['target']}, case {case['case']}",
        rows=tuple(rows),
        libraries=tuple(others),
        hottest=tuple(sorted(hottest, key=lambda row: -row.heat)),
        occupancy=_occupancy(kernel),
        timeline=_timeline(kernel.get("timeline"), texts),
    )


def _own_line(place: str, count: int) -> int | None:
    """Return the number of a line of the judged source; None for other files."""
    file, _, number = place.rpartition(":")
    is_own = file.startswith(OWN) and number.isdecimal() and 0 < int(number) <= count
    return int(number) if is_own else None


def _row(line: Mapping[str, Any], place: str, text: str, whole: Mapping[str, int]) -> HeatRow:
    shares = {key: int(line[key]) / total for key, total in whole.items()}
    return HeatRow(
        place=place,
        text=text,
        cycles=f"{shares['cycles']:.1%}",
        moved=f"{shares['lines_64']:.1%}" if line["lines_64"] else "",
        conflicts=f"{int(line['lds_conflicts']):,}" if line["lds_conflicts"] else "",
        lanes_off=f"{float(line['lanes_off']):.0%}",
        heat=min(1.0, max(shares.values())),
        assembly=tuple((str(one), f"{int(count):,}") for one, count in line.get("assembly") or ()),
    )


def _idle_row(place: str, text: str) -> HeatRow:
    return HeatRow(
        place=place, text=text, cycles="", moved="", conflicts="", lanes_off="", heat=0.0
    )


def _occupancy(kernel: Mapping[str, Any]) -> str:
    """Return how many waves a SIMD holds, and why not more; "" in verdicts without it."""
    waves = kernel.get("occupancy_waves")
    if waves is None:
        return ""
    lds = int(kernel["workgroup_lds_bytes"])
    return (
        f"Occupancy: {waves} of {kernel['max_waves']} waves on a SIMD, limited by "
        f"{LIMITS.get(kernel['occupancy_limit'], 'nothing')}. A lane has {kernel['vgprs']} vector "
        f"registers; a workgroup has {kernel['workgroup_waves']} waves and "
        f"{show_bytes(lds) if lds else 'no'} LDS."
    )


def _timeline(told: Mapping[str, Any] | None, texts: Sequence[str]) -> WaveTimeline | None:
    if not told or not told["cycles"]:
        return None
    slot, cycles = int(told["slot"]), int(told["cycles"])
    slots: dict[int, int] = {}
    for wave in told["waves"]:
        for line, begin, end in wave:
            slots[line] = slots.get(line, 0) + end - begin
    most = sorted(slots, key=lambda line: -slots[line])[:HUES]
    hues = {line: number for number, line in enumerate(most)}
    names = [_named(str(place), texts) for place in told["places"]]

    def percent(at: int) -> float:
        return round(min(100.0, 100 * at / cycles), 3)

    waves = tuple(
        tuple(
            TimelineBar(
                left=percent(begin * slot),
                width=round(percent(end * slot) - percent(begin * slot), 3),
                hue=hues.get(line, HUES),
                title=names[line],
            )
            for line, begin, end in wave
        )
        for wave in told["waves"]
    )
    rest = ((HUES, "other lines"),) if len(slots) > len(most) else ()
    return WaveTimeline(
        cycles=f"{cycles:,}",
        barriers=tuple(percent(at) for at in told["barriers"]),
        waves=waves,
        legend=(*((hues[line], names[line]) for line in most), *rest),
    )


def _named(place: str, texts: Sequence[str]) -> str:
    number = _own_line(place, len(texts))
    if number is None:
        return place or NO_LINE
    return f"{number}: {' '.join(texts[number - 1].split())[:60]}"


@dataclass(frozen=True, kw_only=True, slots=True)
class EstimateTable:
    """The bounds of each emulated case, and their ratio: nothing in it was timed."""

    device: str
    rows: tuple[tuple[str, str, str, str], ...]
    """The case, its bound, that of the reference's compiled kernels, and the ratio."""
    missing: tuple[str, ...]
    """Why there are ratios missing."""


def estimate_table(cases: Sequence[Mapping[str, Any]]) -> EstimateTable | None:
    """Return the bounds of a verdict's cases on the first device; None where there are none."""
    bounded = [one for one in cases if one.get("bounds")]
    if not bounded:
        return None
    rows = []
    for one in bounded:
        ratio, reference = one.get("estimated_speedup"), one.get("reference_bounds") or ()
        rows.append(
            (
                str(one["case"]),
                show_time(one["bounds"][0]["time_s"]),
                show_time(reference[0]["time_s"]) if reference else "-",
                f"{ratio:.3g}" if ratio is not None else "-",
            )
        )
    missing = dict.fromkeys(str(one["no_estimate"]) for one in bounded if one.get("no_estimate"))
    return EstimateTable(
        device=str(bounded[0]["bounds"][0]["device"]), rows=tuple(rows), missing=tuple(missing)
    )


def print_estimates(out: Console, cases: Sequence[Mapping[str, Any]]) -> None:
    """Print the bounds of emulated cases, apart from speeds that were measured."""
    found = estimate_table(cases)
    if found is None:
        return
    heading(out, f"Lower bounds on {found.device}: estimated, not timed")
    columns = ("case", "this kernel", "reference, compiled", ESTIMATED)
    out.print(table(columns, found.rows, left=1))
    out.print(f"{ESTIMATED} is a ratio {SAID}.")
    for why in found.missing:
        out.print(f"no estimate: {why}")
