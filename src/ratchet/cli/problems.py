"""`ratchet judge --list` and `--show`: list the problems, or print one."""

from __future__ import annotations

from ratchet.base.errors import RatchetError
from ratchet.cli.app import print_json, print_result
from ratchet.judge.terms import Scale


def list_problems(pattern: str | None, *, as_json: bool) -> None:
    """Print the suite's problems whose names match `pattern`, or all of them."""
    from ratchet.judge.problems.suites import family_of, find_problem, names_like

    families = {name: family_of(name) for name in names_like(pattern or "*")}

    from ratchet.judge.problems.templates import problem_table, problems_document, problems_report

    table = problem_table((find_problem(name), family) for name, family in families.items())
    if as_json:
        print_json(problems_document(table))
    else:
        print_result(problems_report(table))


def show_problem(
    problem: str | None, language: str | None, *, scale: Scale, limit_s: float, as_json: bool
) -> None:
    """Print one problem for a kernel's author, or a file to start from."""
    from ratchet.judge.problems.problem_file import load_card, problem_name
    from ratchet.judge.problems.templates import parse_language, template

    if problem is None:
        raise RatchetError("--show needs a PROBLEM: ratchet judge --list prints their names")
    spoken = None if language is None else parse_language(language)
    problem_name(problem)

    from ratchet.base.show.terminal import make_console, verbatim
    from ratchet.judge.problems.templates import card_report, standalone_reference

    asked, card = load_card(problem, scale=scale, time_limit_s=limit_s)
    text = None if spoken is None else template(asked, card, spoken)
    reference = standalone_reference(asked) or asked.text
    if as_json:
        print_json(card.as_json() | {"reference": reference, "template": text})
    elif text is not None:
        verbatim(make_console(), [text.rstrip()])
    else:
        print_result(card_report(card, reference))
