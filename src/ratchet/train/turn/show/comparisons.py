"""The comparisons of a turn in words: how fast the step is, how sure that is, what is left."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ratchet.base.show.words import ABSENT, show_interval, show_ratio, show_share, show_time
from ratchet.train.turn.optimize_result import (
    Change,
    CompileCost,
    LargerBatch,
    OptimizeResult,
    Shortfall,
    StepLimit,
    StepSpeedup,
)

AGAINST = {
    "vs_written": "the step as written",
    "vs_compile": "torch.compile's best",
    "vs_compile_same_arithmetic": "torch.compile's best in the same arithmetic",
}
COMPARED = {
    "vs_written": ("as_written", "ratchet"),
    "vs_compile": ("best_compile", "ratchet"),
    "vs_compile_same_arithmetic": ("best_compile_same", "same_arithmetic"),
}
"""The two arms behind each comparison."""
DECIDED = ("faster", "slower")
DRIFT, DRIFT_TO_RATIO = 1.2, 2.0
"""A step's interval at least this wide, and this many times the ratio's, is reported as drift."""


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


def compared(result: OptimizeResult) -> dict[str, StepSpeedup]:
    """Return the comparisons that were made, the one with torch.compile first."""
    order = ("vs_compile", "vs_written", "vs_compile_same_arithmetic")
    found = ((key, result.speedup.get(key)) for key in order)
    return {key: one for key, one in found if one is not None}


def rival_words(result: OptimizeResult) -> str:
    """Name the rival, and the modes of torch.compile that were not timed."""
    missing = [one.title for one in result.rivals if one.step_time_s is None]
    said = f"torch.compile's best here: {result.best_compile}."
    return f"{said} Not timed: {'; '.join(missing)}." if missing else said


def answer_of(speedup: StepSpeedup, floor: Mapping[str, float] | None) -> str:
    """Return the comparison's answer: `same` for one step, `undecided` inside the floor."""
    if speedup.ratio == speedup.low == speedup.high == 1.0:
        return "same"
    decided = is_decided(speedup.ratio, speedup.low, speedup.high, floor)
    return speedup.answer if decided or speedup.answer not in DECIDED else "undecided"


def is_decided(
    ratio: float | None, low: float | None, high: float | None, floor: Mapping[str, float] | None
) -> bool:
    """Return True if the interval excludes 1 and the ratio is outside the A/A floor."""
    if ratio is None or low is None or high is None or low <= 1.0 <= high:
        return False
    if floor is None:
        return True
    return not floor.get("low", 1.0) <= ratio <= floor.get("high", 1.0)


def _clause(speedup: StepSpeedup, answer: str, against: str) -> str:
    ratio = show_ratio(speedup.ratio)
    return {
        "faster": f"{ratio} as fast as {against}",
        "slower": f"slower than {against}, at {ratio} its speed",
        "equivalent": f"as fast as {against}, within noise",
    }.get(answer, f"with no clear difference from {against}")


def drift_words(result: OptimizeResult) -> str | None:
    """Describe drift if a step's own time varies far more than the measured ratios, else None."""
    answers = answers_of(result)
    widths = {
        key: _width(one.low, one.high)
        for key, one in compared(result).items()
        if answers[key] != "same"
    }
    arms = {arm.key: arm for arm in result.arms}
    drifted: dict[float, str] = {}
    for key, width in widths.items():
        for arm in (arms[name] for name in COMPARED[key] if name in arms):
            spread = _width(arm.low_s, arm.high_s)
            if spread > max(math.log(DRIFT), DRIFT_TO_RATIO * width):
                times = f"{show_time(arm.low_s)} and {show_time(arm.high_s)}"
                drifted[spread] = f"the median step {arm.title} lies between {times}"
    if not drifted:
        return None
    return (
        f"The machine drifted during the run: {drifted[max(drifted)]}. The steps of a pair ran one "
        "right after the other, so drift cancels in the ratios. Rely on the ratios, not the times."
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
