"""The largest model that a cluster trains in time: terminal and JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from ratchet.base.show import model as m
from ratchet.base.show.words import show_bytes, show_share, show_time
from ratchet.scale.plan.largest import Trainable, Trainables

COLUMNS: Final = (
    m.name("model", lambda one: f"{one.shape.layers} x {one.shape.hidden}"),
    m.number("parameters", lambda one: f"{one.shape.parameters / 1e9:,.2f} B"),
    m.number("tokens", lambda one: f"{one.tokens / 1e9:,.0f} B"),
    m.number("days", lambda one: f"{one.days:,.1f}"),
    m.number("step", lambda one: show_time(one.plan.step_s)),
    m.number("MFU", lambda one: show_share(one.plan.mfu)),
    m.number("memory", lambda one: show_bytes(one.plan.memory_bytes)),
    m.Column("layout", lambda one: one.plan.layout.words()),
)


def trainables_report(found: Trainables) -> m.ResultReport:
    """Describe the largest model, its run and the models that were planned to find it."""
    best = found.largest
    facts: list[tuple[str, m.Inline]] = [
        ("model", best.shape.name),
        ("time", f"{best.days:,.1f} of {found.days:g} days"),
        ("device-hours", f"{best.cost.device_hours:,.0f}"),
        ("energy", f"{best.cost.energy_kwh:,.0f} kWh"),
    ]
    if best.cost.money is not None:
        facts.append(("money", f"{best.cost.money:,.0f} at {found.price:g} a device-hour"))
    return m.ResultReport(
        headline=f"In {found.days:g} days, {found.cluster.world} {found.cluster.device} train a "
        f"model of {best.shape.parameters / 1e9:.1f} B parameters on {best.tokens / 1e9:,.0f} B "
        f"tokens, {found.tokens_per_parameter:g} a parameter. Estimated, not measured.",
        sections=m.blocks(
            m.section(
                "Models",
                m.note("Those that were planned to find it: layers x hidden size."),
                m.ResultTable(COLUMNS, found.tried),
            ),
            m.section("The run", m.Facts(facts)),
        ),
    )


def trainables_document(found: Trainables) -> dict[str, object]:
    """Return the JSON document of `ratchet plan --days`."""
    return {
        "cluster": asdict(found.cluster) | {"world": found.cluster.world},
        "stack": found.stack.name,
        "days": found.days,
        "tokens_per_parameter": found.tokens_per_parameter,
        "largest": _trainable(found.largest),
        "tried": [_trainable(one) for one in found.tried],
        "measured": False,
    }


def _trainable(one: Trainable) -> dict[str, object]:
    return {
        "model": asdict(one.shape) | {"parameters": one.shape.parameters},
        "tokens": one.tokens,
        "days": one.days,
        "layout": asdict(one.plan.layout),
        "step_s": one.plan.step_s,
        "mfu": one.plan.mfu,
        "memory_bytes": one.plan.memory_bytes,
        "cost": asdict(one.cost),
    }
