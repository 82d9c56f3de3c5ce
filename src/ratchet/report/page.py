"""report.html: one file that opens offline, with no script and nothing to load."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ratchet.report import breakdown, figures, words
from ratchet.report.shape import Result, as_result

_DECISIONS = {
    "kept": "kept",
    "dropped": "dropped",
    "refused": "refused",
    "not_applicable": "does not apply",
    "not_tried": "not tried",
}


def render_page(document: Mapping[str, Any]) -> str:
    """The whole page of one turn, as HTML.

    `document` is an `OptimizeResult` as plain data. All of its text is escaped, and the page's own
    policy forbids scripts and loads.
    """
    result = as_result(document)
    page = _environment().get_template("page.html")
    return page.render(
        result=result,
        headline=words.headline(result),
        unit=words.unit_words(result),
        time_unit=words.common_unit([arm["step_time_s"] for arm in result["arms"]]),
        bars=figures.arm_bars(result["arms"]),
        stacks=breakdown.stacks(result),
        forest=figures.forest(result["changes"], result["floor"]),
        samples=figures.samples_plot(result),
        losses=figures.losses_plot(result["losses"]),
        categories=breakdown.category_rows(result),
        op_unit=words.common_unit(breakdown.op_times(result)),
        settings=changed_settings(result),
        device=_device_rows(result),
        verdicts=[_verdict_row(verdict) for verdict in result["verdicts"]],
        against=words.AGAINST,
        decisions=_DECISIONS,
    )


def _device_rows(result: Result) -> list[tuple[str, str]]:
    """Every fact of the device, sizes in their units."""
    rows = []
    for name, value in result["device"].items():
        if name.endswith("_bytes"):
            sizes = value if isinstance(value, Mapping) else {"": value}
            text = ", ".join(f"{part} {words.show_bytes(size)}" for part, size in sizes.items())
            rows.append((name.removesuffix("_bytes"), text.strip()))
        else:
            rows.append((name, _plain(value)))
    return [(name.replace("_", " "), text) for name, text in rows]


def changed_settings(result: Result) -> list[tuple[str, str, str]]:
    """Each field of the step's config that Ratchet set: its name, as written, and now."""
    configs = {arm["key"]: arm["config"] for arm in result["arms"]}
    before, after = configs.get("as_written", {}), configs.get("ratchet", {})
    return [
        (name, _plain(before.get(name)), _plain(value))
        for name, value in after.items()
        if before.get(name) != value
    ]


def _plain(value: object) -> str:
    """A value of the config or the device as a person reads it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(_plain(item) for item in value) or "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items()) or "none"
    return str(value)


def _verdict_row(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """One verdict's row; the pairs of its evidence stay as they are."""
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


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("ratchet.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown = {
        "time": words.show_time,
        "bytes": words.show_bytes,
        "rate": words.show_rate,
        "share": words.show_share,
        "ratio": words.show_ratio,
        "moment": words.show_moment,
        "gave": words.change_gave,
        "plain": _plain,
    }
    environment.filters.update({f"show_{name}": show for name, show in shown.items()})
    said = {
        "interval": words.show_interval,
        "compile_words": words.compile_words,
        "floor_words": words.floor_words,
        "device_words": words.device_words,
        "speedup_words": words.speedup_words,
    }
    environment.globals.update(said)
    return environment
