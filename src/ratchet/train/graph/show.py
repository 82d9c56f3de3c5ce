"""The regions of a workload: what could be rewritten, and what that could win."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.base.show import model as m
from ratchet.base.show.words import ABSENT, show_bytes, show_time
from ratchet.train.graph.regions.region import Region

TIMED_BY = {"inductor": "", "estimate": " ~"}


def regions_report(
    workload: str,
    regions: Sequence[Region],
    notes: Sequence[str] = (),
) -> m.ResultReport:
    """Describe the regions of a workload, in their order, and what was left out."""
    total_s = sum(one.gain_s for one in regions)
    sites = sum(one.count for one in regions)
    return m.ResultReport(
        headline=f"{workload}: {len(regions)} different regions at {sites} sites of a step.",
        sections=m.blocks(
            m.section("Regions", m.ResultTable(_columns(total_s), regions), *_explained(regions))
            if regions
            else None,
            m.section("Left out", *notes),
        ),
    )


def _columns(total_s: float) -> tuple[m.Column, ...]:
    return (
        m.name("region", lambda one: one.problem.name),
        m.Column("where", lambda one: one.where or ABSENT),
        m.Column("pass", "direction"),
        m.number("sites", "count"),
        m.number("bytes", "bytes", show_bytes),
        m.number("now", lambda one: show_time(one.time_s) + TIMED_BY[one.timed_by]),
        m.number("floor", "floor_s", show_time),
        m.number("to win", "gain_s", show_time),
        m.number("share", lambda one: f"{one.gain_s / total_s:.0%}" if total_s else ABSENT),
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
