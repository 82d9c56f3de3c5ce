"""The emulator's counts: the source with heat by line, waves in order, and lower bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from ratchet.base.show import model as m
from ratchet.base.show.figures import Mark, TrackRow
from ratchet.base.show.words import ABSENT, show_bytes, show_time

if TYPE_CHECKING:
    from ratchet.judge.verdict import EmulatedCase, EmulatedKernel, EmulatedLine, EmulatedTimeline

OWN: Final = "kernel"
"""Beginning of the judged source's file name; other files are the compiler's libraries."""
AROUND: Final = 2  # Lines that are shown before the first and after the last one that did work
NO_LINE: Final = "no line"
HUES: Final = 12  # Colours of a timeline: the lines with most of its cycles; all others share one
LIMITS: Final = {
    "registers": "the registers of a lane",
    "lds": "the LDS of a workgroup",
    "workgroups": "the number of workgroups that a compute unit holds",
    "none": "nothing",
}
ESTIMATED: Final = "estimated_speedup"
HEAT: Final = (
    m.Column("line", "place"),
    m.Column("cycles"),
    m.Column("bytes moved", "moved"),
    m.Column("LDS conflicts", "conflicts"),
    m.Column("lanes off", "lanes_off"),
    m.Column("source and assembly", lambda row: m.Span(_source(row)), look="source"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class HeatRow:
    """One source line, its shares of the kernel's work, and its instructions."""

    place: str
    text: str
    cycles: str
    moved: str
    conflicts: str
    lanes_off: str
    heat: float  # The largest of its shares, 0 to 1
    assembly: tuple[tuple[str, str], ...] = ()  # Each instruction and how often waves executed it


def heat_section(cases: Sequence[EmulatedCase], source: str) -> m.ReportSection | None:
    """Return the lines of each kernel of the first emulated case; None without line counts."""
    parts = [
        _kernel(case, kernel, source.splitlines())
        for case in cases[:1]
        for kernel in case.kernels
        if kernel.lines
    ]
    said = m.note(
        "Exact counts of the emulator, as shares of the kernel's own: cycles of vector and matrix "
        "instructions, and lines of 64 bytes that memory accesses needed. Nothing was timed. The "
        "bar is the largest share. Open a line to see its instructions and how often waves "
        "executed each."
    )
    return m.section("Where the emulated work is", said, *parts, on="page") if parts else None


def _kernel(case: EmulatedCase, kernel: EmulatedKernel, texts: Sequence[str]) -> m.ReportSection:
    whole = [max(1, sum(counts)) for counts in zip(*map(_counts, kernel.lines), strict=True)]
    own: dict[int, HeatRow] = {}
    others = []
    for one in kernel.lines:
        number = _own_line(one.place, len(texts))
        if number is None:
            others.append(_row(one, one.place or NO_LINE, "", whole))
        else:
            own[number] = _row(one, str(number), texts[number - 1], whole)
    hottest = sorted(
        (row for row in (*own.values(), *others) if row.assembly), key=lambda row: -row.heat
    )
    return m.section(
        f"{kernel.name} on {case.target}, case {case.case}",
        _occupancy(kernel),
        _heat(_with_idle(own, texts)),
        m.section("assembly, the hottest line first", *map(_assembly, hottest), closed=True)
        if hottest
        else None,
        m.section("lines of libraries, and instructions without a line", _heat(others), closed=True)
        if others
        else None,
        _waves(kernel.timeline, texts),
    )


def _heat(rows: Sequence[HeatRow]) -> m.ResultTable:
    return m.ResultTable(HEAT, rows, look="heat")


def _with_idle(own: Mapping[int, HeatRow], texts: Sequence[str]) -> list[HeatRow]:
    """Return the lines that did work, and those between and around them."""
    if not own:
        return []
    first, last = max(1, min(own) - AROUND), min(len(texts), max(own) + AROUND)
    idle = HeatRow(place="", text="", cycles="", moved="", conflicts="", lanes_off="", heat=0.0)
    return [
        own.get(number) or replace(idle, place=str(number), text=texts[number - 1])
        for number in range(first, last + 1)
    ]


def _source(row: HeatRow) -> Markup:
    """Return a line with its heat, and its instructions behind a click."""
    text = Markup("<code>{}</code>").format(row.text or ("assembly" if row.assembly else ""))
    if row.assembly:
        shown = Markup("<details><summary>{}</summary>{}</details>")
        text = shown.format(text, _instructions(row))
    return Markup('<i style="width:{:.0f}%"></i>').format(100 * row.heat) + text


def _instructions(row: HeatRow) -> Markup:
    lines = (Markup("<b>{}</b>{}\n").format(count, text) for text, count in row.assembly)
    return Markup('<pre class="assembly" tabindex="0">{}</pre>').format(Markup("").join(lines))


def _assembly(row: HeatRow) -> m.ReportBlock:
    moved = f", {row.moved} of the bytes" if row.moved else ""
    line = Markup('<b>{}</b> <span class="soft">{} of the cycles{}</span> <code>{}</code>').format(
        row.place, row.cycles, moved, row.text.strip()
    )
    return m.Figure("raw", line + _instructions(row))


def _own_line(place: str, count: int) -> int | None:
    """Return the number of a line of the judged source; None for other files."""
    file, _, number = place.rpartition(":")
    is_own = file.startswith(OWN) and number.isdecimal() and 0 < int(number) <= count
    return int(number) if is_own else None


def _counts(line: EmulatedLine) -> tuple[int, int, int]:
    return line.cycles, line.lines_64, line.lds_conflicts


def _row(line: EmulatedLine, place: str, text: str, whole: Sequence[int]) -> HeatRow:
    shares = [count / total for count, total in zip(_counts(line), whole, strict=True)]
    return HeatRow(
        place=place,
        text=text,
        cycles=f"{shares[0]:.1%}",
        moved=f"{shares[1]:.1%}" if line.lines_64 else "",
        conflicts=f"{line.lds_conflicts:,}" if line.lds_conflicts else "",
        lanes_off=f"{line.lanes_off:.0%}",
        heat=min(1.0, max(shares)),
        assembly=tuple((one, f"{count:,}") for one, count in line.assembly),
    )


def _occupancy(kernel: EmulatedKernel) -> str:
    """Return how many waves a SIMD holds, and why not more; "" in verdicts without it."""
    if kernel.occupancy_waves is None:
        return ""
    lds = kernel.workgroup_lds_bytes
    return (
        f"Occupancy: {kernel.occupancy_waves} of {kernel.max_waves} waves on a SIMD, limited by "
        f"{LIMITS.get(kernel.occupancy_limit, 'nothing')}. A lane has {kernel.vgprs} vector "
        f"registers; a workgroup has {kernel.workgroup_waves} waves and "
        f"{show_bytes(lds) if lds else 'no'} LDS."
    )


def _waves(told: EmulatedTimeline | None, texts: Sequence[str]) -> m.ReportSection | None:
    """Return the first workgroup's waves in order of issue, by source line."""
    if told is None or not told.cycles:
        return None
    slot, cycles = told.slot, told.cycles
    slots: dict[int, int] = {}
    for wave in told.waves:
        for line, begin, end in wave:
            slots[line] = slots.get(line, 0) + end - begin
    most = sorted(slots, key=lambda line: -slots[line])[:HUES]
    hues = {line: number for number, line in enumerate(most)}
    names = [_named(place, texts) for place in told.places]

    def percent(at: int) -> float:
        return round(min(100.0, 100 * at / cycles), 3)

    def bar(line: int, begin: int, end: int) -> Mark:
        left, right = percent(begin * slot), percent(end * slot)
        look = f"hue{hues.get(line, HUES)}"
        return Mark(left=left, width=round(right - left, 3), look=look, title=names[line])

    barriers = [Mark(left=percent(at), tag="b") for at in told.barriers]
    rows = [
        TrackRow(title=f"wave {place}", marks=(*(bar(*one) for one in wave), *barriers))
        for place, wave in enumerate(told.waves)
    ]
    legend = [(f"hue{hues[line]}", m.Span(names[line], "code"), "") for line in most]
    rest = [(f"hue{HUES}", m.Span("other lines", "code"), "")] if len(slots) > len(most) else []
    said = m.note(
        f"This is an order, not time: {cycles:,} counted cycles, with nothing waited for but "
        "barriers (the vertical lines). Each wave is drawn as if it had a SIMD of its own. Latency "
        "and stalls are left out."
    )
    label = "Which source line each wave of the first workgroup ran, in counted cycles"
    return m.section(
        "Waves of the first workgroup, in order of issue",
        said,
        m.Figure("tracks", rows, label, "waves"),
        m.Figure("legend", [*legend, *rest], look="waves-legend"),
    )


def _named(place: str, texts: Sequence[str]) -> str:
    number = _own_line(place, len(texts))
    if number is None:
        return place or NO_LINE
    return f"{number}: {' '.join(texts[number - 1].split())[:60]}"


def estimate_section(cases: Sequence[EmulatedCase]) -> m.ReportSection | None:
    """Return the bounds of a verdict's cases on the first device; None where there are none."""
    bounded = [one for one in cases if one.bounds]
    if not bounded:
        return None
    device = bounded[0].bounds[0].device
    rows = [
        (
            one.case,
            show_time(one.bounds[0].time_s),
            one.predicted.words if one.predicted else ABSENT,
            show_time(one.reference_bounds[0].time_s) if one.reference_bounds else ABSENT,
            ABSENT if one.estimated_speedup is None else f"{one.estimated_speedup:.3g}",
        )
        for one in bounded
    ]
    missing = dict.fromkeys(one.no_estimate for one in bounded if one.no_estimate)
    return m.section(
        "Lower bounds and predicted times: estimated, not timed",
        f"What the kernel cannot be faster than on {device}, from the emulator's counts and rates "
        f"on paper. The predicted time has its interval in brackets. "
        f"{ESTIMATED} is a ratio of lower bounds, not timed: the bound of the kernels "
        "that torch.compile writes for the reference over the bound of this kernel.",
        m.grid(("case", "this kernel", "predicted", "reference, compiled", ESTIMATED), rows),
        *(m.Words(f"no estimate: {why}", "note") for why in missing),
    )
