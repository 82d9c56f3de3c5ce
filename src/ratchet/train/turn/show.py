"""A turn that was run, or would be: what it gained, what was kept, what to paste."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Final

from ratchet.base.serialise import document_of
from ratchet.base.show import figures
from ratchet.base.show import model as m
from ratchet.base.show.model import where_measured
from ratchet.base.show.page import render_page as render
from ratchet.base.show.words import (
    ABSENT,
    TimeUnit,
    common_unit,
    device_words,
    plain,
    show_bytes,
    show_interval,
    show_moment,
    show_rate,
    show_ratio,
    show_share,
    show_time,
)
from ratchet.judge.court.show import EVIDENCE, show_speedup, status_cell
from ratchet.train.turn import comparisons
from ratchet.train.turn.comparisons import (
    DECIDED,
    answers_of,
    arm_bars,
    change_gave,
    compared,
    compile_words,
    drift_words,
    floor_words,
    forest,
    headline,
    is_decided,
    larger_batch_words,
    limit_words,
    losses_plot,
    rival_words,
    turn_bar,
    with_more_time_words,
)
from ratchet.train.turn.optimize_result import (
    ArmKey,
    ArmResult,
    OptimizeResult,
    StepLimit,
    StepProfile,
)

if TYPE_CHECKING:
    from ratchet.train.graph.scope import CapturedSite
    from ratchet.train.turn.dry_run import DryRun
    from ratchet.train.turn.loop import Outcome
    from ratchet.train.turn.predicted_step import PredictedStep, TargetKernel


_DECISIONS = {
    "kept": "Kept",
    "dropped": "Dropped",
    "refused": "Refused",
    "not_applicable": "Does not apply",
    "not_tried": "Not tried",
}
_TILE_WORDS = {
    "same": "the same step",
    "equivalent": "no difference beyond noise",
    "undecided": "no clear difference",
    "looks faster": "looks faster, not proven",
    "looks slower": "looks slower, not proven",
}
_TILE_TITLES = {
    "vs_compile": "against torch.compile's best",
    "vs_written": "against the step as written",
    "vs_compile_same_arithmetic": (
        "arithmetic kept, against torch.compile's best in the same arithmetic"
    ),
}
NOTHING_TO_PASTE = "There is nothing to paste: the step stays as it is written."
RIVAL_ALONE = (
    "The recipe holds nothing but torch's own settings ({}). If your script sets them already, "
    "there is nothing to paste."
)
RIVALS = (
    m.name("mode", "title"),
    m.Column("precision"),
    m.number("step", "step_time_s", show_time),
    m.number("start", "setup_time_s", show_time),
    m.Column("note", "reason"),
)
LIMITS = (
    m.Column("category", "category", comparisons.category_cell),
    m.number("now", "time_s", show_time),
    m.number("at the least", "least_s", show_time),
    m.number("no known bound", "unknown_s", show_time),
    m.number("left", "winnable_s", show_time),
)
VERDICTS = (
    m.name("kernel"),
    m.name("problem"),
    m.Column("verdict", "status", status_cell),
    m.number(
        "against its reference",
        lambda one: one.speedup.vs_reference or one.speedup.vs_compile,
        show_speedup,
        on="page",
    ),
    m.why("why", "reason"),
    m.Column("isolation", on="page"),
)


def render_page(result: OptimizeResult) -> str:
    return render(optimize_report(result))


def outcome_report(outcome: Outcome) -> m.ResultReport:
    """Describe a turn's outcome, for a notebook."""
    return optimize_report(outcome.result)


def optimize_report(result: OptimizeResult) -> m.ResultReport:
    resumed = ", with measurements from the ledger" if result.resumed else ""
    use = _use(result)
    software = [("workload from", result.source)]
    profiles = [one for one in (result.profile_before, result.profile_after) if one]
    paths = [*document_of(result.paths).values(), *(one.trace for one in profiles)]
    return m.ResultReport(
        title=result.workload,
        heading=result.workload,
        headline=headline(result),
        header=m.blocks(
            m.Words(
                f"{device_words(result.device)} · {show_moment(result.started_at)} · the turn took "
                f"{show_time(result.duration_s)}{resumed}",
                "soft",
            ),
            result.recipe_because,
            limit_words(result.limit) if result.limit else None,
            larger_batch_words(result.larger_batch) if result.larger_batch else None,
            with_more_time_words(result),
            *(m.Words(warning, "warning") for warning in result.warnings),
            m.Tiles(tiles(result)),
        ),
        sections=m.blocks(
            _step(result),
            replace(use, on="page"),
            _time(result),
            _changes(result),
            _samples(result),
            _checks(result),
            _verdicts(result),
            _rivals(result),
            _turn(result),
            replace(use, on="terminal"),
            where_measured(result.device, result.versions, result.command, after=software),
            m.written(paths),
        ),
    )


def tiles(result: OptimizeResult) -> list[m.Tile]:
    """Return the comparisons that were made; only a decided one shows its ratio in large print."""
    found = []
    for (key, speedup), answer in zip(
        compared(result).items(), answers_of(result).values(), strict=True
    ):
        decided = answer in DECIDED
        ratio = show_ratio(speedup.ratio)
        interval = f"95 % interval {show_interval(speedup.low, speedup.high)}"
        said = f"{answer}; {interval}" if decided else f"{ratio}, {interval}"
        large, look = (ratio, "") if decided else (_TILE_WORDS[answer], "undecided")
        if answer == "same":
            said = "nothing faster was proven"
        found.append(m.Tile(large, _TILE_TITLES[key], said, look))
    return found


def _step(result: OptimizeResult) -> m.ReportSection:
    label = "Step time of each way of running the step; the table has the numbers"
    stays = result.recipe_is == "as_written"
    return m.section(
        "The step",
        m.note(
            "Medians of adjacent pairs over several process launches; the whisker is the 95 % "
            "interval."
        ),
        m.Figure("tracks", arm_bars(_apart(result)), label),
        main_table(result),
        rival_words(result),
        floor_words(result.floor),
        drift_words(result),
        None if stays else compile_words(result.compile),
        m.note(
            "MFU is relative to the matrix rate measured on this device. A start time is that of "
            "the first start on this machine, including compilation. torch.compile's modes started "
            "two at a time, so their start times are upper bounds."
        ),
    )


def main_table(result: OptimizeResult) -> m.ResultTable:
    """Return every way of running the step: time with its interval, rate, MFU, memory."""
    unit = common_unit([arm.step_time_s for arm in result.arms])
    columns = (
        m.Column("how it runs", lambda arm: (m.Span("", f"key {arm.key}"), arm.title)),
        m.number(f"step, {unit.name}", "step_time_s", unit.show),
        m.number("95 %", lambda arm: _ends(arm, unit)),
        m.number(f"{result.unit}/s", "tokens_per_s", show_rate),
        m.number("MFU", "mfu", show_share),
        m.number("peak memory", "peak_memory_bytes", show_bytes),
        m.number("start", "setup_time_s", show_time, on="page"),
    )
    return m.ResultTable(
        columns, _apart(result), marked=lambda arm: "ours" if arm.key == "ratchet" else ""
    )


def _apart(result: OptimizeResult) -> list[ArmResult]:
    """Return the ways of running the step, once each: the arithmetic is often the written one."""
    configs = {arm.key: arm.config for arm in result.arms}
    whole: dict[ArmKey, ArmKey] = {
        "best_compile_same": "best_compile",
        "same_arithmetic": "ratchet",
    }
    return [
        arm
        for arm in result.arms
        if arm.key not in whole or configs.get(whole[arm.key]) != arm.config
    ]


def _ends(arm: ArmResult, unit: TimeUnit) -> str:
    if arm.low_s is None or arm.high_s is None:
        return ABSENT
    return f"{unit.show(arm.low_s)} - {unit.show(arm.high_s)}"


def _turn(result: OptimizeResult) -> m.ReportSection | None:
    took_s = result.budget.took_s if result.budget else {}
    if not took_s:
        return None
    return m.section(
        "Where this turn's time went",
        m.note("Arms that start or compile beside something else are not counted twice."),
        m.Figure("tracks", turn_bar(took_s), "Seconds of the turn by what it did", "stack"),
        on="page",
    )


def _use(result: OptimizeResult) -> m.ReportSection:
    paths: list[tuple[str, m.Inline]] = [
        ("recipe", m.Span(result.paths.recipe, "code")),
        ("all numbers", m.Span(result.paths.result, "code")),
    ]
    apply, undo = result.paste.apply, result.paste.undo
    return m.section(
        "Use it",
        m.Words(RIVAL_ALONE.format(result.best_compile)) if result.recipe_is == "rival" else None,
        m.section("Paste into your script", m.Lines(apply)) if apply else None,
        m.section("To undo", m.Lines(undo)) if undo else None,
        None if apply else m.Words(NOTHING_TO_PASTE),
        m.Facts(paths, on="page"),
    )


def _time(result: OptimizeResult) -> m.ReportSection | None:
    profiles = {"As written": result.profile_before, "Ratchet": result.profile_after}
    taken = {title: profile for title, profile in profiles.items() if profile}
    if not taken:
        return None
    label = "Time of one step by category; the tables below have the numbers"
    unit = common_unit(comparisons.op_times(result))
    return m.section(
        "Where the time goes",
        m.note(
            "One profiled step of each, by category, on the same scale. Profiling itself costs "
            "time, so a total can exceed the step's time."
        ),
        m.Figure("tracks", comparisons.stacks(result), label, "stack"),
        replace(comparisons.category_table(result), on="page"),
        _limit(result.limit) if result.limit else None,
        *(one for title, taken_one in taken.items() for one in _profile(title, taken_one)),
        *(
            m.section(
                f"{title}: {show_time(one.total_s)} by operator",
                comparisons.op_table(one, unit),
                closed=True,
                on="page",
            )
            for title, one in taken.items()
        ),
        m.Words("for more, run ratchet trace report or diff on the traces below", on="terminal"),
    )


def _profile(title: str, profile: StepProfile) -> list[m.ReportBlock]:
    found = [f"{one.name}: {comparisons.finding_words(one)}" for one in profile.findings]
    trace = m.Words(("The trace: ", m.Span(profile.trace, "code")), on="page")
    said = f"{title}: {comparisons.identity_words(profile)}."
    return [m.Words(said), trace, *map(m.Words, found)]


def _limit(limit: StepLimit) -> m.ReportSection:
    said = m.note(
        "The least time is the roofline of each operator at the rates measured on this machine. "
        "Time without a known bound counts as left."
    )
    table = m.ResultTable(LIMITS, limit.categories, look="compact")
    return m.section(f"What is left: {limit.title}", said, table, on="page")


def _changes(result: OptimizeResult) -> m.ReportSection:
    drawn = forest(result.changes, result.floor)
    label = "What each change gave, with its interval; the tables have the numbers"
    settings = m.grid(("setting", "as written", "Ratchet"), changed_settings(result), left=3)
    omissions = result.budget.omissions if result.budget else []
    left_out = [(one.what, one.reason) for one in omissions]
    return m.section(
        "Effect of each change",
        m.note("Each was timed against the same step without it."),
        None if result.changes else "No change was tried.",
        m.note("Filled dots were kept, hollow ones dropped; the grey band is the A/A floor.")
        if drawn
        else None,
        m.Figure("tracks", drawn, label, "forest") if drawn else None,
        *(_decided(result, decision, title) for decision, title in _DECISIONS.items()),
        m.section("Left out", m.grid(("what", "why"), left_out)) if left_out else None,
        m.section("What the recipe sets", settings, on="page") if settings.rows else None,
    )


def _decided(result: OptimizeResult, decision: str, title: str) -> m.ReportSection | None:
    """Return the changes of one decision, with their effect if one was timed."""
    own = [change for change in result.changes if change.decision == decision]
    if not own:
        nothing = decision == "kept" and result.changes
        return m.section(title, "Nothing: no change was proven to help.") if nothing else None
    columns = [
        m.name(
            "change",
            lambda one: (
                (one.name, m.Span(" changes the arithmetic", "note"))
                if one.changes_arithmetic
                else one.name
            ),
        ),
        m.number(
            "effect",
            lambda one: m.Span(
                change_gave(one),
                "" if is_decided(one.ratio, one.low, one.high, result.floor) else "soft",
            ),
        ),
        m.why("why", "reason"),
        m.why(
            "expected effect, and source",
            lambda one: "; ".join(filter(None, (one.expected, one.source))),
            on="page",
        ),
    ]
    if decision != "kept" and all(change.ratio is None for change in own):
        del columns[1]
    return m.section(title, m.ResultTable(columns, own, look="changes"))


def changed_settings(result: OptimizeResult) -> list[tuple[str, str, str]]:
    """Return each config field that Ratchet changed: its name, the written and the new value."""
    configs = {arm.key: document_of(arm.config) for arm in result.arms}
    before, after = configs.get("as_written", {}), configs.get("ratchet", {})
    return [
        (field, plain(before.get(field)), plain(value))
        for field, value in after.items()
        if before.get(field) != value
    ]


def _samples(result: OptimizeResult) -> m.ReportSection | None:
    styles: dict[str, tuple[str, str]] = {arm.key: (arm.key, arm.title) for arm in result.arms}
    styles["twin"] = ("twin", "a twin of torch.compile's best (A/A)")
    plot = figures.dots_plot(result.samples, styles, what="step")
    if plot is None:
        return None
    said = m.note(
        "Every timed step of the final run: in each round every way of running the step ran once, "
        "in random order. The scale is logarithmic."
    )
    label = "Every timed step over the rounds; the legend has the medians"
    return m.section("Raw samples", said, m.Figure("plot", plot, label, "dots"), on="page")


def _checks(result: OptimizeResult) -> m.ReportSection:
    gradients, losses = result.gradients, result.losses
    said: list[m.Inline] = ["The gradients were not checked."]
    if gradients and gradients.passed and result.recipe_is == "as_written":
        said = ["Nothing was kept, so there were no other gradients to check."]
    elif gradients:
        worst = (
            f" The worst is {gradients.worst_parameter}, at {gradients.worst_ratio:.2f} times the "
            "error of the baseline's precision."
            if gradients.worst_parameter
            else ""
        )
        said = [(*_passed("Gradients", gradients.passed), f": {gradients.detail}.{worst}")]
    if losses:
        said.append((*_passed("Losses", losses.passed), f": {losses.detail}."))
    else:
        why = result.not_measured.get("losses", "the arithmetic was not changed")
        said.append(f"The losses were not compared: {why}.")
    plot = losses_plot(losses)
    label = "Loss over the steps for each seed, as written and with Ratchet"
    return m.section(
        "Correctness checks",
        m.note(
            "Gradients of the first step against fp32, and the losses of a shrunk copy if the "
            "arithmetic changes."
        ),
        *map(m.Words, said),
        m.Figure("plot", plot, label, "curves") if plot else None,
    )


def _passed(what: str, passed: bool) -> tuple[m.Span]:
    return (m.Span(f"{what} {'passed' if passed else 'failed'}", "yes" if passed else "no"),)


def _verdicts(result: OptimizeResult) -> m.ReportSection | None:
    if not result.verdicts:
        return None
    said = m.note(
        "Each kernel was judged alone, in a process that cannot see the expected outputs."
    )
    return m.section(
        "Verdicts on the kernels",
        said,
        m.ResultTable(VERDICTS, result.verdicts),
        *(
            m.section(
                f"evidence on {VERDICTS[0].cell(one)}",
                m.ResultTable(EVIDENCE, one.evidence),
                closed=True,
                on="page",
            )
            for one in result.verdicts
            if one.evidence
        ),
    )


def _rivals(result: OptimizeResult) -> m.ReportSection | None:
    if not result.rivals:
        return None
    said = m.note(
        "Every way of running the step that was tried as a baseline; the fastest is "
        "torch.compile's best."
    )
    return m.section("The rivals", said, m.ResultTable(RIVALS, result.rivals), on="page")


MOST_NAMED: Final = 8  # Tensors of a call site whose sizes are shown


def dry_run_report(plan: DryRun) -> m.ResultReport:
    """Describe the result of `ratchet optimize --dry-run`: what would be tried, and what not."""
    levers = [(one.name, one.expected or one.summary) for one in plan.levers]
    skipped = [(one.name, one.reason) for one in plan.skipped]
    tried = m.section("Would be tried", m.grid(("change", "expected effect"), levers, left=2))
    left = m.section("Would be skipped", m.grid(("change", "why"), skipped))
    judged = _on_target(plan) if plan.target else ()
    return m.ResultReport(sections=(tried, left, *judged))


def _on_target(plan: DryRun) -> tuple[m.ReportSection, ...]:
    """Return the call sites and the kernels of the step on a GPU that is not here."""
    target, warnings = plan.target, [m.Words(one, "warning") for one in plan.warnings]
    facts = plan.workload
    size = f"{facts.tokens_per_batch:,} {facts.unit}"
    if facts.batch_size is not None and facts.unit == "tokens":
        size += f" in a batch of {facts.batch_size}"
    whole = m.note(f"A step of {size} on {plan.device}, in {plan.arithmetic}.", on="both")
    if not plan.sites:
        none = m.note("The library has no kernel for any call of this step.", on="both")
        sites: tuple[m.ReportBlock, ...] = (whole, none)
    else:
        columns = (
            m.name("op", "kernel"),
            m.number("calls", "count"),
            m.why("sizes of its inputs", _sizes),
        )
        sites = (whole, m.ResultTable(columns, plan.sites))
    return (
        m.section(f"Call sites on {target}", *sites),
        m.section(f"Kernels on {target}", *_emulated(plan), *warnings),
    )


def _sizes(site: CapturedSite) -> str:
    """Return the sizes of a site's first tensors; an update's are too many."""
    if len(site.shapes) > MOST_NAMED:
        elements = sum(prod(one) for one in site.shapes.values())
        return f"{len(site.shapes)} tensors, {elements / 1e6:.1f} M elements"
    dtype = next(iter(site.dtypes.values()), "")
    shown = list(site.shapes.items())[:2]
    return f"{dtype} " + ", ".join(f"{name} {list(sizes)}" for name, sizes in shown)


def _emulated(plan: DryRun) -> tuple[m.ReportBlock, ...]:
    """Return the kernels of those call sites, with their emulated verdicts."""
    if not plan.kernels:
        return (m.note("What would be tried runs no kernel of the library.", on="both"),)
    said = m.note(
        "Verdicts are the emulator's, which executed the machine code at small sizes. The bound is "
        f"the least time of a kernel's calls in one step on {plan.device}, by its paper figures: "
        "inputs and outputs pass its memory once, and products run at its peak. The predicted time "
        "of these calls plays samples of them on a clock; its interval is in brackets. Nothing is "
        "timed.",
        on="both",
    )
    columns = (
        m.name("kernel", "entry"),
        m.number("calls", lambda row: row.calls or ABSENT),
        m.number(
            "bound a step", lambda row: show_time(row.step_bound_s) if row.step_bound_s else ABSENT
        ),
        m.Column("by", _bound_by),
        m.Column("predicted", lambda row: one.words if (one := row.step_predicted) else ABSENT),
        m.Column("verdict", "status"),
    )
    reasons = (
        m.note(f"{one.entry}: {one.reason}", on="both")
        if one.status != "correct"
        else m.note(f"{one.entry} at the step's sizes: {one.no_prediction}", on="both")
        for one in plan.kernels
        if one.status != "correct" or one.no_prediction
    )
    return said, m.ResultTable(columns, plan.kernels), *reasons, *_predicted(plan.predicted)


def _predicted(step: PredictedStep | None) -> tuple[m.ReportBlock, ...]:
    """Return the predicted part of a step, and what it leaves out."""
    whole = None if step is None else step.predicted
    if step is None or whole is None:
        return ()
    parts = {"the library's kernels": step.kernels, "the vendor's products": step.products}
    known = [f"{name} {time.words}" for name, time in parts.items() if time is not None]
    share = "" if step.covered is None else f"{step.covered:.0%} of its products and attention: "
    said = f"Predicted, not measured: {whole.words} of a step, {share}{', '.join(known)}."
    left = f"Not in it: {'; '.join(step.left_out)}."
    return m.note(said, on="both"), m.note(left, on="both")


def _bound_by(kernel: TargetKernel) -> str:
    """Return what bounds the longest of a kernel's calls."""
    longest = max(kernel.sites, key=lambda one: one.calls * (one.bound_s or 0.0), default=None)
    return ABSENT if longest is None or longest.bound_by is None else longest.bound_by
