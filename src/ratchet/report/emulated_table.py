"""The source of an emulated kernel with heat by line, for the page of a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

OWN: Final = "kernel"
"""How the file of the judged source begins; other files are the compiler's libraries."""
AROUND: Final = 2
"""Lines that are shown before the first and after the last one that did work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeatRow:
    """One source line and its shares of the kernel's work."""

    place: str
    text: str
    cycles: str
    moved: str
    conflicts: str
    lanes_off: str
    heat: float
    """The largest of its shares, 0 to 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeatTable:
    """One kernel's lines, and those of libraries that it took in."""

    title: str
    rows: tuple[HeatRow, ...]
    libraries: tuple[HeatRow, ...]


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
    own: dict[int, Mapping[str, Any]] = {}
    others = []
    for one in lines:
        file, _, number = str(one["place"]).rpartition(":")
        if file.startswith(OWN) and number.isdecimal() and 0 < int(number) <= len(texts):
            own[int(number)] = one
        else:
            others.append(_row(one, str(one["place"]) or "no line", "", whole))
    rows = []
    if own:
        first, last = max(1, min(own) - AROUND), min(len(texts), max(own) + AROUND)
        rows = [
            _row(own.get(number), str(number), texts[number - 1], whole)
            for number in range(first, last + 1)
        ]
    return HeatTable(
        title=f"{kernel['name']} on {case['target']}, case {case['case']}",
        rows=tuple(rows),
        libraries=tuple(others),
    )


def _row(
    line: Mapping[str, Any] | None, place: str, text: str, whole: Mapping[str, int]
) -> HeatRow:
    if line is None:
        return HeatRow(
            place=place, text=text, cycles="", moved="", conflicts="", lanes_off="", heat=0.0
        )
    shares = {key: int(line[key]) / total for key, total in whole.items()}
    return HeatRow(
        place=place,
        text=text,
        cycles=f"{shares['cycles']:.1%}",
        moved=f"{shares['lines_64']:.1%}" if line["lines_64"] else "",
        conflicts=f"{int(line['lds_conflicts']):,}" if line["lds_conflicts"] else "",
        lanes_off=f"{float(line['lanes_off']):.0%}",
        heat=min(1.0, max(shares.values())),
    )
