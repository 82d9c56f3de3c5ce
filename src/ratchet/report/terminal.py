"""Print each command's output for people; `--json` prints the same data as a document."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console

from ratchet.optimize.turn.result import ArmResult, BudgetUse, Change, OptimizeResult
from ratchet.report.breakdown import finding_words, identity_words
from ratchet.report.console import FittedTable, heading, make_console, table, verbatim
from ratchet.report.words import (
    ABSENT,
    AGAINST,
    change_gave,
    common_unit,
    compile_words,
    device_words,
    drift_words,
    floor_words,
    headline,
    limit_words,
    rival_words,
    show_bytes,
    show_rate,
    show_share,
    show_time,
    speedup_words,
    unit_words,
)

_WHY_NOT = {
    "dropped": "Dropped",
    "refused": "Refused",
    "not_applicable": "Does not apply",
    "not_tried": "Not tried",
}


def print_result(result: OptimizeResult, console: Console | None = None) -> None:
    """Print the result of `ratchet optimize`: the table, the kept changes, the lines to paste.

    The console defaults to stdout.
    """
    out = console or make_console()
    out.print(headline(result))
    out.print(f"{device_words(result.device)} · {_turn_words(result)}")
    for line in (result.recipe_because, _limit_words(result)):
        if line:
            out.print(line)
    for warning in result.warnings:
        out.print(f"warning: {warning}")
    out.print()
    out.print(main_table(result))
    _print_comparisons(out, result)
    _print_profiles(out, result)
    _print_changes(out, result.changes)
    _print_omissions(out, result.budget)
    _print_checks(out, result)
    heading(out, "Compile time")
    out.print(compile_words(result.compile))
    heading(out, "Paste into your script")
    verbatim(out, (f"    {line}" for line in result.paste.apply))
    heading(out, "To undo")
    verbatim(out, (f"    {line}" for line in result.paste.undo))
    heading(out, "Written")
    profiled = (result.profile_before, result.profile_after)
    paths = result.paths.model_dump().values()
    traces = [profile.trace for profile in profiled if profile]
    verbatim(out, (f"    {path}" for path in [*paths, *traces]))


def main_table(result: OptimizeResult) -> FittedTable:
    """Return the table of every way of running the step: time with interval, rate, MFU, memory."""
    arms = result.arms
    unit = common_unit([arm.step_time_s for arm in arms])
    columns = ("", f"step, {unit.name}", "95 %", f"{unit_words(result)}/s", "MFU", "peak memory")
    return table(columns, [_arm_row(arm, unit.show) for arm in arms])


def _arm_row(arm: ArmResult, show: Callable[[float], str]) -> tuple[str, ...]:
    return (
        arm.title,
        show(arm.step_time_s),
        f"{show(arm.low_s)} - {show(arm.high_s)}",
        show_rate(arm.tokens_per_s),
        show_share(arm.mfu),
        show_bytes(arm.peak_memory_bytes),
    )


def _turn_words(result: OptimizeResult) -> str:
    resumed = ", with measurements from the ledger" if result.resumed else ""
    return f"the turn took {show_time(result.duration_s)}{resumed}"


def _print_comparisons(out: Console, result: OptimizeResult) -> None:
    floor = result.floor
    out.print()
    out.print(rival_words(result))
    rows = {
        "vs_written": "Ratchet",
        "vs_compile": "Ratchet",
        "vs_compile_same_arithmetic": "Ratchet, arithmetic kept",
    }
    for key, who in rows.items():
        if (speedup := result.speedup.get(key)) is not None:
            out.print(f"{who}: {speedup_words(speedup, AGAINST[key], floor)}.")
    out.print(floor_words(floor))
    if (drift := drift_words(result)) is not None:
        out.print(drift)


def _limit_words(result: OptimizeResult) -> str | None:
    limit = result.limit
    return limit_words(limit) if limit else None


def _print_profiles(out: Console, result: OptimizeResult) -> None:
    found = {"as written": result.profile_before, "Ratchet": result.profile_after}
    profiles = {title: profile for title, profile in found.items() if profile is not None}
    if not profiles:
        return
    heading(out, "Where the time goes")
    for title, profile in profiles.items():
        out.print(f"{title}: {identity_words(profile)}")
        for finding in profile.findings:
            out.print(f"  {finding.name}: {finding_words(finding)}")
    out.print("for more, run ratchet trace report or diff on the traces below")


def _print_changes(out: Console, changes: Sequence[Change]) -> None:
    kept = [change for change in changes if change.decision == "kept"]
    heading(out, "Kept")
    if kept:
        rows = [(change.name, change_gave(change), change.reason) for change in kept]
        out.print(table(("change", "effect", "why"), rows))
    else:
        out.print("Nothing: no change was proven to help.")
    for decision, title in _WHY_NOT.items():
        _print_rest(out, title, [c for c in changes if c.decision == decision])


def _print_omissions(out: Console, budget: BudgetUse | None) -> None:
    if budget and budget.omissions:
        heading(out, "Left out")
        rows = [(omission.what, omission.reason) for omission in budget.omissions]
        out.print(table(("what", "why"), rows))


def _print_rest(out: Console, title: str, changes: Sequence[Change]) -> None:
    if not changes:
        return
    heading(out, title)
    if any(change.ratio is not None for change in changes):
        rows = [(change.name, change_gave(change), change.reason) for change in changes]
        out.print(table(("change", "effect", "why"), rows))
        return
    out.print(table(("change", "why"), [(c.name, c.reason) for c in changes]))


def _print_checks(out: Console, result: OptimizeResult) -> None:
    gradients, losses = result.gradients, result.losses
    heading(out, "Checks")
    if gradients is None:
        out.print("gradients: not checked")
    else:
        worst = f"worst {gradients.worst_parameter} at {gradients.worst_ratio:.2f}"
        out.print(f"gradients: {_passed(gradients.passed)}, {worst}; {gradients.detail}")
    if losses is None:
        out.print("losses: not compared, because the arithmetic is the same")
    else:
        out.print(f"losses: {_passed(losses.passed)}; {losses.detail}")
    statuses = [str(verdict.get("status", "")) for verdict in result.verdicts]
    if statuses:
        counts = {status: statuses.count(status) for status in sorted(set(statuses))}
        said = ", ".join(f"{count} {status}" for status, count in counts.items())
        out.print(f"kernel verdicts: {said}")


def _passed(passed: bool) -> str:
    return "passed" if passed else "failed"


def print_bench(results: Sequence[Mapping[str, Any]], console: Console | None = None) -> None:
    """Print the result of `ratchet bench`: one row per workload."""
    out = console or make_console()
    unit = common_unit([_number(row, "step_time_s") for row in results])
    rows = [
        (
            str(row.get("workload") or row.get("name") or ABSENT),
            unit.show(_number(row, "step_time_s")),
            show_rate(_number(row, "tokens_per_s")),
            show_share(_number(row, "mfu")),
            show_bytes(_number(row, "peak_memory_bytes")),
        )
        for row in results
    ]
    units = {str(row.get("unit", "tokens")) for row in results}
    rate = f"{' or '.join(sorted(units, reverse=True))}/s"
    out.print(table(("workload", f"step, {unit.name}", rate, "MFU", "peak memory"), rows))
    for warning in (line for row in results for line in row.get("warnings", ())):
        out.print(f"warning: {warning}")


def print_device(report: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the result of `ratchet device`: the device, and the ceilings measured on it."""
    out = console or make_console()
    device = report["device"]
    caches = ", ".join(f"{k} {show_bytes(v)}" for k, v in device.get("caches_bytes", {}).items())
    facts = {
        "device": device["model"],
        "kind": f"{device['kind']}, {device['vendor']} {device.get('runtime', '')}".strip(),
        "cores": f"{device['cores']} cores, {device['threads']} threads",
        "instructions": ", ".join(device["isa"]) or ABSENT,
        "kernels for": str(report.get("target", ABSENT)),
        "caches": caches or ABSENT,
        "memory": show_bytes(device.get("memory_bytes", 0)),
    }
    out.print(table(("", ""), facts.items(), left=2))
    heading(out, "Measured ceilings")
    out.print(table(("", "rate"), _ceiling_rows(report)))
    _print_paper(out, report.get("paper"))
    for note in report.get("notes", ()):
        out.print(f"note: {note}")


def _ceiling_rows(report: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for dtype, rate in report["gemm_flops_per_s"].items():
        yield f"matrix product, {dtype}", _flops(rate)
    for name in ("copy", "triad"):
        for level, rate in report[f"{name}_bytes_per_s"].items():
            yield f"{name}, {level}", f"{rate / 1e9:,.1f} GB/s"


def _print_paper(out: Console, paper: Mapping[str, Any] | None) -> None:
    if paper is None:
        return
    heading(out, f"Vendor's figures: {paper['name']}")
    rows = [(kind, _flops(rate)) for kind, rate in paper["peak_flops_per_s"].items()]
    if paper["memory_bytes_per_s"]:
        rows.append(("memory", f"{paper['memory_bytes_per_s'] / 1e9:,.1f} GB/s"))
    out.print(table(("", "peak"), rows))


def _flops(rate: float) -> str:
    return f"{rate / 1e12:,.2f} TFLOP/s" if rate >= 1e12 else f"{rate / 1e9:,.1f} GFLOP/s"


def print_plan(plan: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the result of `ratchet optimize --dry-run`: what would be tried, and what not."""
    out = console or make_console()
    heading(out, "Would be tried")
    levers = plan["levers"]
    rows = [(lever["name"], lever["expected"] or lever["summary"]) for lever in levers]
    out.print(table(("change", "expected effect"), rows, left=2))
    skipped = plan["skipped"]
    if skipped:
        heading(out, "Would be skipped")
        out.print(table(("change", "why"), [(row["name"], row["reason"]) for row in skipped]))


def _number(row: Mapping[str, Any], name: str) -> float:
    value = row.get(name)
    return float(value) if value is not None else 0.0
