"""A page for each run, recipe, kernel, verdict and device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from ratchet.base import Json
from ratchet.base.errors import RatchetError
from ratchet.base.ledger.schema import Payload
from ratchet.base.measure import Ratio
from ratchet.base.measure.contest import CompareOutcome
from ratchet.base.measure.metrics import MetricAnswer, Readings
from ratchet.base.show import figures
from ratchet.base.show import model as m
from ratchet.base.show.words import plain, show_interval, show_ratio, show_time
from ratchet.guard.site.book import CountedRows, Judged, LedgerRun, Named, WrittenRecipe
from ratchet.guard.site.facts import SiteFacts, left_out
from ratchet.guard.site.links import clipped, moment
from ratchet.guard.site.lists import (
    RECIPE_IS,
    but,
    kernel_columns,
    recipe_chip,
    recipe_columns,
    run_columns,
    series_columns,
    verdict_cell,
    verdict_columns,
)
from ratchet.judge.court.show import status_cell, verdict_report
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Problem
from ratchet.judge.terms import JudgedKernel
from ratchet.judge.verdict import Verdict

MOST_ROWS: Final = 200
MOST_SOURCE: Final = 200_000  # Letters of a kernel's source on its page
DAMAGED: Final = (
    RatchetError,
    msgspec.MsgspecError,
    LookupError,
    TypeError,
    ValueError,
    OverflowError,
)
"""Errors of a row that another version wrote, or that somebody damaged."""
AGAINST: Final = {
    "vs_written": "against the step as written",
    "vs_compile": "against torch.compile's best",
    "vs_compile_same_arithmetic": "arithmetic kept, against torch.compile's best in the same",
}
STEP_ARMS: Final = {
    "as_written": ("as_written", "as written"),
    "best_compile": ("best_compile", "torch.compile's best"),
    "best_compile_same": ("best_compile_same", "torch.compile's best, same arithmetic"),
    "same_arithmetic": ("same_arithmetic", "Ratchet, same arithmetic"),
    "ratchet": ("ratchet", "Ratchet"),
    "twin": ("twin", "a twin of torch.compile's best (A/A)"),
}
COMPARED_ARMS: Final = {
    "a": ("as_written", "A (baseline)"),
    "twin": ("twin", "A again (A/A)"),
    "b": ("ratchet", "B (new)"),
}


def unreadable(what: str) -> m.ReportSection:
    """Say that a row cannot be shown."""
    return m.section(
        "Not shown",
        f"This {what} was written by another version of Ratchet, or its row is damaged.",
    )


# Runs.


def run_page(facts: SiteFacts, run: LedgerRun) -> m.ResultReport:
    """Describe a run: its answer, what was measured, and what it left behind."""
    document = facts.book.payload(*run.place)
    known: list[m.Named] = [
        ("command", f"ratchet {run.command}"),
        ("date (UTC)", moment(run.at)),
        ("measured on", facts.device(run.device)),
        ("ended", run.state),
        ("run", m.Span(run.key[:80], "code")),
    ]
    makers = {
        "compare": _compared,
        "numerics": _numerics,
        "optimize": _optimized,
        "write": _written,
        "bench": _benched,
    }
    try:
        maker = makers.get(run.command) if run.state != "failed" else None
        own = maker(facts, run, document) if maker else ()
    except DAMAGED:
        own = (unreadable("run"),)
    failed = [m.Words(clipped(str(document.get("error", ""))), "warning")] * (run.state == "failed")
    return m.ResultReport(
        title=clipped(f"{run.command} {run.title}").text,
        heading=f"run of {run.command}",
        headline=clipped(run.title or run.key),
        header=m.blocks(m.Facts(known), *failed),
        sections=own,
    )


def _compared(facts: SiteFacts, run: LedgerRun, document: Payload) -> tuple[m.ReportBlock, ...]:
    from ratchet.guard.compare import comparison_report  # this imports torch, and few runs need it

    if "metrics" not in document:
        return ()
    names = {"exit_code", "allowed", "looks_taken", "spent_s", "budget_s", "needed_s", "launches"}
    names |= {"baseline", "new", "answer", "metrics", "warnings", "id"}
    outcome = CompareOutcome(
        titles=(str(document["baseline"]), str(document["new"])),
        answers=msgspec.convert(document["metrics"], tuple[MetricAnswer, ...]),
        exit_code=document["exit_code"],
        allowed=document["allowed"],
        plan=None,
        looks_taken=document["looks_taken"],
        spent_s=document["spent_s"],
        budget_s=document["budget_s"],
        needed_s=document["needed_s"],
        launches=document["launches"],
        samples=(),
        readings=Readings(),
        turn=run.key,
        details={name: value for name, value in document.items() if name not in names},
    )
    report = comparison_report(outcome)
    return m.blocks(
        m.section("Answer", m.Words(report.headline), *report.header, *report.sections),
        _samples(facts, run, COMPARED_ARMS, "one run"),
    )


def _numerics(facts: SiteFacts, run: LedgerRun, document: Payload) -> tuple[m.ReportBlock, ...]:
    from ratchet.guard.numerics.comparison import numerics_report
    from ratchet.guard.numerics.find import NumericsResult

    if "titles" not in document:
        return ()
    own = {name: value for name, value in document.items() if name != "exit_code"}
    report = numerics_report(msgspec.convert(own, NumericsResult))
    return (m.section("Answer", m.Words(report.headline), *report.header, *report.sections),)


def _optimized(facts: SiteFacts, run: LedgerRun, document: Payload) -> tuple[m.ReportBlock, ...]:
    recipes = [one for one in facts.recipes.rows if one.turn == run.key]
    speedups = document.get("speedup") or {}
    recipe_is = RECIPE_IS.get(str(document.get("recipe_is")), "")
    return m.blocks(
        m.Tiles(speedup_tiles(speedups)) if speedups else None,
        m.section(
            "Recipe",
            *(
                m.Words(
                    (
                        facts.links.to("recipe", f"recipe {one.id}", "The recipe"),
                        f" is {recipe_is}." if recipe_is else " was written.",
                    )
                )
                for one in recipes
            ),
            None if recipes else "This turn wrote no recipe.",
        ),
        _samples(facts, run, STEP_ARMS, "step"),
    )


def speedup_tiles(speedups: Mapping[str, Json]) -> list[m.Tile]:
    """Return the ratios of a recipe in large print."""
    found = {name: msgspec.convert(one, Ratio) for name, one in speedups.items() if one}
    return [
        m.Tile(
            show_ratio(one.ratio),
            AGAINST.get(name, name.replace("_", " ")),
            f"interval {show_interval(one.low, one.high)}",
        )
        for name, one in found.items()
    ]


def _samples(
    facts: SiteFacts, run: LedgerRun, styles: Mapping[str, tuple[str, str]], what: str
) -> m.ReportSection | None:
    samples = facts.book.ledger.measurements(run.key)
    plot = figures.dots_plot(samples, styles, what=what)
    if plot is None or not plot.series:
        return None
    said = m.note("In each round every side ran once, in random order. The scale is logarithmic.")
    label = "Every timed sample over the rounds; the legend has the medians"
    return m.section("Raw samples", said, m.Figure("plot", plot, label, "dots"), on="page")


def _written(facts: SiteFacts, run: LedgerRun, document: Payload) -> tuple[m.ReportBlock, ...]:
    rows = facts.book.answers(run.key)
    newest = list({row.kernel_hash: row for row in reversed(rows)}.values())[::-1]
    newest.sort(key=lambda row: (row.stage != "judged", row.status != "proven"))
    verdicts = {one.kernel: one for one in reversed(facts.verdicts.rows)}
    columns = (
        m.name("kernel", lambda row: facts.kernel(row.kernel_hash)),
        m.Column("author", "author", clipped),
        m.Column("stage", "stage", clipped),
        m.Column("answer", "status", status_cell),
        m.Column("verdict", lambda row: verdict_cell(facts, verdicts.get(row.kernel_hash))),
    )
    table = m.ResultTable(columns, newest[:MOST_ROWS])
    return (
        m.section(
            "Kernels",
            table if newest else "No kernel was proposed.",
            left_out("kernels", len(table.rows), len(newest)),
        ),
    )


def _benched(facts: SiteFacts, run: LedgerRun, document: Payload) -> tuple[m.ReportBlock, ...]:
    precision = f"({document.get('device')}, {document.get('precision')})"
    own = [
        one
        for one in facts.series
        if one.series.benchmark == f"{run.title} {precision}" and one.series.device == run.device
    ]
    columns = (
        m.name("series", lambda one: facts.links.to("series", one.series.key, one.series.title)),
        m.Column("now", facts.chip),
    )
    simple = {n: v for n, v in document.items() if isinstance(v, str | int | float) and v != ""}
    commit = facts.links.commit(str(simple.pop("commit", "")))
    rows: list[m.Named] = [(name.replace("_", " "), clipped(_figure(name, value)))
                           for name, value in simple.items()]  # fmt: skip
    versions = document.get("versions")
    return m.blocks(
        m.section("Result", m.Facts([("commit", commit), *rows])),
        m.section("Over commits", m.ResultTable(columns, own)) if own else None,
        m.section("Software", m.Facts([(str(n), clipped(plain(v))) for n, v in versions.items()]))
        if isinstance(versions, dict)
        else None,
    )


def _figure(name: str, value: object) -> str:
    return show_time(value) if name.endswith("_s") and isinstance(value, float) else plain(value)


# Recipes, kernels and verdicts.


def recipe_page(facts: SiteFacts, one: WrittenRecipe) -> m.ResultReport:
    """Describe a recipe: how much faster, what it sets, and the kernels it installs."""
    document = facts.book.payload("recipes", one.id)
    config = document.get("config")
    settings = [(str(n), clipped(plain(v))) for n, v in (config or {}).items()] if isinstance(
        config, dict
    ) else []  # fmt: skip
    run = next((run for run in facts.runs.rows if run.key == one.turn), None)
    known: list[m.Named] = [
        ("workload", clipped(one.workload)),
        ("it is", RECIPE_IS.get(one.recipe_is, "unknown")),
        ("made on", facts.device(one.device)),
        ("date (UTC)", moment(one.at)),
        ("by the run", facts.links.to("run", one.turn, run.title if run else one.turn[:12])),
        ("arithmetic", "changed" if one.changes_arithmetic else "kept"),
        ("checksum", m.Span(str(document.get("checksum", ""))[:80], "code")),
    ]
    try:
        tiles: m.ReportBlock | None = m.Tiles(speedup_tiles(one.speedups))
    except DAMAGED:
        tiles = unreadable("recipe")
    return m.ResultReport(
        title=f"recipe for {clipped(one.workload).text}",
        heading="recipe",
        headline=("Recipe for ", clipped(one.workload), " ", recipe_chip(facts, one)),
        header=m.blocks(m.Facts(known), tiles if one.speedups else None),
        sections=m.blocks(
            m.section(
                "Kernels",
                m.ResultTable(kernel_columns(facts), one.kernels[:MOST_ROWS])
                if one.kernels
                else "It installs no kernel.",
            ),
            m.section("Settings", m.Facts(settings)) if settings else None,
            m.section(
                "Use it", "ratchet optimize wrote it to recipe.json in the folder of its --out."
            ),
        ),
    )


def kernel_page(facts: SiteFacts, one: Named) -> m.ResultReport:
    """Describe a kernel: its source, what the judge said, and where it is used."""
    document = facts.book.payload("kernels", one.id)
    source, schedule = str(document.get("source", "")), document.get("schedule")
    own = facts.by_kernel.get(one.hash, ())
    recipes = [each for each in facts.recipes.rows if one.hash in each.kernels]
    runs = [run for run in facts.runs.rows if run.key in facts.proposals.get(one.hash, ())]
    verdicts, used = but(verdict_columns(facts), "kernel"), but(recipe_columns(facts), "kernels")
    cut = len(source) > MOST_SOURCE
    return m.ResultReport(
        title=clipped(one.name).text,
        heading="kernel",
        headline=clipped(one.name or one.hash),
        header=m.blocks(
            m.Facts(
                [
                    ("language", clipped(str(document.get("language", "")))),
                    ("entry", clipped(str(document.get("entry", "")), look="code")),
                    ("schedule", clipped(_schedule(schedule))),
                    ("hash", m.Span(one.hash[:80], "code")),
                ]
            )
        ),
        sections=m.blocks(
            m.section(
                "Verdicts",
                m.ResultTable(verdicts, own[:MOST_ROWS]) if own else "It has no verdict.",
                left_out("verdicts", len(own[:MOST_ROWS]), len(own)),
            ),
            m.section("Recipes that install it", m.ResultTable(used, recipes[:MOST_ROWS]))
            if recipes
            else None,
            m.section("Runs that proposed it", m.ResultTable(run_columns(facts), runs[:MOST_ROWS]))
            if runs
            else None,
            m.section(
                "Source",
                m.Lines([source[:MOST_SOURCE]], "code"),
                m.note("The rest of the source is too long for a page.") if cut else None,
            )
            if source
            else None,
        ),
    )


def _schedule(found: Json) -> str:
    """Return the parameters of a schedule, which the ledger keeps as pairs."""
    pairs = [one for one in found if isinstance(one, list)] if isinstance(found, list) else []
    return ", ".join(" ".join(map(str, one)) for one in pairs) or plain(found)


def verdict_page(facts: SiteFacts, one: Judged) -> m.ResultReport:
    """Describe a verdict as `ratchet judge` does, with links to what it is about."""
    known: list[m.Named] = [
        ("kernel", facts.kernel(one.kernel)),
        ("problem", clipped(facts.problem_name(one.problem))),
        ("judged on", facts.device(one.device)),
        ("date (UTC)", moment(one.at)),
    ]
    try:
        report = _verdict(facts, one)
    except DAMAGED:
        report = m.ResultReport(
            title=f"verdict {one.id}",
            heading="verdict",
            headline=status_cell(one.status),
            sections=(unreadable("verdict"),),
        )
    return replace(report, header=(m.Facts(known), *report.header))


def _verdict(facts: SiteFacts, one: Judged) -> m.ResultReport:
    document = facts.book.payload("verdicts", one.id)
    trial = document.pop("trial", {})
    kernel = facts.book.ledger.kernel(one.kernel)
    problem = facts.book.ledger.problem(one.problem)
    if kernel is None or problem is None:
        raise ValueError("the ledger lacks what the verdict is about")
    return verdict_report(
        JudgedKernel(
            verdict=msgspec.convert(document, Verdict),
            kernel=Kernel.from_json(kernel),
            problem=Problem.from_json(problem),
            judged_at=str(trial.get("judged_at", one.at)),
            recalled=False,
        )
    )


def device_page(facts: SiteFacts, device: str) -> m.ResultReport:
    """Describe a device: what it is, and what was measured on it."""
    known = facts.devices.get(device)

    def of_device(every: CountedRows) -> Sequence[Any]:
        return [one for one in every.rows if one.device == device]

    rows: dict[str, tuple[Sequence[Any], Sequence[m.Column]]] = {
        "series": (
            [one for one in facts.series if one.series.device == device],
            series_columns(facts),
        ),
        "runs": (of_device(facts.runs), run_columns(facts)),
        "recipes": (of_device(facts.recipes), recipe_columns(facts)),
        "verdicts": (of_device(facts.verdicts), verdict_columns(facts)),
    }
    facts_of_it = [(str(n).replace("_", " "), clipped(plain(v))) for n, v in (known or {}).items()]
    return m.ResultReport(
        title=clipped(facts.device_name(device)).text,
        heading="device",
        headline=clipped(facts.device_name(device)),
        header=m.blocks(
            m.Facts([("fingerprint", m.Span(device[:80], "code"))])
            if known
            else "The name is that of an imported file: nothing else is known of the machine."
        ),
        sections=m.blocks(
            *(
                m.section(
                    name.capitalize(),
                    m.ResultTable(
                        but(columns, "measured on", "made on", "judged on"), own[:MOST_ROWS]
                    ),
                    left_out(name, len(own[:MOST_ROWS]), len(own)),
                )
                for name, (own, columns) in rows.items()
                if own
            ),
            m.section("The machine", m.Facts(facts_of_it), closed=True) if facts_of_it else None,
        ),
    )
