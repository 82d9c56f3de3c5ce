"""The report of `ratchet port`: the terminal's tables, a page that opens offline, SARIF."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from rich.console import Console

from ratchet import __version__
from ratchet.port.compile import Compilation, by_file
from ratchet.port.finding import PortFinding
from ratchet.port.result import PortResult
from ratchet.port.rules.table import all_rules
from ratchet.port.scan import ScannedFile
from ratchet.report.console import heading, make_console, table, verbatim
from ratchet.report.environment import page_environment

MOST_ROWS: Final = 60
CONTEXT: Final = 3
SARIF: Final = "https://json.schemastore.org/sarif-2.1.0.json"


def print_port(result: PortResult, console: Console | None = None) -> None:
    """Print the result of `ratchet port`; the console defaults to stdout."""
    out = console or make_console()
    out.print(headline(result))
    out.print(f"{result.lines:,} lines in {_read(result)} files")
    _print_findings(out, result)
    if result.compiled:
        heading(out, "Compiled for AMD GPUs, not executed")
        out.print(
            table(("file", "kernels", "targets", "why"), compile_rows(result.compiled), left=3)
        )
    skipped = [one for one in result.scanned if one.found.skipped]
    if skipped:
        heading(out, "Not read")
        rows = [(one.found.name, one.found.skipped) for one in skipped[:MOST_ROWS]]
        out.print(table(("file", "why"), rows, left=2))
    if result.outputs:
        heading(out, "Written")
        verbatim(out, (f"    {path}" for path in result.outputs))


def _print_findings(out: Console, result: PortResult) -> None:
    shown = [one for one in result.findings if one.severity != "note"]
    notes = len(result.findings) - len(shown)
    if shown:
        heading(out, "Findings")
        rows = [_row(result, one) for one in shown[:MOST_ROWS]]
        out.print(table(("where", "rule", "found", "fix"), rows, left=4))
        if len(shown) > MOST_ROWS:
            out.print(f"{len(shown) - MOST_ROWS} more: --json or --out lists all.")
    if notes:
        out.print(f"{notes} notes need nothing to be done; --json or --out lists them.")


def _row(result: PortResult, one: PortFinding) -> tuple[str, str, str, str]:
    fixed = not result.by_hand([one])
    return (
        f"{one.file}:{one.line}",
        one.rule,
        one.detail,
        ("in the patch: " if fixed else "") + one.fix,
    )


def headline(result: PortResult) -> str:
    """Return the result in one or two sentences."""
    found = [one for one in result.findings if one.severity != "note"]
    if not found:
        return f"Nothing in {result.path} stands between it and ROCm."
    by_hand = len(result.by_hand(found))
    fixed = len(found) - by_hand
    done = "were fixed" if result.written else "are fixed by the patch"
    return (
        f"{len(found)} findings in {result.path}: {fixed} {done}, {by_hand} are left for you."
        + ("" if result.written or not fixed else " --write applies the patch.")
    )


def _read(result: PortResult) -> int:
    return sum(1 for one in result.scanned if not one.found.skipped)


def compile_rows(compiled: Sequence[Compilation]) -> list[tuple[str, str, str, str]]:
    """Return a row for each file: its kernels, the targets by status, the first reason."""
    rows = []
    for name, found in by_file(compiled).items():
        by_status: dict[str, list[str]] = {}
        for one in found:
            by_status.setdefault(one.status, []).append(one.target)
        targets = "; ".join(f"{status}: {', '.join(names)}" for status, names in by_status.items())
        why = next((one.why for one in found if one.why), "")
        rows.append((name, str(max(one.kernels for one in found)), targets, why))
    return rows


@dataclass(frozen=True, kw_only=True, slots=True)
class DiffLine:
    """One line of the diff side by side."""

    tone: str
    before: str
    after: str


def sides(scanned: ScannedFile, new: bytes) -> Iterator[DiffLine]:
    """Yield the changed lines of a file with a few around them."""
    old = scanned.found.text.decode(errors="replace").splitlines()
    lines = new.decode(errors="replace").splitlines()
    matcher = difflib.SequenceMatcher(None, old, lines, autojunk=False)
    for index, group in enumerate(matcher.get_grouped_opcodes(CONTEXT)):
        if index:
            yield DiffLine(tone="gap", before="...", after="...")
        for tag, a, b, c, d in group:
            for step in range(max(b - a, d - c)):
                before = old[a + step] if a + step < b else ""
                after = lines[c + step] if c + step < d else ""
                yield DiffLine(
                    tone="same" if tag == "equal" else "changed", before=before, after=after
                )


def effort(result: PortResult) -> list[tuple[str, str, str]]:
    """Return what is left by rule, the most frequent first: rule, count, how to fix it."""
    left = result.by_hand(result.findings)
    counts = Counter(one.rule for one in left)
    fixes = {one.rule: one.fix for one in reversed(left)}
    return [(rule, str(count), fixes[rule]) for rule, count in counts.most_common()]


def render_port_page(result: PortResult) -> str:
    """Return the whole page as HTML."""
    files = {one.found.name: one for one in result.scanned}
    return (
        page_environment()
        .get_template("port.html")
        .render(
            result=result,
            headline=headline(result),
            read=_read(result),
            files=[
                (one.found.name, result.readiness(one), len(result.by_hand(list(one.findings))))
                for one in result.scanned
                if one.findings or one.has_kernels
            ],
            effort=effort(result),
            findings=[(one, not result.by_hand([one])) for one in result.findings],
            compiled=compile_rows(result.compiled),
            changed=[(name, list(sides(files[name], text))) for name, text in result.new.items()],
            skipped=[
                (one.found.name, one.found.skipped) for one in result.scanned if one.found.skipped
            ],
        )
    )


def as_sarif(result: PortResult) -> dict[str, Any]:
    """Return the findings as SARIF 2.1.0, which code-scanning pages read."""
    rules = [
        {
            "id": rule.name,
            "shortDescription": {"text": rule.why},
            "help": {"text": rule.fix},
            "defaultConfiguration": {"level": rule.severity},
        }
        for rule in all_rules()
    ]
    driver = {"name": "ratchet port", "version": __version__, "rules": rules}
    results = [_sarif(one) for one in result.findings]
    run = {"tool": {"driver": driver}, "columnKind": "utf16CodeUnits", "results": results}
    return {"$schema": SARIF, "version": "2.1.0", "runs": [run]}


def _sarif(finding: PortFinding) -> dict[str, Any]:
    said = f"{finding.detail}: {finding.why}" if finding.detail else finding.why
    place = {
        "artifactLocation": {"uri": quote(finding.file)},
        "region": {"startLine": finding.line},
    }
    return {
        "ruleId": finding.rule,
        "level": finding.severity,
        "message": {"text": f"{said} Fix: {finding.fix}."},
        "locations": [{"physicalLocation": place}],
    }
