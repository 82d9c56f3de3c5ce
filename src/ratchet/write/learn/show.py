"""A run of learning as result.json and a page, which reloads itself meanwhile."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from ratchet.base.files import write_whole
from ratchet.base.serialise import encoded
from ratchet.base.show import figures
from ratchet.base.show import model as m
from ratchet.base.show.page import render_page
from ratchet.base.show.words import show_percent
from ratchet.write.learn.evaluate import Evaluation


class RoundRow(msgspec.Struct, frozen=True, kw_only=True):
    """One round of the loop: its cost, its result, and whether its policy was kept."""

    number: int
    kept: bool
    why: str
    evaluation: Evaluation
    forgetting: float
    replay: float
    corpus: int  # Examples that it learned from
    judged: int  # Kernels that were judged for it, by authors, training and evaluation
    spent_s: float


class LearnReport(msgspec.Struct, frozen=True, kw_only=True):
    """The document behind result.json and the page."""

    title: str
    command: str
    running: bool
    config: list[tuple[str, str]]
    curves: dict[str, list[dict[str, float | str]]]
    rounds: tuple[RoundRow, ...] = ()
    figures: list[tuple[str, str]] = []
    notes: tuple[str, ...] = ()
    device: dict[str, object] = {}
    policy: str = ""


RESULT, PAGE = "result.json", "report.html"


def write_report(report: LearnReport, folder: Path) -> dict[str, str]:
    write_whole(folder / RESULT, encoded(report, indent=2))
    write_whole(folder / PAGE, render_learn_page(report).encode())
    return {"result": str(folder / RESULT), "page": str(folder / PAGE)}


def refresh_page(report: LearnReport, folder: Path) -> None:
    """Write the page of a run that goes on; a full disk does not end the run."""
    with contextlib.suppress(OSError):
        write_whole(folder / PAGE, render_learn_page(report).encode())


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
ROUNDS: Final = (
    m.Column("round", "number"),
    m.number("valid", lambda row: show_percent(row.evaluation.valid)),
    m.number("right", lambda row: show_percent(row.evaluation.right)),
    m.number("fast (1.2x)", lambda row: _between(row.evaluation, "fast", show_percent)),
    m.number("reward", lambda row: _between(row.evaluation, "reward", "{:.3f}".format)),
    m.number("forgot, nats", "forgetting", "{:.3f}".format),
    m.number("judged"),
    m.number("minutes", "spent_s", lambda spent_s: f"{spent_s / 60:.1f}"),
)


def render_learn_page(report: LearnReport) -> str:
    return render_page(learn_report(report, {}))


def learn_report(report: LearnReport, paths: Mapping[str, str]) -> m.ResultReport:
    running = f"The run goes on; this page reloads every {RELOAD_S} seconds."
    plots = [
        m.section(f"{title} · {stage}", m.Figure("plot", plot, f"{title} of {stage}", "curves"))
        for title, y_title, names in PLOTS
        for stage, rows in report.curves.items()
        if (plot := curve_plot(rows, names, y_title)) is not None
    ]
    kept = [
        f"Round {row.number} is {'kept' if row.kept else 'not kept'}: {row.why}."
        for row in report.rounds
    ]
    config = [(name.replace("_", " "), value or "none") for name, value in report.config]
    files = [f"policy: {report.policy}", f"page:   {paths.get('page', '')}"]
    return m.ResultReport(
        title=report.title,
        heading=report.title,
        headline=headline(report),
        header=m.blocks(
            m.Words(running, "soft", on="page") if report.running else None,
            *(m.Words(one, "warning") for one in report.notes),
        ),
        sections=m.blocks(
            m.section("Figures", m.Facts(report.figures)) if report.figures else None,
            m.section(
                "Rounds",
                m.note(
                    "Held-out problems are of families that no policy is trained on. Every figure "
                    "is a screening's estimate, not a verdict. Intervals are 95 %, over problems."
                ),
                m.ResultTable(ROUNDS, report.rounds),
                *kept,
            )
            if report.rounds
            else None,
            m.section("Curves", *plots, "" if plots else "No step is done yet.", on="page"),
            m.section(
                "Settings",
                m.Facts([("command", m.Span(report.command, "code")), *config]),
                on="page",
            ),
            m.section("Written", m.Lines(files, indent=0), on="terminal") if paths else None,
        ),
        reload_s=RELOAD_S if report.running else None,
    )


def _between(evaluation: Evaluation, name: str, show: Callable[[float], str]) -> str:
    value, low, high = (getattr(evaluation, f"{name}{end}") for end in ("", "_low", "_high"))
    return f"{show(value)} ({show(low)} - {show(high)})"


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
        f"0), and {show_percent(now.fast)} of the answers are right and at least 1.2 times as fast "
        f"as {rival} ({show_percent(first.fast)} in round 0). The policy of round {kept.number} is "
        "kept."
    )


def curve_plot(
    rows: Sequence[dict[str, float | str]], names: Sequence[str], y_title: str
) -> figures.Plot | None:
    """Plot figures over the steps of a stage; None if they were measured less than twice.

    A long curve shows means of stretches of its steps.
    """
    found = {
        name: [(float(row["step"]), float(row[name])) for row in rows if name in row]
        for name in names
    }
    measured = {name: points for name, points in found.items() if len(points) > 1}
    curves = [
        figures.PlotCurve(
            f"{colour} lines", TITLES[name], f"last {points[-1][1]:.3f}", [_means(points)]
        )
        for colour, (name, points) in zip(COLOURS, measured.items(), strict=False)
    ]
    return figures.line_plot(curves, y_title=y_title, digits=3) if curves else None


def _means(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points, or the means of stretches of them if there are too many."""
    each = math.ceil(len(points) / MOST_POINTS)
    parts = [points[at : at + each] for at in range(0, len(points), each)]
    return [
        (sum(at for at, _ in part) / len(part), sum(value for _, value in part) / len(part))
        for part in parts
    ]


class StageProgress:
    """Tells of the steps of a stage of learning on a terminal, every few seconds."""

    EVERY_S = 2.0
    SHOWN = ("loss", "reward", "held_out_loss", "forgetting")

    def __init__(self, what: str, steps: int) -> None:
        """`what` is trained: a stage, and the size of its model."""
        self._what, self._steps, self._last_s = what, steps, 0.0

    def show(self, row: Mapping[str, float | str]) -> bool:
        """Show a step; return False if the last one was shown a moment ago."""
        if time.monotonic() - self._last_s < self.EVERY_S:
            return False
        self._last_s = time.monotonic()
        if sys.stderr.isatty():
            shown = ", ".join(
                f"{name} {float(row[name]):.3f}" for name in self.SHOWN if name in row
            )
            at = f"step {int(float(row['step'])) + 1} of {self._steps}"
            print(f"{self._what}, {at}: {shown}", file=sys.stderr)
        return True
