"""A turn's comparisons, breakdown, figures and progress, in words and tables."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from rich.console import Console

from ratchet.base import Json
from ratchet.base.measure import Ratio
from ratchet.base.measure.estimate import DISTURBED, launch_medians
from ratchet.base.show import model as m
from ratchet.base.show.figures import (
    Mark,
    Plot,
    PlotCurve,
    TrackRow,
    around,
    between,
    from_zero,
    line_plot,
    stacked_bar,
    whisker,
)
from ratchet.base.show.terminal import BudgetLine
from ratchet.base.show.words import (
    ABSENT,
    TimeUnit,
    common_unit,
    show_interval,
    show_ratio,
    show_share,
    show_time,
)
from ratchet.train.turn.optimize_result import (
    COMPARED,
    ArmResult,
    Change,
    CompileCost,
    FindingResult,
    LargerBatch,
    LossResult,
    OptimizeResult,
    Shortfall,
    StepLimit,
    StepProfile,
)

AGAINST = {
    "vs_written": "the step as written",
    "vs_compile": "torch.compile's best",
    "vs_compile_same_arithmetic": "torch.compile's best in the same arithmetic",
}
DECIDED = ("faster", "slower")
HUES = 13  # Colours of the page for the parts of a bar
DRIFT_TO_RATIO = 2.0
"""Launches this many times as far apart as the ratio's ends are reported as drift."""


def headline(result: OptimizeResult) -> str:
    """Return the turn's answer, with figures only if they are decided, and what it lacked."""
    budget = result.budget
    missing = budget.shortfall if budget is not None else None
    if budget is None or missing is None:
        return _answer(result)
    return f"{_answer(result)} {shortfall_words(missing, budget.budget_s)}"


def shortfall_words(missing: Shortfall, budget_s: float) -> str:
    """Name the stages that did not run, and the budget that would do."""
    *most, last = missing.stages
    stages = f"{', '.join(most)} and {last}" if most else last
    enough = f"--budget {missing.enough_s / 60:.0f}m"
    remedy = f"give at least {enough}" if missing.is_least else f"about {enough} would do"
    return f"The budget of {show_time(budget_s)} was too short for {stages}: {remedy}."


def _answer(result: OptimizeResult) -> str:
    workload, answers = result.workload, answers_of(result)
    if answers.get("vs_written") == "same":
        return (
            f"Nothing was proven faster than a step of {workload} as written, so it stays as it is."
        )
    clauses = {
        key: _clause(speedup, answers[key], AGAINST[key])
        for key, speedup in compared(result).items()
        if key in ("vs_compile", "vs_written")
    }
    if not clauses:
        return f"{workload} was timed but not compared with anything."
    if answers.get("vs_compile") == "same":
        also = f" It runs {clauses['vs_written']}." if "vs_written" in clauses else ""
        best = AGAINST["vs_compile"]
        return f"Nothing was proven faster for {workload} than {best}, so that is the recipe.{also}"
    return f"With Ratchet, a step of {workload} runs {' and '.join(clauses.values())}."


def answers_of(result: OptimizeResult) -> dict[str, str]:
    """Return the answers of the comparisons that were made, the one with torch.compile first."""
    return {key: answer_of(one, result.floor) for key, one in compared(result).items()}


def compared(result: OptimizeResult) -> dict[str, Ratio]:
    """Return the comparisons that were made, the one with torch.compile first."""
    order = ("vs_compile", "vs_written", "vs_compile_same_arithmetic")
    found = ((key, result.speedup.get(key)) for key in order)
    return {key: one for key, one in found if one is not None}


def rival_words(result: OptimizeResult) -> str:
    """Name the rival, and the modes of torch.compile that were not timed."""
    missing = [one.title for one in result.rivals if one.step_time_s is None]
    said = f"torch.compile's best here: {result.best_compile}."
    return f"{said} Not timed: {'; '.join(missing)}." if missing else said


def answer_of(speedup: Ratio, floor: Mapping[str, float] | None) -> str:
    """Return the comparison's answer: `same` for one step, `undecided` inside the floor.

    `looks faster` and `looks slower` are told by the interval, and not proven.
    """
    if speedup.ratio == speedup.low == speedup.high == 1.0:
        return "same"
    decided = is_decided(speedup.ratio, speedup.low, speedup.high, floor)
    answer = speedup.answer or "undecided"
    if decided and answer == "undecided":  # the interval says it, of too few launches
        return "looks faster" if speedup.ratio > 1.0 else "looks slower"
    return answer if decided or answer not in DECIDED else "undecided"


def is_decided(
    ratio: float | None, low: float | None, high: float | None, floor: Mapping[str, float] | None
) -> bool:
    """Return True if the interval excludes 1 and the ratio is outside the A/A floor."""
    if ratio is None or low is None or high is None or low <= 1.0 <= high:
        return False
    if floor is None:
        return True
    return not floor.get("low", 1.0) <= ratio <= floor.get("high", 1.0)


def _clause(speedup: Ratio, answer: str, against: str) -> str:
    ratio = show_ratio(speedup.ratio)
    return {
        "faster": f"{ratio} as fast as {against}",
        "slower": f"slower than {against}, at {ratio} its speed",
        "equivalent": f"as fast as {against}, within noise",
        "looks faster": f"about {ratio} as fast as {against}, which is not proven",
        "looks slower": f"slower than {against}, at about {ratio} its speed, which is not proven",
    }.get(answer, f"with no clear difference from {against}")


def drift_words(result: OptimizeResult) -> str | None:
    """Describe drift if a step's time varies far more between launches than the measured ratios."""
    answers = answers_of(result)
    drifted: dict[float, str] = {}
    for key, one in compared(result).items():
        if answers[key] == "same":
            continue
        width = _width(one.low, one.high)
        for arm in (arm for arm in result.arms if arm.key in COMPARED[key]):
            medians = launch_medians(sample for sample in result.samples if sample.arm == arm.key)
            least, most = min(medians.values(), default=1.0), max(medians.values(), default=1.0)
            spread = _width(least, most)
            if spread > max(math.log(DISTURBED), DRIFT_TO_RATIO * width):
                times = f"{show_time(least)} and {show_time(most)}"
                drifted[spread] = f"the median step {arm.title} lies between {times}, by launch"
    if not drifted:
        return None
    return (
        f"The machine drifted during the run: {drifted[max(drifted)]}. The steps of a pair ran one "
        "right after the other, so drift cancels in the ratios, which count every launch. The "
        "times are of the launches near the fastest."
    )


def _width(low: float, high: float) -> float:
    """Return the logarithmic width of an interval of positive numbers."""
    return math.log(high / low) if 0 < low <= high and math.isfinite(high) else 0.0


def larger_batch_words(found: LargerBatch) -> str:
    """Describe a larger batch that uses the device better."""
    return (
        f"The GPU idles {show_share(found.idle_share)} of this step; a batch of "
        f"{found.batch_size:,} gives about {found.rate / found.rate_now:.1f}x the {found.unit} a "
        f"second of {found.batch_size_now:,}. It was not applied, because it changes what the "
        "model learns from a step: try it with --batch-size."
    )


def with_more_time_words(result: OptimizeResult) -> str | None:
    """Say what a turn that proved nothing would try with more time; None if it proved something."""
    if result.recipe_is == "proven" or result.budget is None:
        return None
    missed = [one.what for one in result.budget.omissions if one.for_want_of_budget]
    return f"With more time it would try: {'; '.join(missed)}." if missed else None


def limit_words(limit: StepLimit) -> str:
    """Describe how far a step is from the machine's limit, and where the rest is."""
    most, left_s = limit.most, limit.step_time_s - limit.least_s
    if most is None:
        return f"The limit of {limit.title} on this machine is unknown."
    said = (
        f"{limit.title} runs at {show_share(limit.share)} of what this machine "
        f"can do in this arithmetic; at most {most:.1f}x is left"
    )
    parts = [
        f"{show_share(one.winnable_s / left_s)} of it in {one.category}"
        for one in limit.categories[:3]
        if left_s > 0 and one.winnable_s >= 0.05 * left_s
    ]
    unknown_s = sum(one.unknown_s for one in limit.categories)
    note = (
        f" Operators without a known bound take {show_share(unknown_s / limit.step_time_s)} "
        "of the step and count as winnable."
        if unknown_s > 0
        else ""
    )
    return f"{', '.join([said, *parts])}.{note}"


def change_gave(change: Change) -> str:
    """Format a change's effect with its interval; a dash if it was not timed."""
    if change.ratio is None:
        return {"bundle": "with the bundle", "rival": "in the rival too"}.get(
            change.basis or "", ABSENT
        )
    return f"{show_ratio(change.ratio)} ({show_interval(change.low, change.high)})"


def compile_words(cost: CompileCost) -> str:
    """Describe the cost of the longer start and the steps that recover it."""
    if cost.extra_setup_s <= 0:
        return "Ratchet starts no later than the step as written."
    extra = f"Ratchet starts {show_time(cost.extra_setup_s)} later than the step as written"
    steps = cost.pays_after_steps
    if steps is None:
        return f"{extra} and never recovers that, because its steps are no faster."
    return f"{extra} and recovers that after {steps:,} step{'' if steps == 1 else 's'}."


def floor_words(floor: Mapping[str, float] | None) -> str:
    """Describe how much two runs of the same thing differ here."""
    if floor is None or "low" not in floor or "high" not in floor:
        return "No A/A floor was measured."
    interval = show_interval(floor["low"], floor["high"])
    return (
        f"The ratio between two copies of the same step was {interval} here (the A/A floor). A "
        "ratio within that range shows no difference."
    )


CATEGORIES = (
    *("matmul", "convolution", "attention", "loss", "norm", "elementwise", "embedding", "pooling"),
    *("optimizer", "memory", "view", "compiled", "overhead", "other"),
)
"""Order of the segments in a stacked bar; any other category counts as `other`."""


def stacks(result: OptimizeResult) -> tuple[TrackRow, ...]:
    """Return the step before and after, by category, as far as they were profiled."""
    found = {"As written": result.profile_before, "Ratchet": result.profile_after}
    profiles = {title: profile for title, profile in found.items() if profile is not None}
    scale = from_zero([profile.total_s for profile in profiles.values()])
    return tuple(
        stacked_bar(
            title,
            show_time(profile.total_s),
            (
                (category, category, time_s, show_time(time_s), _share(time_s, profile.total_s))
                for category, time_s in by_category(profile).items()
            ),
            scale,
        )
        for title, profile in profiles.items()
    )


def _share(time_s: float, total_s: float) -> str:
    return show_share(time_s / total_s) if total_s else ABSENT


def identity_words(profile: StepProfile) -> str:
    """Describe the nonzero parts of one step's window; they sum to the window."""
    identity = profile.identity
    window_s = identity.window_s
    parts = {
        "compute": identity.compute_s,
        "exposed communication": identity.exposed_communication_s,
        "exposed copies": identity.exposed_copy_s,
        "idle": identity.idle_s,
    }
    shown = [
        f"{name} {show_time(time_s)} ({show_share(time_s / window_s)})"
        for name, time_s in parts.items()
        if time_s and window_s
    ]
    return f"{show_time(window_s)} a profiled step: {', '.join(shown) or 'nothing in it'}"


def finding_words(finding: FindingResult) -> str:
    """Describe one finding of the trace: the evidence, the possible gain, and the remedy."""
    gain = f"at most {show_time(finding.gain_s)} of the profiled step"
    return f"{finding.evidence}; {gain}. {finding.remedy}"


def category_table(result: OptimizeResult) -> m.ResultTable:
    """Return both profiles' time by category and the difference; a dash for a missing profile."""
    profiles = (result.profile_before, result.profile_after)
    before, after = (by_category(profile) if profile else None for profile in profiles)
    taken = [times for times in (before, after) if times is not None]
    used = [name for name in CATEGORIES if any(name in times for times in taken)]
    unit = common_unit([time_s for times in taken for time_s in times.values()])

    def saved(category: str) -> float | None:
        if before is None or after is None:
            return None
        return before.get(category, 0.0) - after.get(category, 0.0)

    def show_saved(saved_s: float) -> str:
        return unit.show(saved_s) if saved_s >= 0 else f"-{unit.show(-saved_s)}"

    columns = (
        m.Column(f"{unit.name} a step", str, category_cell),
        m.number("as written", lambda one: before and before.get(one, 0.0), unit.show),
        m.number("Ratchet", lambda one: after and after.get(one, 0.0), unit.show),
        m.number("saved", saved, show_saved),
    )
    return m.ResultTable(columns, used, look="compact", label="Time by category")


def category_cell(category: str) -> m.Inline:
    return m.Span("", f"key {category}"), category


def op_table(profile: StepProfile, unit: TimeUnit) -> m.ResultTable:
    columns = (
        m.name("operator", "name", lambda op: m.Span(op, "code")),
        m.Column("category"),
        m.number(f"a step, {unit.name}", "time_s", unit.show),
        m.number("share", "share", show_share),
        m.number("calls", "calls", lambda calls: f"{calls:,}"),
        m.Column("bound by", "bound", lambda bound: bound or ABSENT),
    )
    return m.ResultTable(columns, profile.ops)


def op_times(result: OptimizeResult) -> list[float]:
    """Return the times of a step's operators in both profiles, in seconds."""
    profiles = (result.profile_before, result.profile_after)
    return [op.time_s for profile in profiles if profile for op in profile.ops]


def by_category(profile: StepProfile) -> dict[str, float]:
    """Return seconds by category in the fixed order, without empty categories."""
    times = dict.fromkeys(CATEGORIES, 0.0)
    for op in profile.ops:
        times[op.category if op.category in times else "other"] += op.time_s
    return {category: time_s for category, time_s in times.items() if time_s > 0}


_MOST_OF_THE_SLOWEST = 3  # End of the axis of step times at most, as a multiple of the slowest step


def arm_bars(arms: Sequence[ArmResult]) -> list[TrackRow]:
    """Return step times as bars from zero, with their intervals.

    Two launches that disagree have an interval of hours: it leaves the track, and the bars stay.
    """
    most_s = _MOST_OF_THE_SLOWEST * max((arm.step_time_s for arm in arms), default=0.0)
    ends = [value for arm in arms for value in (arm.step_time_s, arm.high_s or 0.0)]
    scale = from_zero([min(value, most_s) for value in ends])
    unit = common_unit([arm.step_time_s for arm in arms])
    return [
        TrackRow(
            title=arm.title,
            value=f"{unit.show(arm.step_time_s)} {unit.name}",
            marks=(
                Mark(left=0.0, width=scale.percent(arm.step_time_s)),
                *([whisker(scale, arm.low_s, arm.high_s)] if arm.low_s and arm.high_s else []),
            ),
            look=arm.key,
        )
        for arm in arms
    ]


def turn_bar(took_s: Mapping[str, float]) -> tuple[TrackRow, ...]:
    """Return where a turn's own time went, as one bar."""
    total_s = sum(took_s.values())
    parts = [
        (f"hue{place % HUES}", what, time_s, show_time(time_s), _share(time_s, total_s))
        for place, (what, time_s) in enumerate(took_s.items())
    ]
    return (stacked_bar("The turn", show_time(total_s), parts, from_zero([total_s])),)


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


class TurnProgress(BudgetLine):
    """Reports what a turn is doing and how much of its budget is spent.

    It is a turn's listener: call it with an event's name and details. On a terminal, the results of
    screenings and verdicts stay above one moving line. In a pipe or a file, every stage is one
    plain line with the seconds since the start. The first line is held until the second, so that an
    immediate failure prints only its own line.
    """

    def __init__(self, budget_s: float, *, console: Console | None = None) -> None:
        super().__init__(budget_s, console=console)
        self._launch = 0
        self._rounds = 0
        self._said = ""
        self._held: str | None = ""

    def __call__(self, event: str, details: dict[str, Json]) -> None:
        """Show one event; an event without words of its own shows its name."""
        if event == "proof":
            self._launch, self._rounds = int(details["launch"]), int(details["rounds"])
        if self._bar is None:
            if event != "trial":
                self._say(_done(event, details) or self._doing(event, details))
            return
        self.spend(self._doing(event, details))
        done = _done(event, details)
        if done:
            self._bar.console.print(done)

    def _say(self, words: str) -> None:
        if words != self._said:
            self._said = words
            line = f"[{time.monotonic() - self._began_s:5.0f} s] {words}\n"
            if self._held == "":
                self._held = line
                return
            print((self._held or "") + line, file=self._console.file, end="", flush=True)
            self._held = None

    def _doing(self, event: str, details: dict[str, Json]) -> str:
        title = str(details.get("title", ""))
        if event == "trial":
            return self._trial(details)
        return {
            "start": f"starting {title}",
            "looking": f"looking for {title}",
            "profile": f"profiling {title}",
            "screened": f"screened {title}",
            "judging": f"judging kernel {details.get('kernel', '')}",
            "predicting": f"predicting the time of {details.get('kernel', '')}",
            "judged": f"judged kernel {details.get('kernel', '')}",
            "writing": f"writing a kernel for {details.get('problem', '')}",
            "written": f"wrote a kernel for {details.get('problem', '')}",
            "losses": f"200 steps of {title}, seed {details.get('seed', '')}",
            "proof": f"final run, launch {self._launch + 1}",
        }.get(event, event)

    def _trial(self, details: dict[str, Json]) -> str:
        launch = f"final run, launch {self._launch + 1}"
        if details.get("kind") == "round":
            return f"{launch}, round {int(details.get('round', 0)) + 1} of {self._rounds}"
        return f"{launch}, {details.get('kind', '')} {details.get('arm', '')}"


def _done(event: str, details: dict[str, Json]) -> str:
    """Return the line that stays, for a verdict or a screening; empty for other events."""
    if event == "warning":
        return f"warning: {details['text']}"
    if event == "judged":
        return f"kernel {details['kernel']}: {details['status']}"
    if event == "proven":
        return f"proven: {details['title']}, {show_ratio(float(details['ratio']))}"
    if event == "written":
        return f"region {details['problem']}: {details['status']}"
    if event == "screened" and details.get("ratio"):
        ratio = show_ratio(float(details["ratio"]))
        clear = details.get("answer", "faster") in DECIDED
        return f"{details['title']}: {ratio if clear else f'{ratio} so far, undecided'}"
    return ""
