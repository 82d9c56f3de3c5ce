"""The table of a workload's regions: what could be rewritten, and what that could win."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from ratchet.graph.regions.region import Region
from ratchet.report.console import heading, make_console, table
from ratchet.report.words import ABSENT, show_bytes, show_time

COLUMNS = ("region", "where", "pass", "sites", "bytes", "now", "floor", "to win", "share")
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

    `most` limits the rows; the rest is summed up in one line. The console defaults to stdout.
    """
    out = console or make_console()
    total_s = sum(one.gain_s for one in regions)
    sites = sum(one.count for one in regions)
    out.print(f"{workload}: {len(regions)} different regions at {sites} sites of a step.")
    shown = regions if most is None else regions[:most]
    if shown:
        out.print()
        out.print(table(COLUMNS, [_row(one, total_s) for one in shown], left=3))
        _print_rest(out, regions[len(shown) :])
        out.print()
        _print_words(out, regions)
    if notes:
        heading(out, "Left out")
        for note in notes:
            out.print(note)


def _row(region: Region, total_s: float) -> tuple[str, ...]:
    return (
        region.problem.name,
        region.where or ABSENT,
        region.direction,
        str(region.count),
        show_bytes(region.bytes),
        show_time(region.time_s) + TIMED_BY[region.timed_by],
        show_time(region.floor_s),
        show_time(region.gain_s),
        f"{region.gain_s / total_s:.0%}" if total_s else ABSENT,
    )


def _print_rest(out: Console, rest: Sequence[Region]) -> None:
    if rest:
        left_s = sum(one.gain_s for one in rest)
        out.print(f"{len(rest)} more could win {show_time(left_s)} together.")


def _print_words(out: Console, regions: Sequence[Region]) -> None:
    out.print(
        "now and floor are times of one site; to win is what all sites of a step lose against the "
        "floor, the roofline time of their compulsory bytes and operations."
    )
    if any(one.timed_by == "estimate" for one in regions):
        out.print("~ is an estimate; the other times are torch.compile's, region by region.")
    if any(one.kind == "product" for one in regions):
        out.print(
            "A product's region and a fused region next to it may hold the same pointwise "
            "operations, so their times do not add up."
        )
