"""Break a step's time down by category and by operator, before and after."""

from __future__ import annotations

from ratchet.base.show import model as m
from ratchet.base.show.figures import TrackRow, from_zero, stacked_bar
from ratchet.base.show.words import ABSENT, TimeUnit, common_unit, show_share, show_time
from ratchet.train.turn.optimize_result import FindingResult, OptimizeResult, StepProfile

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
    return f"{finding.evidence}; at most {show_time(finding.gain_s)} a step. {finding.remedy}"


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
    """Return a category beside its colour."""
    return m.Span("", f"key {category}"), category


def op_table(profile: StepProfile, unit: TimeUnit) -> m.ResultTable:
    """Return a step's time by operator."""
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
