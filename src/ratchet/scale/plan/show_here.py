"""Plans beside the layouts that were measured on this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from ratchet.base.show import model as m
from ratchet.base.show.words import show_bytes, show_share, show_time
from ratchet.scale.plan.here import CheckedPlan

COLUMNS: Final = (
    m.name("layout"),
    m.number("step", "step_s", show_time),
    m.number("planned", "predicted_s", show_time),
    m.number("error", "step_error", lambda value: f"{value:+.0%}"),
    m.number("exposed", "exposed_s", show_time, note="communication that nothing hides"),
    m.number("planned", "predicted_exposed_s", show_time),
    m.number("memory", "memory_bytes", show_bytes),
    m.number("error", "memory_error", lambda value: f"{value:+.0%}"),
    m.Column("sets", "sets"),
)


def checked_plan_report(found: CheckedPlan) -> m.ResultReport:
    """Describe each measured layout beside its plan, and the median errors."""
    count = sum(not one.sets for one in found.rows)
    planned = f"{count} layout{'' if count == 1 else 's'} planned"
    left = [f"{layout}: {why}." for layout, why in found.left_out.items()]
    return m.ResultReport(
        headline=(
            f"{found.model} on {found.device}: {planned}, with a median error of "
            f"{show_share(found.step_error)} in time and {show_share(found.memory_error)} in "
            "memory."
        ),
        sections=m.blocks(
            m.section(
                "Layouts",
                m.ResultTable(COLUMNS, found.rows),
                "The rows that set the rates of products and links are not counted.",
            ),
            m.section("Left out", *left) if left else None,
        ),
    )


def checked_plan_document(found: CheckedPlan) -> dict[str, object]:
    """Return the JSON document of a plan that was checked here."""
    rows = [
        {**asdict(one), "step_error": one.step_error, "memory_error": one.memory_error}
        for one in found.rows
    ]
    errors = {"step_error": found.step_error, "memory_error": found.memory_error}
    return {**asdict(found), "rows": rows, **errors}
