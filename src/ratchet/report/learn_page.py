"""Render the page of a learning run: reward and forgetting; it reloads itself meanwhile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from ratchet.learn.report import LearnReport
from ratchet.report import figures
from ratchet.report.environment import page_environment
from ratchet.report.scale import Scale, around

RELOAD_S: Final = 3
PLOTS: Final = (
    ("reward", "mean reward of a step", ("reward",)),
    ("forgetting", "forgetting, nats a token", ("forgetting",)),
    ("loss", "loss, nats a token", ("loss", "held_out_loss")),
    ("answers", "share of answers", ("valid", "right", "fast")),
)
MOST_POINTS: Final = 100
"""Points of a curve; a longer one shows the means of as many steps as that takes."""
COLOURS: Final = ("ratchet", "best_compile", "as_written")
TITLES: Final = {
    "reward": "reward",
    "forgetting": "rise of the loss on held-out text",
    "loss": "loss of the step",
    "held_out_loss": "loss on held-out text",
    "valid": "valid",
    "right": "right",
    "fast": "at least 1.2 times as fast",
}


def render_learn_page(report: LearnReport) -> str:
    """Return a run's page as HTML; its policy forbids scripts and loads."""
    plots = [
        (title, name, plot)
        for title, y_title, names in PLOTS
        for name, rows in report.curves.items()
        if (plot := curve_plot(rows, names, y_title)) is not None
    ]
    return (
        page_environment()
        .get_template("learn.html")
        .render(
            report=report,
            headline=headline(report),
            reload_s=RELOAD_S if report.running else None,
            plots=plots,
            percent=percent,
        )
    )


def headline(report: LearnReport) -> str:
    """Return what the run came to, in a sentence."""
    if not report.rounds:
        return "The run goes on." if report.running else "The run is over."
    first = report.rounds[0].evaluation
    kept = [one for one in report.rounds if one.kept][-1]
    now = kept.evaluation
    target = dict(report.config).get("target")
    rival = f"the generator's first schedule (estimated for {target})" if target else "the rival"
    return (
        f"On held-out problems, the mean reward is {now.reward:.3f} ({first.reward:.3f} in round "
        f"0), and {percent(now.fast)} of the answers are right and at least 1.2 times as fast as "
        f"{rival} ({percent(first.fast)} in round 0). The policy of round {kept.number} is kept."
    )


def curve_plot(
    rows: Sequence[dict[str, float | str]], names: Sequence[str], y_title: str
) -> figures.Plot | None:
    """Plot figures over the steps of a stage; None if they were measured less than twice.

    A long curve shows means of stretches of its steps.
    """
    curves = {
        name: [(float(row["step"]), float(row[name])) for row in rows if name in row]
        for name in names
    }
    last = {name: points[-1][1] for name, points in curves.items() if points}
    curves = {name: _means(points) for name, points in curves.items() if len(points) > 1}
    if not curves:
        return None
    scale = around([value for points in curves.values() for _, value in points])
    width = Scale(low=0.0, high=max(at for points in curves.values() for at, _ in points) or 1.0)
    return figures.Plot(
        series=tuple(
            figures.Series(
                key=f"{COLOURS[place % len(COLOURS)]} lines",
                title=TITLES[name],
                path=figures.line_path(points, width, scale),
                note=f"last {last[name]:.3f}",
            )
            for place, (name, points) in enumerate(curves.items())
        ),
        x_ticks=width.ticks(lambda step: f"{step:.0f}", count=min(5, round(width.high) + 1)),
        y_ticks=scale.ticks(lambda value: f"{value:.3g}", count=5),
        x_title="step",
        y_title=y_title,
    )


def _means(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points, or the means of stretches of them if there are too many."""
    each = math.ceil(len(points) / MOST_POINTS)
    parts = [points[at : at + each] for at in range(0, len(points), each)]
    return [
        (sum(at for at, _ in part) / len(part), sum(value for _, value in part) / len(part))
        for part in parts
    ]


def percent(share: float) -> str:
    """Return a share for people."""
    return f"{100 * share:.0f} %" if math.isfinite(share) else "-"
