"""The regions of a workload: what could be rewritten, and what that could win."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from ratchet.graph.regions.region import Region
from ratchet.report.model import Column, ResultReport, ResultTable, blocks, name, number, section
from ratchet.report.terminal import print_report
from ratchet.report.words import ABSENT, show_bytes, show_time

TIMED_BY = {"inductor": "", "estimate": " ~"}


def print_regions(
    workload: str,
    regions: Sequence[Region],
    notes: Sequence[str] = (),
    *,
    most: int | None = None,
    console: Console | None = None,
) -> None:
    """Print the regions of a workload, in their order, and what was left out.

    `most` limits the rows; the rest is summed up in one line. `console` defaults to stdout.
    """
    total_s = sum(one.gain_s for one in regions)
    sites = sum(one.count for one in regions)
    shown = regions if most is None else regions[:most]
    rest = regions[len(shown) :]
    left = f"{len(rest)} more could win {show_time(sum(one.gain_s for one in rest))} together."
    report = ResultReport(
        headline=f"{workload}: {len(regions)} different regions at {sites} sites of a step.",
        sections=blocks(
            section("Regions", ResultTable(_columns(total_s), shown), left if rest else "",
                    *_explained(regions)) if shown else None,
            section("Left out", *notes),
        ),
    )  # fmt: skip
    print_report(report, console)


def _columns(total_s: float) -> tuple[Column, ...]:
    return (
        name("region", lambda one: one.problem.name),
        Column("where", lambda one: one.where or ABSENT),
        Column("pass", "direction"),
        number("sites", "count"),
        number("bytes", "bytes", show_bytes),
        number("now", lambda one: show_time(one.time_s) + TIMED_BY[one.timed_by]),
        number("floor", "floor_s", show_time),
        number("to win", "gain_s", show_time),
        number("share", lambda one: f"{one.gain_s / total_s:.0%}" if total_s else ABSENT),
    )


def _explained(regions: Sequence[Region]) -> list[str]:
    said = [
        "now and floor are times of one site; to win is what all sites of a step lose against the "
        "floor, the roofline time of their compulsory bytes and operations."
    ]
    if any(one.timed_by == "estimate" for one in regions):
        said.append("~ is an estimate; the other times are torch.compile's, region by region.")
    if any(one.kind == "product" for one in regions):
        said.append(
            "A product's region and a fused region next to it may hold the same pointwise "
            "operations, so their times do not add up."
        )
    return said
