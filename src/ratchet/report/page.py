"""Render report.html: one file that opens offline, with no script and nothing to load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratchet.optimize.turn.result import OptimizeResult
from ratchet.report import breakdown, figures, words
from ratchet.report.environment import page_environment, plain

_DECISIONS = {
    "kept": "kept",
    "dropped": "dropped",
    "refused": "refused",
    "not_applicable": "does not apply",
    "not_tried": "not tried",
}


_TILE_WORDS = {
    "same": "the same step",
    "equivalent": "no difference beyond noise",
    "undecided": "no clear difference",
}
_TILE_TITLES = {
    "vs_compile": "against torch.compile's best",
    "vs_written": "against the step as written",
    "vs_compile_same_arithmetic": (
        "arithmetic kept, against torch.compile's best in the same arithmetic"
    ),
}


def render_page(result: OptimizeResult) -> str:
    """Return the whole page of one turn as HTML.

    All text is escaped, and the page's own policy forbids scripts and loads.
    """
    budget = result.budget
    page = page_environment().get_template("page.html")
    return page.render(
        result=result,
        headline=words.headline(result),
        tiles=tiles(result),
        drift=words.drift_words(result),
        because=result.recipe_because,
        limit=result.limit,
        omissions=budget.omissions if budget else [],
        unit=words.unit_words(result),
        time_unit=words.common_unit([arm.step_time_s for arm in result.arms]),
        bars=figures.arm_bars(result.arms),
        stacks=breakdown.stacks(result),
        forest=figures.forest(result.changes, result.floor),
        samples=figures.samples_plot(result),
        losses=figures.losses_plot(result.losses),
        categories=breakdown.category_rows(result),
        op_unit=words.common_unit(breakdown.op_times(result)),
        settings=changed_settings(result),
        device=device_rows(result.device),
        verdicts=[_verdict_row(verdict) for verdict in result.verdicts],
        against=words.AGAINST,
        decisions=_DECISIONS,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """One comparison at the top of the page; only a decided one shows its ratio in large print."""

    large: str
    words: str
    title: str
    note: str


def tiles(result: OptimizeResult) -> tuple[Tile, ...]:
    """Return the tiles of the comparisons that were made."""
    found = []
    answers = words.answers_of(result)
    for key, speedup in words.compared(result).items():
        answer = answers[key]
        decided = answer in words.DECIDED
        interval = f"95 % interval {words.show_interval(speedup.low, speedup.high)}"
        measured = f"{words.show_ratio(speedup.ratio)}, {interval}"
        note = {"same": "nothing faster was proven"}.get(
            answer, f"{answer}; {interval}" if decided else measured
        )
        found.append(
            Tile(
                large=words.show_ratio(speedup.ratio) if decided else "",
                words=_TILE_WORDS.get(answer, ""),
                title=_TILE_TITLES[key],
                note=note,
            )
        )
    return tuple(found)


def device_rows(device: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return every fact about the device, with sizes in their units."""
    rows = []
    for name, value in device.items():
        if name.endswith("_bytes"):
            sizes = value if isinstance(value, Mapping) else {"": value}
            text = ", ".join(f"{part} {words.show_bytes(size)}" for part, size in sizes.items())
            rows.append((name.removesuffix("_bytes"), text.strip()))
        else:
            rows.append((name, plain(value)))
    return [(name.replace("_", " "), text) for name, text in rows]


def changed_settings(result: OptimizeResult) -> list[tuple[str, str, str]]:
    """Return each config field that Ratchet changed: its name, the written and the new value."""
    configs = {arm.key: arm.config.model_dump(mode="json") for arm in result.arms}
    before, after = configs.get("as_written", {}), configs.get("ratchet", {})
    return [
        (name, plain(before.get(name)), plain(value))
        for name, value in after.items()
        if before.get(name) != value
    ]


def _verdict_row(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Return one verdict's row; the evidence is passed through unchanged."""
    speedup = verdict.get("speedup") or {}
    ratio = speedup.get("vs_reference") or speedup.get("vs_compile")
    return {
        "kernel": verdict.get("kernel") or str(verdict.get("kernel_hash", ""))[:12],
        "problem": verdict.get("problem") or str(verdict.get("problem_hash", ""))[:12],
        "status": str(verdict.get("status", "")),
        "reason": verdict.get("reason", ""),
        "ratio": ratio,
        "isolation": verdict.get("isolation", ""),
        "evidence": verdict.get("evidence") or [],
    }
