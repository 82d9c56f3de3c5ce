"""One verdict: its evidence, its speed-up, and what the kernel compiles to and does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ratchet.base import Json
from ratchet.base.show import figures
from ratchet.base.show import model as m
from ratchet.base.show.model import WHERE, facts_of
from ratchet.base.show.words import (
    ABSENT,
    sentence,
    show_bytes,
    show_interval,
    show_moment,
    show_ratio,
    show_time,
)
from ratchet.judge.court.show_emulated import estimate_section, heat_section
from ratchet.judge.verdict import PredictedTime

if TYPE_CHECKING:
    from ratchet.base.measure import Ratio
    from ratchet.judge.kernels.kernel import Kernel
    from ratchet.judge.problems.case import TensorSpec
    from ratchet.judge.problems.problem import Problem
    from ratchet.judge.terms import JudgedKernel
    from ratchet.judge.verdict import Evidence, Speedups, TimedSample, Verdict


# A kernel's compiled code: one table per kernel, with the targets side by side.

_REGISTERS = {"VGPR": "vgprs", "AGPR": "agprs", "SGPR": "sgprs", "registers": "registers"}


def static_section(document: Mapping[str, Json] | None) -> m.ReportSection | None:
    """Return every table of a profile, if there is one."""
    said = m.note(
        "Cross-compiled without a GPU from the launches that the kernel actually made. Times are "
        "estimates, not measurements."
    )
    tables = static_tables(document)
    return m.section("Compiled code", said, *tables) if tables else None


def static_tables(document: Mapping[str, Json] | None) -> list[m.ReportSection]:
    """Return one table per kernel, one of all bounds, and the errors; none without a profile.

    For an autotuned kernel, only the configurations that were kept have a table.
    """
    if not document or "targets" not in document:
        return []
    targets: Mapping[str, Mapping[str, Json]] = document["targets"]
    parts = [_kernel(key, targets) for key in _kept(targets)]
    bounds = [bound for found in targets.values() for bound in found.get("bounds", ())]
    if bounds:
        parts.append(_bounds(bounds, document))
    missing = list(_target_notes(targets))
    return [*parts, m.section("Not shown", *_notes(missing))] if missing else parts


def _notes(said: Sequence[str]) -> list[m.Words]:
    return [m.Words(f"note: {one}", "note") for one in said if one]


def _key(kernel: Mapping[str, Json]) -> str:
    """Return a kernel's identity across targets: its name, constants, warps and stages."""
    constants = {**kernel.get("constants", {})}
    if kernel.get("num_warps") is not None:
        constants["warps"] = kernel["num_warps"]
    if kernel.get("num_stages") is not None:
        constants["stages"] = kernel["num_stages"]
    shown = ", ".join(f"{name} {value}" for name, value in constants.items())
    return f"{kernel['name']} ({shown})" if shown else str(kernel["name"])


def _kept(targets: Mapping[str, Mapping[str, Json]]) -> list[str]:
    """Return the kernels that the entry launches after tuning."""
    return list(
        dict.fromkeys(
            _key(kernel)
            for found in targets.values()
            for kernel in found.get("kernels", ())
            if _is_kept(kernel)
        )
    )


def _is_kept(kernel: Mapping[str, Json]) -> bool:
    return bool(kernel.get("launches", 1)) or not kernel.get("tuned", False)


def _kernel(key: str, targets: Mapping[str, Mapping[str, Json]]) -> m.ReportSection:
    found = {
        name: next((one for one in target.get("kernels", ()) if _key(one) == key), None)
        for name, target in targets.items()
    }
    here = {name: one for name, one in found.items() if one is not None}
    facts = {name: dict(_facts(one)) for name, one in here.items()}
    rows = dict.fromkeys(fact for one in facts.values() for fact in one)
    shown = [(fact, *(one.get(fact, ABSENT) for one in facts.values())) for fact in rows]
    said = [f"{name}: {one_note}" for name, one in here.items() for one_note in one["notes"]]
    titles = ("", *here)
    return m.section(key, m.grid(titles, shown, left=len(titles)), *_notes(said))


def _facts(one: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    for name, key in _REGISTERS.items():
        if key in one:
            yield name, _count(one[key])
    yield "spills", _count(one.get("spills"))
    yield "LDS", _size(one.get("lds_bytes"))
    if "scratch_bytes" in one:
        yield "scratch", _size(one["scratch_bytes"])
    yield "waves", f"{_count(one.get('occupancy_waves'))} of {one.get('max_waves', ABSENT)}"
    yield "limited by", str(one.get("occupancy_limit") or ABSENT)
    yield "matrix", _matrix(one.get("matrix_instructions", ()))
    yield "load bits", _widths(one.get("global_load_bits", {}))
    yield "store bits", _widths(one.get("global_store_bits", {}))
    mca = one.get("mca") or {}
    if "cycles_per_pass" in mca:
        yield "cycles a pass", f"{mca['cycles_per_pass']:,.0f}"
        yield "busiest unit", str(mca.get("critical_resource") or ABSENT)


def _target_notes(targets: Mapping[str, Mapping[str, Json]]) -> Iterator[str]:
    """Return what targets have to say; those that say the same share a note."""
    said: dict[str, list[str]] = {}
    for name, found in targets.items():
        tried = sum(not _is_kept(one) for one in found.get("kernels", ()))
        told = {
            "": found.get("error"),
            "configurations that tuning tried and did not keep: ": tried,
            "no predicted time: ": found.get("no_prediction"),
            "configurations that were not compiled: ": found.get("skipped_configs"),
        }
        for words, what in told.items():
            if what:
                said.setdefault(f"{words}{what}", []).append(name)
    return (f"{', '.join(names)}: {words}" for words, names in said.items())


def _size(size_bytes: int | None) -> str:
    return show_bytes(size_bytes) if size_bytes else _count(size_bytes)


def _count(value: object) -> str:
    return ABSENT if value is None else str(value)


def _matrix(rows: Sequence[Mapping[str, Json]]) -> str:
    """Return each matrix instruction by its shape, or by its name if the shape is unknown."""
    shown = []
    for row in rows:
        shape = "x".join(str(extent) for extent in row.get("shape", ()))
        name = f"{shape} {row['in_type']}" if shape else str(row["name"])
        shown.append(f"{row['count']} × {name}")
    return ", ".join(shown) or ABSENT


def _widths(widths: Mapping[str, int]) -> str:
    return ", ".join(f"{count} × {bits}" for bits, count in widths.items()) or ABSENT


def _bounds(bounds: Sequence[Mapping[str, Json]], document: Mapping[str, Json]) -> m.ReportSection:
    formulas = dict.fromkeys(str(bound["formula"]) for bound in bounds)
    predicted = [bound.get("predicted") for bound in bounds]
    columns: dict[str, list[str]] = {
        "device": [str(bound["device"]) for bound in bounds],
        "time": [show_time(bound["time_s"]) for bound in bounds],
        "predicted": [PredictedTime(**one).words if one else ABSENT for one in predicted],
        "matrix": [show_time(one) if (one := bound["matrix_s"]) else ABSENT for bound in bounds],
        "memory": [show_time(bound["memory_s"]) for bound in bounds],
        "limit": [str(bound["limit"]) for bound in bounds],
    }
    if not any(predicted):
        del columns["predicted"]
    rows = list(zip(*columns.values(), strict=True))
    table = m.grid(tuple(columns), rows, left=len(columns))
    said = _notes([*formulas, str(document.get("assumes", ""))])
    return m.section("No faster than (estimate)", table, *said)


MEANING = {
    "proven": "right on every case, and faster than the reference",
    "correct": "right on every case, but not proven to be faster",
    "wrong": "an answer is wrong",
    "cheating": "it tried to pass without doing the work",
    "crashed": "its process died, or it raised an error",
    "timed_out": "it was too slow",
    "refused": "the problem or the source cannot be judged",
    "unmeasured": "the judge could not finish; this says nothing about the kernel",
    "unanswered": "there is no kernel for this problem",
    "not_reached": "the run ended before this problem",
}
NO_FILES: Final[Mapping[str, str]] = {}
RIVALS = {"vs_reference": "the reference (eager)", "vs_compile": "torch.compile"}
_ARMS = {
    "reference": ("as_written", "the reference"),
    "reference again": ("twin", "the reference again (A/A)"),
    "torch.compile": ("best_compile", "torch.compile of the reference"),
    "candidate": ("ratchet", "the kernel"),
}
_MORE_STYLES = ("same_arithmetic", "best_compile_same")


def show_passed(passed: bool) -> m.Span:
    """Format whether a check passed, so that a failure stands out."""
    return m.Span("yes", "yes") if passed else m.Span("NO", "no")


EVIDENCE = (
    m.name("check"),
    m.Column("passed", "passed", show_passed),
    m.why("detail"),
)
"""The columns of a verdict's checks, on the terminal and on every page."""
CASES = (
    m.name("case", "name"),
    m.Column("", "timed", lambda timed: "timed" if timed else ""),
    m.Column("inputs", "inputs", lambda specs: ", ".join(map(_input, specs))),
)


def verdict_report(judged: JudgedKernel, paths: Mapping[str, str] = NO_FILES) -> m.ResultReport:
    """Describe a verdict, and the files that were written."""
    verdict, kernel, problem = judged.verdict, judged.kernel, judged.problem
    status, tier = show_status(verdict.status), verdict.environment.get("tier")
    sections = m.blocks(
        evidence_section("Evidence", verdict.evidence),
        _samples(verdict.samples),
        estimate_section(verdict.emulated),
        heat_section(verdict.emulated, kernel.source),
        static_section(verdict.static),
        _judged(verdict, kernel, problem),
        m.section(WHERE, m.Facts(facts_of(verdict.environment)), on="page"),
        m.written(paths),
    )
    return m.ResultReport(
        title=f"{problem.name}, {status}",
        heading=f"verdict on {kernel.name} for {problem.name}",
        headline=(m.Span(sentence(status), tone(verdict.status)), f": {verdict.reason}"),
        header=(
            m.Words(f"{sentence(status)} means: {MEANING[verdict.status]}.", "soft"),
            *([m.Words(recalled_words(judged.judged_at), "soft")] if judged.recalled else []),
            m.Words(
                f"judged {show_moment(judged.judged_at)}{f' · tier {tier}' if tier else ''} · "
                f"isolation: {verdict.isolation}",
                "soft",
            ),
            m.Tiles(speedup_tiles(verdict.speedup)),
        ),
        sections=sections,
    )


def alone_report(verdict: Verdict) -> m.ResultReport:
    """Describe a verdict without its kernel and problem, for a notebook."""
    status = show_status(verdict.status)
    return m.ResultReport(
        title=status,
        heading=f"verdict on kernel {short_hash(verdict.kernel_hash)}",
        headline=(m.Span(sentence(status), tone(verdict.status)), f": {verdict.reason}"),
        header=(
            m.Words(f"{sentence(status)} means: {MEANING[verdict.status]}.", "soft"),
            m.Tiles(speedup_tiles(verdict.speedup)),
        ),
        sections=m.blocks(
            evidence_section("Evidence", verdict.evidence),
            _samples(verdict.samples),
            estimate_section(verdict.emulated),
            static_section(verdict.static),
        ),
    )


def evidence_section(title: str, evidence: Sequence[Evidence]) -> m.ReportSection:
    """Return the checks of a verdict, in their order."""
    return m.section(
        title,
        m.note(
            "The checks, in order. A check that was never reached is not listed and does not count "
            "as passed."
        ),
        m.ResultTable(EVIDENCE, evidence) if evidence else "Nothing was checked.",
    )


def speedup_tiles(speedup: Speedups, confirmed: str = "") -> list[m.Tile]:
    """Return how fast the kernel is against each rival, in large print."""
    return [
        m.Tile(
            show_ratio(ratio.ratio),
            f"against {title}",
            f"{confirmed}{show_confidence(ratio)} {show_interval(ratio.low, ratio.high)}",
        )
        for title, ratio in measured_speedups(speedup)
    ] or [m.Tile(ABSENT, "no speed-up", "nothing was timed, or the times do not count")]


def _samples(samples: Sequence[TimedSample]) -> m.ReportSection | None:
    cases = dict.fromkeys(sample.case for sample in samples)
    arms = dict.fromkeys(sample.arm for sample in samples)
    unknown = [arm for arm in arms if arm not in _ARMS]
    more = zip(unknown, _MORE_STYLES * len(unknown), strict=False)
    styles = _ARMS | {arm: (style, arm) for arm, style in more}
    plots = []
    for case in cases:
        own = [sample for sample in samples if sample.case == case]
        plot = figures.dots_plot(own, styles, what="one call")
        label = "Every timed batch over the rounds; the legend has the medians"
        plots.append(m.section(case, m.Figure("plot", plot, label, "dots")))
    if not plots:
        return None
    said = m.note(
        "Every timed batch, as the time of one call by the judge's clock. In each round every arm "
        "ran once, in random order. The scale is logarithmic."
    )
    return m.section("Raw samples", said, *plots, on="page")


def _judged(verdict: Verdict, kernel: Kernel, problem: Problem) -> m.ReportSection:
    libraries = ", ".join(problem.libraries)
    own = f"in the kernel's own code{f'; library {libraries} allowed' if libraries else ''}"
    work = own if problem.task == "own" else "anywhere, libraries included"
    named = f"{kernel.name}, {kernel.language}, entry "
    visible = [case for case in problem.cases if not case.hidden]
    hash = m.Span(short_hash(verdict.kernel_hash), "code")
    facts: list[tuple[str, m.Inline]] = [
        ("problem", (f"{problem.name} ", m.Span(short_hash(verdict.problem_hash), "code"))),
        ("the work must run", work),
        ("kernel", (named, m.Span(kernel.entry, "code"), " ", hash)),
    ]
    return m.section(
        "The problem and the kernel",
        m.Facts(facts),
        m.section("Visible cases", m.ResultTable(CASES, visible)) if visible else None,
        m.section("the kernel's source", m.Lines([kernel.source]), closed=True),
        on="page",
    )


def _input(spec: TensorSpec) -> str:
    layout = "" if spec.layout == "contiguous" else f" {spec.layout}"
    shape = " × ".join(str(extent) for extent in spec.shape) or "scalar"
    return f"{spec.dtype} {shape}{layout}"


def show_status(status: str) -> str:
    return status.replace("_", " ")


def status_cell(status: str) -> m.Span:
    return m.Span(show_status(status), tone(status))


def tone(status: str) -> str:
    """Return a status's tone for colouring: `yes`, `no`, or empty for neither."""
    if status == "proven":
        return "yes"
    neither = ("correct", "screened", "unanswered", "not_judged", "not_reached", "none")
    return "" if status in neither else "no"


def show_speedup(ratio: Ratio) -> str:
    return f"{show_ratio(ratio.ratio)} ({show_interval(ratio.low, ratio.high)})"


def show_confidence(ratio: Ratio) -> str:
    """Format the confidence as `98.3 % interval`; old verdicts without one give `interval`."""
    if ratio.confidence is None:
        return "interval"
    return f"{100 * ratio.confidence:.3g} % interval"


def measured_speedups(speedup: Speedups) -> list[tuple[str, Ratio]]:
    """Return each rival that the kernel was timed against, with the ratio."""
    found = ((title, getattr(speedup, key)) for key, title in RIVALS.items())
    return [(title, ratio) for title, ratio in found if ratio is not None]


def recalled_words(judged_at: str) -> str:
    """Say that a verdict is not of this run."""
    return f"from the ledger, judged {show_moment(judged_at)}; not judged again"


def short_hash(hash: str) -> str:
    """Return a hash's first digits, enough to find it in the ledger."""
    return hash[:12]
