"""A turn's figures: step times, the effect of each change, losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ratchet.base.show.figures import (
    Mark,
    Plot,
    PlotCurve,
    TrackRow,
    around,
    between,
    from_zero,
    line_plot,
    whisker,
)
from ratchet.base.show.words import common_unit
from ratchet.train.turn.optimize_result import ArmResult, Change, LossResult
from ratchet.train.turn.show.comparisons import change_gave

_MOST_OF_THE_SLOWEST = 3
"""End of the axis of step times at most, as a multiple of the slowest step."""


def arm_bars(arms: Sequence[ArmResult]) -> list[TrackRow]:
    """Return step times as bars from zero, with their intervals.

    Two launches that disagree have an interval of hours: it leaves the track, and the bars stay.
    """
    most_s = _MOST_OF_THE_SLOWEST * max((arm.step_time_s for arm in arms), default=0.0)
    ends = [value for arm in arms for value in (arm.step_time_s, arm.high_s)]
    scale = from_zero([min(value, most_s) for value in ends])
    unit = common_unit([arm.step_time_s for arm in arms])
    return [
        TrackRow(
            title=arm.title,
            value=f"{unit.show(arm.step_time_s)} {unit.name}",
            marks=(
                Mark(left=0.0, width=scale.percent(arm.step_time_s)),
                whisker(scale, arm.low_s, arm.high_s),
            ),
            look=arm.key,
        )
        for arm in arms
    ]


def forest(changes: Sequence[Change], floor: Mapping[str, float] | None) -> list[TrackRow]:
    """Put the effect of each change that was timed on one axis, against 1 and the A/A floor."""
    timed = {change.name: (*_ends(change), change) for change in changes if change.ratio}
    if not timed:
        return []
    known = floor or {}
    same = known.get("low", 1.0), known.get("high", 1.0)
    ends = [value for low, high, _ in timed.values() for value in (low, high)]
    scale = around([1.0, *same, *ends], log=True)
    band = (between(scale, *same, look="band"), Mark(left=scale.percent(1.0), look="one"))
    rows = [
        TrackRow(
            title=name,
            value=change_gave(change),
            marks=(
                *band,
                whisker(scale, low, high),
                Mark(left=scale.percent(change.ratio or 1.0), look="dot", tag="b"),
            ),
            look="kept" if change.decision == "kept" else "dropped",
        )
        for name, (low, high, change) in timed.items()
    ]
    ticks = scale.ticks(lambda ratio: f"{ratio:.4g}x", count=5)
    labels = (Mark(left=tick.percent, text=tick.label, look="at", tag="span") for tick in ticks)
    return [*rows, TrackRow(title="", marks=tuple(labels), look="axis")]


def _ends(change: Change) -> tuple[float, float]:
    ratio = change.ratio or 1.0
    low, high = change.low, change.high
    return (ratio if low is None else low, ratio if high is None else high)


def losses_plot(losses: LossResult | None) -> Plot | None:
    """Plot each seed's loss over the steps: the baseline's curves and the recipe's."""
    if losses is None or max(map(len, [*losses.baseline, *losses.candidate]), default=0) < 2:
        return None
    pairs = (
        ("as_written", "as written", losses.baseline),
        ("ratchet", "Ratchet", losses.candidate),
    )
    curves = [
        PlotCurve(key, title, f"{len(own)} seed{'' if len(own) == 1 else 's'}", _numbered(own))
        for key, title, own in pairs
        if own
    ]
    return line_plot(curves, y_title="loss", digits=4)


def _numbered(values: Sequence[Sequence[float]]) -> list[list[tuple[float, float]]]:
    """Return values as points over their numbers."""
    return [[(float(at), value) for at, value in enumerate(line)] for line in values]
