"""A turn that is not run: its changes, on this machine or on a GPU that is not here."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Final

from ratchet.base.show import model as m
from ratchet.base.show.words import ABSENT, show_time

if TYPE_CHECKING:
    from ratchet.train.graph.scope import CapturedSite
    from ratchet.train.turn.dry_run import DryRun, TargetKernel

MOST_NAMED: Final = 8
"""Tensors of a call site whose sizes are shown."""


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
        "inputs and outputs pass its memory once, and products run at its peak. Nothing is timed.",
        on="both",
    )
    columns = (
        m.name("kernel", "entry"),
        m.number("calls", lambda row: row.calls or ABSENT),
        m.number(
            "bound a step", lambda row: show_time(row.step_bound_s) if row.step_bound_s else ABSENT
        ),
        m.Column("by", _bound_by),
        m.Column("verdict", "status"),
    )
    others = [one for one in plan.kernels if one.status != "correct"]
    reasons = [m.note(f"{one.entry}: {one.reason}", on="both") for one in others]
    return said, m.ResultTable(columns, plan.kernels), *reasons


def _bound_by(kernel: TargetKernel) -> str:
    """Return what bounds the longest of a kernel's calls."""
    longest = max(kernel.sites, key=lambda one: one.calls * (one.bound_s or 0.0), default=None)
    return ABSENT if longest is None or longest.bound_by is None else longest.bound_by
