"""The report of `ratchet port`: the terminal's tables, a page that opens offline, SARIF."""

from __future__ import annotations

import difflib
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Final
from urllib.parse import quote

from ratchet.amd.port.compile import Compilation, by_file
from ratchet.amd.port.porting import MAIN, PortResult
from ratchet.amd.port.rule import Finding
from ratchet.amd.port.rules import all_rules
from ratchet.amd.port.scan import ScannedFile
from ratchet.base import VERSION
from ratchet.base.show import model as m
from ratchet.base.show.page import render_page
from ratchet.base.show.words import counted

MOST_ROWS: Final = 60
CONTEXT: Final = 3
NO_PROOF: Final = "--prove runs programs, and judges bound functions that have a problem"
UNKNOWN: Final = "a program's numbers are checked by the program alone"
SARIF: Final = "https://json.schemastore.org/sarif-2.1.0.json"


def render_port_page(result: PortResult) -> str:
    return render_page(port_report(result))


def port_report(result: PortResult) -> m.ResultReport:
    """Return what was found, for the terminal and the page."""
    read = sum(not one.found.skipped for one in result.scanned)
    compiled = m.grid(("file", "kernels", "targets", "why"), compile_rows(result.compiled), left=3)
    return m.ResultReport(
        title=f"{result.path} on ROCm",
        heading="port",
        headline=headline(result),
        header=(m.Words(f"{counted(result.lines, 'line')} in {counted(read, 'file')}"),),
        sections=m.blocks(
            _proofs(result),
            _left(result),
            _files(result),
            _findings(result),
            _reasons(result),
            m.section("Compiled for AMD GPUs", compiled) if result.compiled else None,
            *_changes(result),
            _skipped(result),
            m.written([str(path) for path in result.outputs]),
        ),
    )


def _skipped(result: PortResult) -> m.ReportSection | None:
    rows = [(one.found.name, one.found.skipped) for one in result.scanned if one.found.skipped]
    return m.section("Not read", m.grid(("file", "why"), rows[:MOST_ROWS])) if rows else None


def _left(result: PortResult) -> m.ReportSection | None:
    rows = effort(result)
    table = m.grid(("rule", "fix", "findings"), rows, left=2)
    return m.section("Left for you", table, on="page") if rows else None


def _files(result: PortResult) -> m.ReportSection:
    said = verdicts(result)
    rows = [
        (
            one.found.name,
            str(result.readiness(one)),
            said.get(one.found.name, ""),
            str(len(result.by_hand(one.findings))),
        )
        for one in result.scanned
        if one.findings or one.has_kernels
    ]
    names = ("file", "readiness", "its kernels", "by hand")
    return m.section("Files", m.grid(names, rows, left=3), on="page")


PROOF_COLUMNS: Final = (
    m.name(
        "kernel", lambda one: one.file if one.entry == "ModelNew" else f"{one.file}: {one.entry}"
    ),
    m.Column("verdict", lambda one: one.said),
    m.why("why", lambda one: one.why),
)


def _proofs(result: PortResult) -> m.ReportSection | None:
    if not result.proofs:
        return None
    kernels = [one for one in result.proofs if one.entry != MAIN]
    programs = [one for one in result.proofs if one.entry == MAIN]
    said = (
        [f"{sum(one.is_right for one in kernels)} of {len(kernels)} are right."] if kernels else []
    )
    if programs:
        ran = sum(one.is_right for one in programs)
        said.append(f"{ran} of {counted(len(programs), 'program')} ran to the end; {UNKNOWN}.")
    return m.section(
        "Kernels, executed on emulated GPUs",
        m.Words(" ".join(said)),
        m.ResultTable(PROOF_COLUMNS, list(result.proofs)),
    )


def verdicts(result: PortResult) -> dict[str, str]:
    """Return what became of each file's kernels: executed, compiled or neither, and why."""
    found: dict[str, list[str]] = {}
    executed = set()
    for proof in result.proofs:
        if proof.was_executed:
            executed.add(proof.file)
            found.setdefault(proof.file, []).append(f"{proof.entry} {proof.said}")
    for name, compiled in by_file(result.compiled).items():
        built = [one.target for one in compiled if one.status == "compiled"]
        if name not in executed:
            why = next((one.why for one in result.proofs if one.file == name), NO_PROOF)
            words = f"compiled for {', '.join(built)}; not executed: {why}"
            first = next((one for one in compiled if one.status != "compiled"), None)
            failed = f"{first.status}: {first.why}" if first is not None else ""
            found.setdefault(name, []).append(words if built else failed)
    return {name: "; ".join(said) for name, said in found.items()}


def _findings(result: PortResult) -> m.ReportSection | None:
    def fix(one: Finding) -> str:
        is_fixed = one.severity != "note" and result.is_fixed(one)
        return ("in the patch: " if is_fixed else "") + one.fix

    columns = (
        m.name("where", lambda one: f"{one.file}:{one.line}"),
        m.Column("rule", "rule"),
        m.Column("severity", "severity", on="page"),
        m.Column("found", "detail"),
        m.why("fix", fix),
    )
    rows = result.findings
    shown = [one for one in rows if one.severity != "note"]
    more, notes = len(shown) - MOST_ROWS, len(rows) - len(shown)
    need = "note needs" if notes == 1 else "notes need"
    said = f"{notes} {need} nothing to be done; --json or --out lists them."
    if not rows:
        return None
    return m.section(
        "Findings",
        m.ResultTable(columns, shown[:MOST_ROWS], on="terminal"),
        m.Words(f"{more} more: --json or --out lists all.", on="terminal") if more > 0 else None,
        m.Words(said, on="terminal") if notes else None,
        m.ResultTable(columns, rows, on="page"),
    )


def _reasons(result: PortResult) -> m.ReportSection | None:
    """Return why each rule that matched is one, for the page."""
    rows = sorted({one.rule: one.why for one in result.findings}.items())
    return m.section("Rules", m.grid(("rule", "why"), rows), on="page") if rows else None


def _changes(result: PortResult) -> list[m.ReportSection]:
    """Return the changed files, before and after side by side, for the page."""
    files = {one.found.name: one for one in result.scanned}
    columns = (m.Column("before", itemgetter(0)), m.Column("after", itemgetter(1)))
    return [
        m.section(
            name,
            m.ResultTable(
                columns, list(sides(files[name], text)), look="diff", marked=itemgetter(2)
            ),
            on="page",
        )
        for name, text in result.new.items()
    ]


def headline(result: PortResult) -> str:
    """Return the result in one or two sentences."""
    found = [one for one in result.findings if one.severity != "note"]
    if not any(one.found.kind for one in result.scanned):
        return f"{result.path} holds no CUDA, HIP, Triton or build files."
    failed = f"{counted(len(result.failed), 'file')} with kernels" if result.failed else ""
    verb = "does" if len(result.failed) == 1 else "do"
    failed = f"{failed} {verb} not compile for AMD GPUs." if failed else ""
    if not found:
        return failed or f"Nothing in {result.path} stands between it and ROCm."
    by_hand = len(result.by_hand(found))
    fixed = len(found) - by_hand
    was, are = ("was", "is") if fixed == 1 else ("were", "are")
    done = f"{was} fixed" if result.written else f"{are} fixed by the patch"
    return (
        f"{counted(len(found), 'finding')} in {result.path}: {fixed} {done}, "
        f"{by_hand} {'is' if by_hand == 1 else 'are'} left for you."
        + ("" if result.written or not fixed else " --write applies the patch.")
        + (f" {failed}" if failed else "")
    )


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


def sides(scanned: ScannedFile, new: bytes) -> Iterator[tuple[str, str, str]]:
    """Yield the changed lines of a file with a few around them: before, after, and their look."""
    old = scanned.found.text.decode(errors="replace").splitlines()
    lines = new.decode(errors="replace").splitlines()
    matcher = difflib.SequenceMatcher(None, old, lines, autojunk=False)
    for index, group in enumerate(matcher.get_grouped_opcodes(CONTEXT)):
        if index:
            yield "...", "...", "gap"
        for tag, a, b, c, d in group:
            look = "same" if tag == "equal" else "changed"
            for before, after in itertools.zip_longest(old[a:b], lines[c:d], fillvalue=""):
                yield before, after, look


def effort(result: PortResult) -> list[tuple[str, str, str]]:
    """Return what is left by rule, the most frequent first: rule, how to fix it, count."""
    left = result.by_hand(result.findings)
    counts = Counter(one.rule for one in left)
    fixes = {one.rule: one.fix for one in reversed(left)}
    return [(rule, fixes[rule], str(count)) for rule, count in counts.most_common()]


def as_sarif(result: PortResult) -> dict[str, object]:
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
    driver = {"name": "ratchet port", "version": VERSION, "rules": rules}
    results = [_sarif(one) for one in result.findings]
    run = {"tool": {"driver": driver}, "columnKind": "utf16CodeUnits", "results": results}
    return {"$schema": SARIF, "version": "2.1.0", "runs": [run]}


def _sarif(finding: Finding) -> dict[str, object]:
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
