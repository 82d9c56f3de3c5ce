"""Print what a step's memory holds, and the plan that fits it into a budget."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby

from ratchet.base.show import model as m
from ratchet.base.show.words import show_bytes, show_time
from ratchet.train.memory.fit import StepMemory
from ratchet.train.memory.measured import MeasuredStep
from ratchet.train.workloads.checkpointing import CHOICES

PARTS = ("parameters", "gradients", "optimizer", "activations", "rest")


def memory_report(found: StepMemory) -> m.ResultReport:
    """Describe the answer, the parts at the peak, and each block's costs and choice."""
    steps = {"as written": found.written}
    if found.fitted is not None:
        steps["with the plan"] = found.fitted.measured
    rows = [
        (name, *map(show_bytes, (step.peak_bytes, *(getattr(step.parts, one) for one in PARTS))))
        for name, step in steps.items()
        if step is not None
    ]
    estimated = found.estimated_bytes
    sections = [
        m.section(
            "At the peak",
            m.grid(("step", "peak", *PARTS), rows),
            f"torch's MemTracker estimates {show_bytes(estimated)} as written"
            if estimated is not None
            else None,
        )
    ]
    if found.fitted is not None and found.costs is not None:
        kept = (f"{CHOICES[choice]} keeps" for choice in found.costs.choices)
        titles = ("blocks", "choice", *kept, "recomputes")
        blocks = m.grid(titles, list(_block_rows(found)), left=2)
        sections.append(m.section("Blocks", blocks))
        used = [f"ratchet optimize {found.workload} --try {found.fitted.lever}"]
        if not found.fitted.levers:
            plan = found.fitted.plan.checkpointing
            used.insert(0, f'checkpointing = "{plan}"    # of your Workload')
        sections.append(m.section("Use it", m.Lines(used)))
    return m.ResultReport(headline=_headline(found), sections=tuple(sections))


def _headline(found: StepMemory) -> str:
    how = "compiled" if found.compiled else "eager"
    if found.fitted is None:
        assert found.written is not None
        peak = show_bytes(found.written.peak_bytes)
        return f"{found.workload} on {found.device}, {how}: the step needs {peak}"
    fitted = found.fitted
    verdict = "fits" if fitted.fits else "does not fit"
    how = ", ".join([how, *fitted.levers])
    return (
        f"{found.workload} on {found.device}, {how}: {verdict} in "
        f"{show_bytes(fitted.budget_bytes)}; measured {show_bytes(fitted.measured.peak_bytes)}, "
        f"predicted {show_bytes(fitted.plan.predicted_bytes)} ({fitted.error:+.1%})"
    )


def _block_rows(found: StepMemory) -> Iterator[tuple[str, ...]]:
    """Yield one row for each run of alike blocks."""
    costs, fitted = found.costs, found.fitted
    assert costs is not None and fitted is not None

    def alike(place: int) -> tuple[object, ...]:
        return fitted.plan.choices[place], tuple(costs.saved[place].values())

    for _, places in groupby(range(len(found.blocks)), key=alike):
        run = list(places)
        first, last, choice = run[0], run[-1], fitted.plan.choices[run[0]]
        name = f"{first}" if first == last else f"{first}-{last}"
        kept = [show_bytes(one) for one in costs.saved[first].values()]
        spent = sum(costs.time_s[place][choice] for place in run)
        yield name, CHOICES[choice], *kept, show_time(spent)


def memory_document(found: StepMemory) -> dict[str, object]:
    """Return the result as plain data; bytes and seconds."""
    document: dict[str, object] = {
        "workload": found.workload,
        "device": found.device,
        "compiled": found.compiled,
        "written": _step_document(found.written),
        "mem_tracker_bytes": found.estimated_bytes,
        "blocks": list(found.blocks),
    }
    if found.fitted is not None:
        fitted = found.fitted
        document["plan"] = {
            "checkpointing": fitted.plan.checkpointing,
            "levers": list(fitted.levers),
            "lever": fitted.lever,
            "budget_bytes": fitted.budget_bytes,
            "fits": fitted.fits,
            "predicted_bytes": fitted.plan.predicted_bytes,
            "error": fitted.error,
            "recompute_s": fitted.plan.added_s,
            "measured": _step_document(fitted.measured),
        }
    if found.costs is not None:
        document["costs"] = [
            {"saved_bytes": dict(saved), "recompute_s": dict(times)}
            for saved, times in zip(found.costs.saved, found.costs.time_s, strict=True)
        ]
    return document


def _step_document(step: MeasuredStep | None) -> dict[str, object] | None:
    if step is None:
        return None
    return {
        "checkpointing": step.checkpointing,
        "peak_bytes": step.peak_bytes,
        "parts_bytes": asdict(step.parts),
    }
