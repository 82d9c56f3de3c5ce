"""Problems for kernel authors: the suite's list, and one problem in full."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from ratchet.base import Json
from ratchet.base.show import model as m
from ratchet.judge.problems.card import ANSWER, ProblemCard, TensorForm
from ratchet.judge.problems.problem import JUDGED_AT, Problem
from ratchet.judge.problems.templates import SUFFIXES, show_tensor

SHORT: Final = {"bfloat16": "bf16", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}
TASKS: Final = {
    "own": "own: the work must run in the kernel's own code",
    "any": "any: a library may do the work",
}


LISTED: Final = (
    m.name("problem", "name"),
    m.Column("family"),
    m.Column("task"),
    m.Column("inputs", "inputs", lambda forms: ", ".join(map(_form, forms))),
)
CASES: Final = (
    m.name("case", "name"),
    m.Column("tier"),
    m.Column("timed", "timed", lambda timed: "yes" if timed else ""),
    m.Column("inputs", lambda case: _forms(case.inputs)),
    m.Column("outputs", lambda case: _forms(case.outputs)),
)


def problem_table(problems: Iterable[tuple[Problem, str]]) -> m.ResultTable:
    """Return the problems and their families, with the inputs of the default tier."""
    rows = [
        {
            "name": problem.name,
            "family": family,
            "task": problem.task,
            "inputs": [
                {"shape": list(one.shape), "dtype": one.dtype}
                for one in problem.at(*JUDGED_AT).cases[0].inputs
            ],
        }
        for problem, family in problems
    ]
    return m.ResultTable(LISTED, rows)


def problems_document(table: m.ResultTable) -> dict[str, object]:
    """Return the problems as plain data."""
    return {"problems": m.records(table)}


def problems_report(table: m.ResultTable) -> m.ResultReport:
    """Describe one line for each problem: its family, its task and its inputs."""
    more = "\nratchet judge --show PROBLEM prints one problem in full"
    return m.ResultReport(header=(table, m.Words(more)))


def card_report(card: ProblemCard, reference: str) -> m.ResultReport:
    """Describe the facts an author needs about a problem, and the commands for a template."""
    others = "values" if card.is_model else "sizes, strides (gaps, transposed, repeated) and values"
    templates = [
        f"ratchet judge --show {card.given} --template {one} > {card.entry}{suffix}"
        for one, suffix in SUFFIXES.items()
        if not (card.is_model and one == "triton")
    ]
    return m.ResultReport(
        headline=f"{card.name}: {card.summary}".rstrip(": "),
        sections=m.blocks(
            m.section("Signature", m.Lines(_signature(card), indent=0), *_facts(card)),
            m.section(
                "Visible cases",
                m.ResultTable(CASES, card.cases),
                f"Hidden cases have other {others}.",
            ),
            m.section("Reference", m.Lines([reference.rstrip()], indent=0)),
            m.section("To start from", m.Lines(templates)),
        ),
    )


def _signature(card: ProblemCard) -> list[str]:
    names = [one.name for one in card.inputs]
    python = (
        f"class {ANSWER}" if card.is_model else f"{card.entry}({', '.join([*names, 'scalars'])})"
    )
    tensors = ", ".join(one.name for one in (*card.inputs, *card.outputs))
    return [
        f"Python: {python}",
        f"C++:    RATCHET_ENTRY {card.entry}(const ratchet_tensor*, int64_t count, "
        "const double* scalars, int64_t scalar_count)",
        f"        tensors in order: {tensors}",
        *(f"    {show_tensor(one, card)}" for one in (*card.inputs, *card.outputs)),
    ]


def _facts(card: ProblemCard) -> Iterator[str]:
    scalars = card.main_case.scalars
    yield f"scalars: {', '.join(f'{one:g}' for one in scalars) if scalars else 'none'}"
    yield f"task: {TASKS[card.task]}"
    if card.libraries:
        yield f"allowed from libraries: {', '.join(card.libraries)}"
    yield f"tolerance: {card.tolerance}"
    if card.varies:
        yield "note: the number, dtypes or dimensions of the tensors differ between cases"
    for one in card.notes:
        yield f"note: {one}"


def _forms(forms: Iterable[TensorForm] | None) -> str:
    if forms is None:
        return "known only after running it"
    return ", ".join(_form({"shape": list(one.shape), "dtype": one.dtype}) for one in forms)


def _form(form: Mapping[str, Json]) -> str:
    return f"{SHORT.get(form['dtype'], form['dtype'])} {form['shape']}"
