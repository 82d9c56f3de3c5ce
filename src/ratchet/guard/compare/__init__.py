"""Two ways of running something, timed in adjacent pairs until the answer is clear."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ratchet.base import Json, scratch
from ratchet.base.devices.probe import probe
from ratchet.base.errors import RatchetError
from ratchet.base.ledger import Ledger
from ratchet.base.measure.contest import (
    LEAST_ROUNDS,
    CompareOutcome,
    CompareSettings,
    compare_contest,
)
from ratchet.base.measure.metrics import BASELINE, NEW, MetricAnswer
from ratchet.base.show import model as m
from ratchet.base.show.words import show_bytes, show_rate, show_time
from ratchet.guard.compare.commands import CommandContest, CommandSide, run_command
from ratchet.guard.compare.request import CompareRequest, Sides
from ratchet.guard.compare.workloads import WARMUP, WorkloadContest, WorkloadSide
from ratchet.judge.steps.arms import ArmProcess
from ratchet.trace.analysis import analyse
from ratchet.trace.compare import diff
from ratchet.trace.read import read

# `compare` as one call, a request in and an outcome out, and the outcome as a report.
#
# Two workloads get the difference of their traces if the new one is slower, and both kinds of
# sides their instruction counts if they are asked for.

COMMAND = "compare"


def compare_sides(
    request: CompareRequest,
    sides: Sides,
    *,
    ledger: str | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> CompareOutcome:
    """Compare two sides as a request says; keep every sample in the ledger, also if it fails.

    If the new one of two workloads is slower, the difference of their traces is added.
    """
    settings = CompareSettings(
        budget_s=request.budget_s, allowed=request.allowed, seed=request.seed
    )
    contest: CommandContest | WorkloadContest
    if sides.commands:
        contest = CommandContest(sides.a, sides.b, printed=request.printed, higher=request.higher)
    else:
        contest = WorkloadContest(sides.a, sides.b, seed=request.seed)
    with Ledger.open(ledger) as book:
        here = book.here(probe("cpu" if sides.commands else request.device))
        title = " : ".join(contest.titles)
        turn = book.start_turn(title, request.kept(), fingerprint=here, command=COMMAND)
        with book.failing(turn):
            outcome = compare_contest(
                contest,
                settings,
                on_progress,
                lambda samples: book.record_measurements(turn, samples, purpose=COMMAND),
            )
            readings = {"readings": outcome.readings.as_json()}
            book.remember("compare_readings", turn, readings, fingerprint=here)
            details: dict[str, object] = {}
            if isinstance(contest, WorkloadContest):
                said = [contest.descriptions.get(name, {}) for name in (BASELINE, NEW)]
                details["batches"] = [
                    {"per_batch": one.get("per_batch"), "unit": one.get("unit")} for one in said
                ]
                if outcome.exit_code == 1:
                    on_progress("recording a trace of each side")
                    details["traces"] = traces_difference(*contest.sides)
            if request.instructions:
                on_progress("counting instructions")
                details["instructions"] = count_both(sides.a, sides.b)
            warnings = (*sides.warnings, *contest.notes)
            outcome = replace(outcome, details=details, warnings=warnings, turn=turn)
        book.finish_turn(turn, outcome.as_json())
    return outcome


MOST_ROWS = 10
TRACED_STEPS = LEAST_ROUNDS


def traces_difference(a: WorkloadSide, b: WorkloadSide) -> dict[str, object]:
    """Profile a few steps of each side; return the rows that changed most, in seconds a step.

    The answer stands without it, so a failure is told in `failed` and not raised.
    """
    with scratch.folder("traces") as folder:
        try:
            found = diff(*(analyse(read(_record(side, folder))) for side in (a, b)))
        except RatchetError as error:
            return {"failed": str(error)}
    rows = [
        {
            "module": row.module,
            "op": row.op,
            "baseline_s": row.before / TRACED_STEPS / 1e9,
            "new_s": row.after / TRACED_STEPS / 1e9,
            "modules": row.modules,
        }
        for row in found.groups
        if row.change > 0
    ]
    return {
        "steps": TRACED_STEPS,
        "window_change_s": found.window_change / TRACED_STEPS / 1e9,
        "slower": rows[:MOST_ROWS],
    }


def _record(side: WorkloadSide, folder: Path) -> Path:
    path = folder / f"{len(list(folder.iterdir()))}.json"
    with ArmProcess(side.spec(side.title)) as arm:
        arm.run(WARMUP)
        arm.call("profile", path=str(path), steps=TRACED_STEPS)
    return path


COUNTED_STEPS = 2
LIMIT_S = 3600.0
TOTALS = re.compile(r"^(?:summary|totals):\s*(\d+)", re.MULTILINE)


def count_both(a: object, b: object) -> dict[str, object]:
    """Count the instructions of two sides, of two commands or of a few steps of two workloads."""
    counts = [_count(_command(side)) for side in (a, b)]
    whole = isinstance(a, CommandSide)
    return {
        "baseline": counts[0],
        "new": counts[1],
        "ratio": counts[0] / counts[1] if counts[1] else None,
        "of": "the command and its children" if whole else f"{COUNTED_STEPS} steps",
    }


def _command(side: Any) -> CommandSide:
    if isinstance(side, CommandSide):
        return side
    from ratchet.train.workloads.run_steps import steps_command

    words = steps_command(side.workload, COUNTED_STEPS, side.options)
    words[0] = side.python or sys.executable
    return CommandSide(
        title=side.title, command=shlex.join(words), folder=Path.cwd(), environment=side.environment
    )


def _count(side: CommandSide) -> int:
    """Return the instructions of a command with all of its children."""
    with scratch.folder("callgrind") as folder:
        tool = [
            "valgrind", "--tool=callgrind", "--trace-children=yes", "--quiet",
            f"--callgrind-out-file={folder}/%p.out",
        ]  # fmt: skip
        counted = f"{shlex.join(tool)} /bin/sh -c {shlex.quote(side.command)}"
        run_command(replace(side, command=counted), printed=False, limit_s=LIMIT_S)
        texts = (path.read_text(errors="replace") for path in folder.glob("*.out*"))
        return sum(int(found[-1]) for text in texts if (found := TOTALS.findall(text)))


SHORT_ID = 12  # Digits of a turn's identity that are enough to name it
LONG_TITLE = 72
METRICS = (
    m.Column(
        "metric",
        lambda one: (
            one.metric.name.replace("_", " ")
            + (" (higher is better)" if one.metric.higher_is_better else "")
        ),
    ),
    m.number("A", lambda one: _figure(one, one.baseline)),
    m.number("B", lambda one: _figure(one, one.new)),
    m.number("A / B", lambda one: f"{one.ratio:.3f}"),
    m.number("interval", lambda one: f"{one.low:.3f} to {one.high:.3f}"),
    m.number("A/A floor", lambda one: f"{one.floor.low:.3f} to {one.floor.high:.3f}"),
    m.number("answer", lambda one: one.answer if one.metric.decides else f"({one.answer})"),
)
WHERE = (
    m.Column("module", lambda row: row["module"] or "-"),
    m.Column("op"),
    m.number("A", "baseline_s", show_time),
    m.number("B", "new_s", show_time),
    m.number("more", lambda row: row["new_s"] - row["baseline_s"], show_time),
)


def comparison_report(outcome: CompareOutcome) -> m.ResultReport:
    """Describe the answer, each metric, and what to do next."""
    answers, timed = outcome.answers, ""
    if answers:
        first = answers[0]
        timed = (
            f"{first.pairs} pairs in {first.launches} launches, {show_time(outcome.spent_s)}; "
            f"intervals of {first.confidence:.1%}. Above 1, B is better."
        )
    again = f"raw samples in the ledger; next: ratchet repro {(outcome.turn or '')[:SHORT_ID]}"
    return m.ResultReport(
        title="Comparison",
        heading="comparison",
        headline=headline(outcome),
        header=m.blocks(
            f"A (baseline): {_title(outcome.titles[0])}",
            f"B (new):      {_title(outcome.titles[1])}",
        ),
        sections=m.blocks(
            m.section("Metrics", m.ResultTable(METRICS, answers), timed) if answers else None,
            *notes(outcome),
            _traces(outcome.details.get("traces")),
            m.Lines([again], indent=0) if outcome.turn else None,
        ),
    )


def headline(outcome: CompareOutcome) -> str:
    """Say the answer in one line."""
    if not outcome.answers:
        return "undecided: the budget has no room for six pairs"
    deciding = [one for one in outcome.answers if one.metric.decides]
    worst = min(deciding, key=lambda one: one.ratio)
    answer = {1: "slower", 3: "undecided"}.get(outcome.exit_code, worst.answer)
    what = "" if worst.metric.name == "time" else f" in {worst.metric.name}"
    if answer == "undecided":
        limit = f" by more than {100 * outcome.allowed:.3g}%" if outcome.allowed else ""
        text = f"undecided{what}: B may or may not be slower{limit}"
        cause = f": {worst.why}" if worst.why else ""
        return f"{text} (between {worst.low:.3f} and {worst.high:.3f} times A's speed){cause}"
    if answer == "equivalent":
        return f"equivalent{what}: B differs from A by less than the noise or the budget"
    percent = abs(1 / worst.ratio - 1)
    return f"{answer}{what}: B is {percent:.1%} {'worse' if worst.ratio < 1 else 'better'} than A"


def notes(outcome: CompareOutcome) -> list[str]:
    """Return lines on the budget, the batches, and instructions."""
    found = []
    more = [one.more_pairs for one in outcome.answers if one.metric.decides and one.more_pairs]
    if outcome.needed_s is not None and outcome.exit_code == 3:
        pairs = f"about {max(more):,} more pairs" if more else "a longer run"
        budget = _duration(outcome.needed_s)
        found.append(f"To decide it takes {pairs}: --budget {budget}")
    elif outcome.exit_code == 3:
        found.append(
            "The difference is too small to be decided here. To accept small ones, give a "
            "regression budget: --fail-if-slower 2%"
        )
    batches = outcome.details.get("batches") or []
    sizes = [f"{one['per_batch']:,} {one['unit']}" for one in batches if one.get("per_batch")]
    if len(set(sizes)) == 2:
        found.append(f"A step is not the same work: A has {sizes[0]} in a batch, B {sizes[1]}.")
    counts = outcome.details.get("instructions")
    if counts:
        found.append(
            f"instructions of {counts['of']} (no time): A {counts['baseline']:,}, "
            f"B {counts['new']:,}, A / B {counts['ratio']:.4f}"
        )
    return found


def _traces(traces: Mapping[str, Json] | None) -> m.ReportSection | str:
    if traces is None:
        return ""
    if "failed" in traces:
        return f"No trace shows where: {traces['failed']}"
    title = f"Where: {show_time(abs(traces['window_change_s']))} a step in the traces"
    return m.section(title, m.ResultTable(WHERE, traces["slower"]))


def _figure(one: MetricAnswer, value: float) -> str:
    show = {"s": show_time, "bytes": show_bytes}.get(one.metric.unit, show_rate)
    return show(value)


def _duration(seconds: float) -> str:
    if seconds < 600:
        return f"{max(30, round(seconds)):d}s"
    return f"{seconds / 60:.0f}m" if seconds < 7200 else f"{seconds / 3600:.1f}h"


def _title(title: str) -> str:
    return title if len(title) <= LONG_TITLE else f"{title[:LONG_TITLE]}..."
