"""A bench and a turn on many ranks, in words and tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ratchet.base.show import model as m
from ratchet.base.show.words import common_unit, show_bytes, show_rate, show_share
from ratchet.scale.parallel.bench import ParallelBench
from ratchet.scale.parallel.turn import NO_TIME, ParallelTurn


def parallel_bench_report(found: ParallelBench) -> m.ResultReport:
    """Describe a workload's figures on many ranks: of all together, and of each rank."""
    unit = common_unit([found.step_time_s])
    columns = (
        m.number("rank"),
        m.number(f"step, {unit.name}", "step_time_s", unit.show),
        m.number("peak memory", "peak_memory_bytes", show_bytes),
        m.number(f"communication, {unit.name}", lambda one: one.communication.total_s, unit.show),
        m.number(f"exposed, {unit.name}", lambda one: one.communication.exposed_s, unit.show),
        m.number("hidden", lambda one: one.communication.overlap, show_share),
    )
    return m.ResultReport(
        headline=(
            f"{found.workload} on {found.world} ranks ({found.layout}): "
            f"{unit.show(found.step_time_s)} {unit.name} a step of the slowest rank, "
            f"{show_rate(found.tokens_per_s)} {found.unit}/s."
        ),
        sections=m.blocks(m.section("Ranks", m.ResultTable(columns, found.ranks))),
    )


CHANGES: Final = (
    m.name("lever", "name"),
    m.Column("", "decision"),
    m.number("screened", "ratio", lambda value: f"{value:.3f}x"),
    m.Column("why", "reason"),
)
OF_A_RANK: Final = (m.name("change", "name"), *CHANGES[1:])


def parallel_turn_report(found: ParallelTurn) -> m.ResultReport:
    """Describe the result of a turn on many ranks."""
    title = f"{found.workload} on {found.world} ranks ({found.layout})"
    if found.speedup is not None and found.proven:
        headline = (
            f"{title}: {found.speedup.ratio:.3f}x faster "
            f"({found.speedup.low:.3f} to {found.speedup.high:.3f}), "
            "by the slowest rank."
        )
    else:
        why = found.answer
        if found.speedup is None:  # no launch was timed
            cut = [one for one in found.changes if one.reason == NO_TIME]
            why = NO_TIME if cut else "no lever looked faster"
        headline = f"{title}: nothing was proven faster ({why})."
    return m.ResultReport(
        title=title,
        heading=title,
        headline=headline,
        sections=m.blocks(
            m.section("The step", *_times(found)) if found.written_s is not None else None,
            m.section("Levers", m.ResultTable(CHANGES, found.changes)),
            m.section("Levers of one process", m.ResultTable(OF_A_RANK, found.one_process))
            if found.one_process
            else None,
            m.section("Losses", f"{found.losses}."),
            m.section("Run it", m.Lines([found.command, f"# it applies {found.recipe}"])),
            m.written([found.recipe, found.result, found.report]),
        ),
    )


def _times(found: ParallelTurn) -> list[str]:
    """Return the sentences on a step's time and on the communication that it exposes."""
    pairs = {
        "The slowest rank's step": (found.written_s, found.tuned_s),
        "Exposed communication": (found.exposed_written_s, found.exposed_tuned_s),
    }
    said = []
    for what, (before, after) in pairs.items():
        unit = common_unit([before or 0.0])
        written, tuned = unit.show(before or 0.0), unit.show(after or 0.0)
        said.append(f"{what}: {written} {unit.name} as written, {tuned} {unit.name} tuned.")
    return said


def rank_levers_report(levers: Mapping[str, str], reasons: Mapping[str, str]) -> m.ResultReport:
    """Describe the levers that a turn on many ranks would try, and why not the others."""
    rows = list(levers.items())
    return m.ResultReport(
        headline=f"{len(rows)} levers would be tried.",
        sections=m.blocks(
            m.section("Levers", m.grid(("lever", "it does"), rows)) if rows else None,
            m.section("Not tried", m.grid(("lever", "because"), list(reasons.items())))
            if reasons
            else None,
        ),
    )
