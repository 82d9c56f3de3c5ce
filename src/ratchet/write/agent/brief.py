"""Describe a problem in a prompt: its card, its reference, and a file to start from.

A problem's own file is code of its user: its card is made in a process of its own.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from ratchet.base.errors import RatchetError
from ratchet.judge.kernels.kernel import Language
from ratchet.judge.problems.card import ProblemCard, TensorForm, card_of
from ratchet.judge.problems.problem import Problem, reference_text
from ratchet.judge.problems.problem_file import default_entry, described
from ratchet.judge.problems.templates import (
    TemplateLanguage,
    show_tensor,
    standalone_reference,
    template,
)

LOG = logging.getLogger(__name__)
WORKER: Final = "ratchet.write.agent.card_worker"
CARD_LIMIT_S: Final = 120.0
MOST_CASES: Final = 8
MOST_REFERENCE: Final = 24_000
"""Characters of a reference that are shown."""
TASKS: Final = {
    "own": "the work must run in the kernel's own code: no library may do it",
    "any": "a library may do the work",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ProblemBrief:
    """One problem as a prompt shows it, in one language."""

    name: str
    entry: str
    """The function, class or C function that the answer must define."""
    summary: str
    signature: tuple[str, ...]
    """The tensors in the order of the call, one line each."""
    arguments: str
    """The arguments of a Python entry: `x, w, scalars`."""
    scalars: str
    cases: tuple[str, ...]
    task: str
    tolerance: str
    notes: tuple[str, ...]
    is_model: bool
    reference: str
    start: str
    """A file to start from: a skeleton with the whole interface; empty if there is none."""


def brief_of(problem: Problem, language: Language) -> ProblemBrief:
    """Return what a prompt says about a problem.

    Raises:
        RatchetError: its card cannot be made.
    """
    card = _card(problem)
    python = language in ("torch", "triton")
    reference = standalone_reference(problem) or problem.text or reference_text(problem.reference)
    tensors = (*card.inputs, *card.outputs)
    scalars = card.main_case.scalars
    libraries = f"; allowed from libraries: {', '.join(card.libraries)}" if card.libraries else ""
    return ProblemBrief(
        name=card.name,
        entry=card.python_entry if python else card.entry,
        summary=card.summary,
        signature=tuple(show_tensor(one, card) for one in tensors),
        arguments=", ".join([*(one.name for one in card.inputs), "scalars"]),
        scalars=", ".join(f"{one:g}" for one in scalars) or "none",
        cases=tuple(_case_lines(card)),
        task=TASKS[card.task] + libraries,
        tolerance=card.tolerance,
        notes=(*card.notes, *(("tensors differ between cases",) if card.varies else ())),
        is_model=card.is_model,
        reference=_shortened(reference),
        start=_start(problem, card, language),
    )


def _card(problem: Problem) -> ProblemCard:
    entry = default_entry(problem.name)
    if not problem.text:
        return card_of(problem, given=problem.name, entry=entry)
    request = {"by": WORKER, "problem": problem.as_json(), "entry": entry, "threads": 1}
    found = described(request, CARD_LIMIT_S)
    if "fault" in found:
        raise RatchetError(f"problem {problem.name!r} cannot be shown: {found['fault']}")
    return ProblemCard.from_json(found["card"])


def _case_lines(card: ProblemCard) -> list[str]:
    """Return the visible cases, the timed ones first."""
    ordered = sorted(card.cases, key=lambda one: not one.timed)
    lines = [
        f"{case.name}{' (timed)' if case.timed else ''}: {_forms(case.inputs)}"
        + (f" -> {_forms(case.outputs)}" if case.outputs else "")
        for case in ordered[:MOST_CASES]
    ]
    left = len(ordered) - len(lines)
    return [*lines, *([f"and {left} more"] if left else [])]


def _forms(forms: tuple[TensorForm, ...]) -> str:
    return ", ".join(f"{one.dtype} {list(one.shape)}" for one in forms)


def _start(problem: Problem, card: ProblemCard, language: Language) -> str:
    if language == "hip":
        return ""
    spoken: TemplateLanguage = language
    try:
        return template(problem, card, spoken)
    except (RatchetError, KeyError) as error:  # KeyError: a dtype that C++ has no name for
        LOG.info("no file to start from for %s in %s: %s", card.name, language, error)
        return ""


def _shortened(text: str) -> str:
    if len(text) <= MOST_REFERENCE:
        return text.rstrip()
    return text[:MOST_REFERENCE].rstrip() + "\n# ... the rest is left out\n"
