"""The report of `ratchet emulate`: launches, faults, hot lines and bounds of a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ratchet.amd.emulator.program.counted import ProgramKernel, ProgramResult
from ratchet.base.show import model as m
from ratchet.base.show.words import counted, show_bytes, show_time

MOST_KERNELS: Final = 20
MOST_FAULTS: Final = 30
COLUMNS: Final = (
    m.name("kernel", "name"),
    m.number("launches", "launches", lambda value: f"{value:,}"),
    m.number("instructions", "instructions", lambda value: f"{value:,}"),
    m.number("bytes touched", "touched_bytes", show_bytes),
    m.number("at least", "bound_s", show_time),
    m.Column("limited by", "limit"),
)


def emulate_report(result: ProgramResult) -> m.ResultReport:
    """Return the summary of a program that ran on an emulated GPU."""
    faults = [
        (one.kind, one.kernel, f"{one.count:,}", one.reason) for one in result.faults[:MOST_FAULTS]
    ]
    asked = [f"{counted(count, 'call')} of {what}" for what, count in result.asked.items()]
    hottest = _hottest(result.kernels[:MOST_KERNELS])
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
                "The bound says what a kernel cannot be faster than; nothing was timed.",
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
        return f"no Triton kernel was launched {where}"
    failed = sum(one.count for one in result.faults)
    said = f"{counted(result.launches, 'launch').replace('launchs', 'launches')} of "
    said += f"{counted(len(result.kernels), 'kernel')} {where}"
    return said + (f"; {failed:,} failed" if failed else "; none failed")


def _hottest(kernels: Sequence[ProgramKernel]) -> list[str]:
    """Return a line for the hottest line of each kernel."""
    said = []
    for one in kernels:
        for line in one.hottest[:1]:
            shares = f"{line.cycles:.0%} of the cycles, {line.moved:.0%} of the bytes"
            text = f": {line.text}" if line.text else ""
            said.append(f"{one.name} at {line.place}, {shares}{text}")
    return said
