"""Print problems on the terminal: the suite's list, and one problem for kernel authors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich.console import Console

from ratchet.problems.card import ANSWER, ProblemCard, TensorForm
from ratchet.problems.problem import JUDGED_AT, Problem
from ratchet.problems.templates import SUFFIXES, show_tensor
from ratchet.report.console import heading, make_console, table, verbatim

SHORT: Final = {"bfloat16": "bf16", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}
TASKS: Final = {
    "own": "own: the work must run in the kernel's own code",
    "any": "any: a library may do the work",
}


def problem_row(problem: Problem, family: str) -> dict[str, Any]:
    """Return one problem of the list as plain data, with the inputs of the default tier."""
    case = problem.at(*JUDGED_AT).cases[0]
    return {
        "name": problem.name,
        "family": family,
        "task": problem.task,
        "inputs": [{"shape": list(one.shape), "dtype": one.dtype} for one in case.inputs],
    }


def print_problems(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print one line for each problem: its family, its task and its inputs."""
    out = make_console()
    shown = [
        (row["name"], row["family"], row["task"], ", ".join(map(_form, row["inputs"])))
        for row in rows
    ]
    out.print(table(("problem", "family", "task", "inputs"), shown, left=4))
    out.print("\nratchet judge --show PROBLEM prints one problem in full")


def print_card(card: ProblemCard, reference: str) -> None:
    """Print the facts an author needs about a problem, and the commands for a template."""
    out = make_console()
    out.print(f"{card.name}: {card.summary}".rstrip(": "))
    _print_facts(out, card)
    heading(out, "Visible cases")
    rows = [
        (
            case.name,
            case.tier,
            "yes" if case.timed else "",
            _forms(case.inputs),
            _forms(case.outputs),
        )
        for case in card.cases
    ]
    out.print(table(("case", "tier", "timed", "inputs", "outputs"), rows, left=5))
    others = "values" if card.is_model else "sizes, strides (gaps, transposed, repeated) and values"
    out.print(f"Hidden cases have other {others}.")
    heading(out, "Reference")
    verbatim(out, [reference.rstrip()])
    heading(out, "To start from")
    verbatim(
        out,
        (
            f"    ratchet judge --show {card.given} --template {one} > {card.entry}{suffix}"
            for one, suffix in SUFFIXES.items()
            if not (card.is_model and one == "triton")
        ),
    )


def _print_facts(out: Console, card: ProblemCard) -> None:
    heading(out, "Signature")
    names = [one.name for one in card.inputs]
    python = (
        f"class {ANSWER}" if card.is_model else f"{card.entry}({', '.join([*names, 'scalars'])})"
    )
    tensors = ", ".join(one.name for one in (*card.inputs, *card.outputs))
    verbatim(
        out,
        [
            f"Python: {python}",
            f"C++:    RATCHET_ENTRY {card.entry}(const ratchet_tensor*, int64_t count, "
            "const double* scalars, int64_t scalar_count)",
            f"        tensors in order: {tensors}",
            *(f"    {show_tensor(one, card)}" for one in (*card.inputs, *card.outputs)),
        ],
    )
    scalars = card.main_case.scalars
    out.print(f"scalars: {', '.join(f'{one:g}' for one in scalars) if scalars else 'none'}")
    out.print(f"task: {TASKS[card.task]}")
    if card.libraries:
        out.print(f"allowed from libraries: {', '.join(card.libraries)}")
    out.print(f"tolerance: {card.tolerance}")
    if card.varies:
        out.print("note: the number, dtypes or dimensions of the tensors differ between cases")
    for note in card.notes:
        out.print(f"note: {note}")


def _forms(forms: Iterable[TensorForm] | None) -> str:
    if forms is None:
        return "known only after running it"
    return ", ".join(_form({"shape": list(one.shape), "dtype": one.dtype}) for one in forms)


def _form(form: Mapping[str, Any]) -> str:
    return f"{SHORT.get(form['dtype'], form['dtype'])} {form['shape']}"
