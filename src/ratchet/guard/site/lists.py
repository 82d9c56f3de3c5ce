"""The overview, the matrices, and the lists of series, runs, recipes, kernels and verdicts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from ratchet.base.show import model as m
from ratchet.base.show.words import counted, show_ratio
from ratchet.guard.history import AnalysedSeries
from ratchet.guard.history.plot import shift_words, short_revision
from ratchet.guard.history.show import (
    WAITING,
    among_words,
    series_of_incident,
    shifts_words,
    state_cell,
)
from ratchet.guard.site.book import Judged, WrittenRecipe
from ratchet.guard.site.facts import SiteFacts, fault_words, left_out
from ratchet.guard.site.links import MOST_LETTERS, clipped, list_page, moment, paged
from ratchet.judge.court.show import show_status, tone

NEWEST: Final = 15  # Rows of each table of the overview
MOST_DEVICES: Final = 8  # Columns of a matrix
MOST_COMMITS: Final = 24
MOST_BENCHMARKS: Final = 120  # Rows of a matrix
MOST_CHIPS: Final = 6
Pages = Mapping[str, Callable[[], m.ResultReport]]
NOTHING: Final = (
    "This ledger holds nothing yet. ratchet bench, optimize, judge, compare and write fill it, "
    "ratchet history import takes results of other tools."
)


def overview(facts: SiteFacts) -> m.ResultReport:
    """Describe what got slower, what was proven, and what was measured where, newest first."""
    waiting = [one for one in facts.incidents if one.state in WAITING]
    proven = [one for one in facts.verdicts.rows if one.status == "proven"]
    regressed = sum(one.regressed for one in facts.series)
    needs = "needs" if len(waiting) == 1 else "need"
    headline = f"{counted(len(waiting), 'incident')} {needs} somebody"
    headline = headline if waiting else "No incident is open"
    empty = not (facts.series or facts.runs.rows or facts.verdicts.rows or facts.recipes.rows)
    benchmarks = _benchmarks(facts)
    return m.ResultReport(
        title="Overview",
        heading="what was measured",
        headline="Nothing was measured yet" if empty else headline,
        header=m.blocks(
            NOTHING if empty else None,
            m.Tiles(
                [
                    m.Tile(str(len(waiting)), "incidents open", "commits that need somebody"),
                    m.Tile(str(regressed), "series regressed", f"of {facts.every_series:,}"),
                    m.Tile(str(len(proven)), "proofs", f"of {facts.verdicts.every:,} verdicts"),
                    m.Tile(str(len(facts.machines)), "devices", f"{facts.results:,} results"),
                ]
            )
            if not empty
            else None,
        ),
        sections=m.blocks(
            m.section(
                "What got slower",
                m.ResultTable(_incidents(facts), waiting[:NEWEST])
                if waiting
                else "Nothing: no incident is open.",
                _rest("incidents", "incidents", len(waiting[:NEWEST]), len(facts.incidents)),
            ),
            _proven(facts, proven),
            m.section(
                "What was measured, newest first",
                m.ResultTable(_benchmark_columns(facts), benchmarks[:NEWEST]),
                _rest("benchmarks", "matrix", len(benchmarks[:NEWEST]), len(benchmarks)),
            )
            if benchmarks
            else None,
            m.section(
                "Runs, newest first",
                m.ResultTable(run_columns(facts), facts.runs.rows[:NEWEST]),
                _rest("runs", "runs", min(NEWEST, len(facts.runs.rows)), facts.runs.every),
            )
            if facts.runs.rows
            else None,
            fault_words(facts),
        ),
    )


def _rest(what: str, kind: str, shown: int, every: int) -> m.Words | None:
    if shown >= every:
        return None
    href = list_page(kind)
    return m.note((f"{shown:,} of {every:,} {what}: ", m.Span("see them all", href=href)))


def _proven(facts: SiteFacts, proven: Sequence[Judged]) -> m.ReportSection:
    verdicts = m.ResultTable(verdict_columns(facts), proven[:NEWEST])
    kept = [one for one in facts.recipes.rows if one.recipe_is == "proven"]
    recipes = m.ResultTable(recipe_columns(facts), kept[:NEWEST])
    return m.section(
        "What was proven",
        m.section("Recipes", recipes) if recipes.rows else None,
        m.section("Kernels", verdicts) if verdicts.rows else None,
        None if recipes.rows or verdicts.rows else "Nothing was proven yet.",
        _rest("proven recipes", "recipes", len(recipes.rows), len(kept)),
        _rest("proofs", "verdicts", len(verdicts.rows), len(proven)),
    )


def _incidents(facts: SiteFacts) -> tuple[m.Column, ...]:
    return (
        m.Column("incident", lambda one: facts.links.to("incident", one.id, one.id)),
        m.Column("state", lambda one: state_cell(one.state)),
        m.Column("commit", lambda one: (facts.links.commit(one.revision), f" {among_words(one)}")),
        m.Column("date (UTC)", lambda one: moment(one.committed_at)),
        m.number("worst", lambda one: shift_words(one.series[0].shift) if one.series else ""),
        m.why(
            "series",
            lambda one: series_of_incident(one, facts.series_link),
        ),
    )


def incidents_page(
    facts: SiteFacts, rows: Sequence[Any], turner: m.ReportBlock | None
) -> m.ResultReport:
    """List the incidents of every state, the newest first."""
    table = m.ResultTable(
        _incidents(facts), rows, marked=lambda one: "" if one.state in WAITING else "soft"
    )
    return _listing("incidents", "Incidents", len(facts.incidents), table, turner)


# What was measured where: a benchmark on a device, with the series of its metrics.

Benchmark = tuple[str, str, Sequence[AnalysedSeries]]


def _benchmarks(facts: SiteFacts) -> list[Benchmark]:
    """Return each benchmark on each device with its series, those measured last first."""
    found: dict[tuple[str, str], list[AnalysedSeries]] = defaultdict(list)
    for one in facts.series:
        found[one.series.benchmark, one.series.device].append(one)
    ordered = sorted(found.items(), key=lambda each: _newest(each[1]), reverse=True)
    return [(benchmark, device, own) for (benchmark, device), own in ordered]


def _newest(own: Iterable[AnalysedSeries]) -> str:
    return max((one.series.times[-1] for one in own if one.series.times), default="")


def _benchmark_columns(facts: SiteFacts) -> tuple[m.Column, ...]:
    def commit(row: Benchmark) -> m.Span:
        last = max(row[2], key=lambda one: _newest([one]))
        revisions = last.series.revisions
        return facts.links.commit(revisions[-1] if revisions else "")

    return (
        m.name("benchmark", lambda row: clipped(row[0])),
        m.Column("measured on", lambda row: facts.device(row[1])),
        m.Column("now", lambda row: _chips(facts, row[2])),
        m.Column("commit", commit),
        m.Column("date (UTC)", lambda row: moment(_newest(row[2]))),
    )


def _chips(facts: SiteFacts, own: Sequence[AnalysedSeries]) -> m.Inline:
    """Return the series of one cell, each in the colour of its last decided change."""
    found: list[str | m.Span] = []
    for one in own[:MOST_CHIPS]:
        found += [" " if found else "", facts.chip(one, one.series.metric_words)]
    more = len(own) - MOST_CHIPS
    return (*found, f" and {more} more") if more > 0 else tuple(found)


MEANS: Final = (
    "Red is worse, green better, violet moved with its environment, and grey did not change. Only "
    "a change that is too clear for chance has a colour."
)


def matrix(facts: SiteFacts) -> m.ResultReport:
    """Describe each benchmark on each device, and at each of the newest commits."""
    benchmarks = _benchmarks(facts)
    names = list(dict.fromkeys(benchmark for benchmark, _, _ in benchmarks))
    own = {(benchmark, device): series for benchmark, device, series in benchmarks}
    devices = list(dict.fromkeys(device for _, device, _ in benchmarks))

    def cell(name: str, device: str) -> m.Inline | None:
        return _chips(facts, own[name, device]) if (name, device) in own else None

    columns = [m.name("benchmark", clipped), *_by_device(facts, devices[:MOST_DEVICES], cell)]
    return m.ResultReport(
        title="Matrix",
        heading="matrix",
        headline=f"{counted(len(names), 'benchmark')} on {counted(len(devices), 'device')}",
        sections=m.blocks(
            m.section(
                "Benchmarks by device",
                m.note(MEANS),
                m.ResultTable(columns, names[:MOST_BENCHMARKS]) if names else "No results yet.",
                left_out("devices", len(devices[:MOST_DEVICES]), len(devices)),
                left_out("benchmarks", len(names[:MOST_BENCHMARKS]), len(names)),
            ),
            _by_commit(facts, benchmarks) if benchmarks else None,
            _recipes_by_device(facts),
        ),
    )


def _by_device(
    facts: SiteFacts, devices: Iterable[str], cell: Callable[[str, str], m.Inline | None]
) -> Iterable[m.Column]:
    """Yield a column for each device; `cell` has the row's name and the device."""

    def of(device: str) -> m.Column:
        name, href = facts.device_name(device)[:MOST_LETTERS], facts.links.href("device", device)
        return m.Column(name, lambda row: cell(row, device), href=href)

    return map(of, devices)


def _by_commit(facts: SiteFacts, benchmarks: Sequence[Benchmark]) -> m.ReportSection:
    times: dict[str, str] = {}
    for one in facts.series:
        for revision, time in zip(one.series.revisions, one.series.times, strict=True):
            if revision:
                times[revision] = max(times.get(revision, ""), time)
    every = sorted(times, key=lambda one: (times[one], one))
    moved = {one.series.revisions[shift.index] for one in facts.series for shift in one.shifts}
    newest = every[-MOST_COMMITS // 2 :]
    earlier = [one for one in every[: -len(newest)] if one in moved] if newest else []
    room = MOST_COMMITS - len(newest)
    commits = [*earlier[-room:], *newest]
    places = {revision: at for at, revision in enumerate(commits)}
    rows = benchmarks[:MOST_BENCHMARKS]
    cells = [_commit_cells(facts, own, places) for _, _, own in rows]
    several = len({device for _, device, _ in rows}) > 1

    def title(at: int) -> m.Inline:
        name, device, _ = rows[at]
        where = m.Span(f" {facts.device_name(device)}"[:MOST_LETTERS], "soft")
        return (clipped(name), where) if several else clipped(name)

    columns = [
        m.name("benchmark", title),
        *(
            m.Column(
                "".join(short_revision(revision).partition("+")[:2])[:12],
                partial(lambda at, revision: cells[at].get(revision, ""), revision=revision),
                note=f"{revision[:80]} {moment(times[revision]).text}",
                href=facts.links.forge(revision),
            )
            for revision in commits
        ),
    ]
    if not commits:
        return m.section("Benchmarks by commit", "No result names its commit.")
    return m.section(
        "Benchmarks by commit",
        m.note(
            "The newest commits are on the right, with those before them at which something "
            "changed. A dot was measured and did not change."
        ),
        m.ResultTable(columns, range(len(rows)), look="grid"),
        left_out("commits", len(commits), len(every)),
        left_out("benchmarks", len(rows), len(benchmarks)),
    )


def _commit_cells(
    facts: SiteFacts, own: Sequence[AnalysedSeries], places: Mapping[str, int]
) -> dict[str, m.Span]:
    """Return what happened to a benchmark at each commit: a change of its metrics, or none."""
    found: dict[str, m.Span] = {}
    for one in reversed(own):  # that of the first, the most urgent, wins
        href = facts.links.href("series", one.series.key)
        for revision in one.series.revisions:
            if revision in places:
                found.setdefault(revision, m.Span("•", "", "measured, no change", href))
    for one in reversed(own):
        href = facts.links.href("series", one.series.key)
        for shift in one.shifts:
            revision = one.series.revisions[shift.index]
            if revision in places:
                said = f"{one.series.title}: {shift.kind} {shift_words(shift)}"
                found[revision] = m.Span(
                    shift_words(shift)[:12], f"chip {shift.kind}", said[:200], href
                )
    return found


def _recipes_by_device(facts: SiteFacts) -> m.ReportSection | None:
    newest: dict[tuple[str, str], WrittenRecipe] = {}
    for one in facts.recipes.rows:
        newest.setdefault((one.workload, one.device), one)
    if not newest:
        return None
    devices = list(dict.fromkeys(device for _, device in newest))[:MOST_DEVICES]
    workloads = list(dict.fromkeys(workload for workload, _ in newest))[:MOST_BENCHMARKS]

    def cell(workload: str, device: str) -> m.Span | None:
        one = newest.get((workload, device))
        return None if one is None else recipe_chip(facts, one)

    columns = [m.name("workload", clipped), *_by_device(facts, devices, cell)]
    said = m.note("Each cell is the newest recipe against the step as written.")
    return m.section("Recipes by device", said, m.ResultTable(columns, workloads))


RECIPE_IS: Final = {
    "proven": "proven faster",
    "rival": "torch's own settings",
    "as_written": "the step as written",
}


def recipe_chip(facts: SiteFacts, one: WrittenRecipe) -> m.Span:
    """Return a recipe's speed-up over the step as written, green if a turn proved the recipe."""
    ratio = one.speedups.get("vs_written")
    value = ratio.get("ratio") if isinstance(ratio, dict) else None
    text = show_ratio(value) if isinstance(value, float) else "no speed-up"
    look = f"chip {'improvement' if one.recipe_is == 'proven' else 'quiet'}"
    said = RECIPE_IS.get(one.recipe_is, "")
    return m.Span(text, look, said, facts.links.href("recipe", f"recipe {one.id}"))


# The lists.


def run_columns(facts: SiteFacts) -> tuple[m.Column, ...]:
    return (
        m.Column("command"),
        m.name("of", lambda one: facts.links.to("run", one.key, one.title or one.key)),
        m.Column("ended", "state", lambda state: m.Span(state, "no" if state == "failed" else "")),
        m.Column("measured on", lambda one: facts.device(one.device)),
        m.Column("date (UTC)", lambda one: moment(one.at)),
    )


def verdict_cell(facts: SiteFacts, one: Judged | None) -> m.Span | None:
    """Return a verdict in its colour, linked to its page."""
    if one is None:
        return None
    href = facts.links.href("verdict", f"verdict {one.id}")
    return m.Span(show_status(one.status), tone(one.status), href=href)


def but(columns: Sequence[m.Column], *titles: str) -> tuple[m.Column, ...]:
    """Return the columns of a list for a page that says these of all rows."""
    return tuple(one for one in columns if one.title not in titles)


def verdict_columns(facts: SiteFacts) -> tuple[m.Column, ...]:
    return (
        m.Column("verdict", partial(verdict_cell, facts)),
        m.name("kernel", lambda one: facts.kernel(one.kernel)),
        m.name("problem", lambda one: clipped(facts.problem_name(one.problem))),
        m.Column("judged on", lambda one: facts.device(one.device)),
        m.Column("date (UTC)", lambda one: moment(one.at)),
    )


def recipe_columns(facts: SiteFacts) -> tuple[m.Column, ...]:
    return (
        m.name(
            "workload",
            lambda one: facts.links.to("recipe", f"recipe {one.id}", one.workload or "unknown"),
        ),
        m.Column("against the step as written", lambda one: recipe_chip(facts, one)),
        m.Column("it is", lambda one: RECIPE_IS.get(one.recipe_is, "unknown")),
        m.Column("arithmetic", lambda one: "changed" if one.changes_arithmetic else "kept"),
        m.number("kernels", lambda one: str(len(one.kernels))),
        m.Column("made on", lambda one: facts.device(one.device)),
        m.Column("date (UTC)", lambda one: moment(one.at)),
    )


def kernel_columns(facts: SiteFacts) -> tuple[m.Column, ...]:
    def verdict(hash: str) -> m.Span | None:
        return verdict_cell(facts, next(iter(facts.by_kernel.get(hash, ())), None))

    return (
        m.name("kernel", facts.kernel),
        m.Column("newest verdict", verdict),
        m.number("verdicts", lambda hash: str(len(facts.by_kernel.get(hash, ())))),
    )


def _device_columns(facts: SiteFacts) -> tuple[m.Column, ...]:
    series: dict[str, int] = defaultdict(int)
    for one in facts.series:
        series[one.series.device] += 1
    runs: dict[str, int] = defaultdict(int)
    for run in facts.runs.rows:
        runs[run.device] += 1
    return (
        m.name("device", facts.device),
        m.number("series", lambda one: f"{series[one]:,}"),
        m.number("runs", lambda one: f"{runs[one]:,}"),
    )


def series_columns(facts: SiteFacts) -> tuple[m.Column, ...]:
    return (
        m.name("benchmark", lambda one: clipped(one.series.benchmark)),
        m.Column("now", lambda one: facts.chip(one, one.series.metric_words)),
        m.Column("measured on", lambda one: facts.device(one.series.device)),
        m.number("results", lambda one: f"{len(one.series.values):,}"),
        m.why("what changed", lambda one: clipped(shifts_words(one))),
        m.Column("newest", lambda one: moment(_newest([one]))),
    )


def _listing(
    kind: str,
    title: str,
    every: int,
    table: m.ResultTable,
    turner: m.ReportBlock | None,
    *more: m.Given,
) -> m.ResultReport:
    none = "There are none yet."
    return m.ResultReport(
        title=title,
        heading=kind,
        headline=f"{title}: {every:,}",
        sections=m.blocks(m.section(title, turner, table if table.rows else none, turner), *more),
    )


def list_pages(facts: SiteFacts) -> Pages:
    every: dict[str, tuple[str, Sequence[Any], int, tuple[m.Column, ...]]] = {
        "series": ("Series", facts.series, facts.every_series, series_columns(facts)),
        "runs": ("Runs", facts.runs.rows, facts.runs.every, run_columns(facts)),
        "recipes": ("Recipes", facts.recipes.rows, facts.recipes.every, recipe_columns(facts)),
        "kernels": (
            "Kernels",
            [one.hash for one in facts.kernels],
            facts.every_kernel,
            kernel_columns(facts),
        ),
        "verdicts": (
            "Verdicts",
            facts.verdicts.rows,
            facts.verdicts.every,
            verdict_columns(facts),
        ),
        "devices": ("Devices", facts.machines, len(facts.machines), _device_columns(facts)),
    }

    def page(kind: str, rows: Sequence[Any], turner: m.ReportBlock | None) -> m.ResultReport:
        title, own, count, columns = every[kind]
        order = "; the changed ones come first" if kind == "series" else "; they are the newest"
        more = left_out(title.lower(), len(own), count, order)
        return _listing(kind, title, count, m.ResultTable(columns, rows), turner, more)

    found: dict[str, Callable[[], m.ResultReport]] = {
        "index.html": partial(overview, facts),
        "matrix.html": partial(matrix, facts),
        **paged("incidents", facts.incidents, partial(incidents_page, facts)),
    }
    for kind, (_, own, _, _) in every.items():
        found |= paged(kind, own, partial(page, kind))
    return found
