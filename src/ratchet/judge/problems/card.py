"""A problem's card for the author of a kernel: names, shapes, dtypes, tolerance."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ratchet.judge.problems.case import Case, TensorSpec, Tier
from ratchet.judge.problems.problem import JUDGED_AT, Problem, Task

if TYPE_CHECKING:
    from torch import Tensor

ANSWER: Final = "ModelNew"
MOST_ELEMENTS: Final = 1 << 22
"""Largest case whose reference is run for the form of its outputs, if fake tensors do not tell."""

TAKEN: Final = frozenset(
    (
        *("t", "count", "place", "scalars", "scalar_count", "n", "at", "i", "d", "out", "answer"),
        *("from_bf16", "to_bf16", "torch", "triton", "tl", "and", "auto", "bool", "case", "char"),
        *("const", "default", "delete", "do", "double", "enum", "explicit", "extern", "float"),
        *("friend", "goto", "int", "long", "mutable", "namespace", "new", "not", "operator", "or"),
        *("private", "protected", "public", "register", "short", "signed", "sizeof", "static"),
        *("struct", "switch", "template", "this", "throw", "typedef", "union", "unsigned", "using"),
        *("virtual", "void", "volatile", "xor"),
    )
)
"""Words that a template uses itself, and C++ keywords."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorForm:
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CardTensor:
    """One argument or output; only its sizes differ between cases."""

    name: str
    dtype: str
    ndim: int
    values: str = ""  # Its distribution, unless that is the normal one
    in_place: bool = False
    sizes: tuple[str, ...] = ()
    """Each size of an output as a Python expression of the inputs' sizes; empty if unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CardCase:
    name: str
    tier: Tier
    timed: bool
    scalars: tuple[float, ...]
    inputs: tuple[TensorForm, ...]
    outputs: tuple[TensorForm, ...] | None  # None if only running the reference would tell


@dataclass(frozen=True, kw_only=True, slots=True)
class ProblemCard:
    """The facts about a problem that a kernel's author needs."""

    name: str
    given: str  # Its name on the command line: its name in the suite, or its file
    entry: str  # Name of the function of a C++ kernel
    summary: str  # The first line of the reference's docstring
    task: Task
    libraries: tuple[str, ...]
    is_model: bool
    inputs: tuple[CardTensor, ...]
    outputs: tuple[CardTensor, ...]
    """New tensors; those that are changed in place are among the inputs."""
    cases: tuple[CardCase, ...]
    tolerance: str
    varies: bool
    """True if the number, dtypes or dimensions of its tensors differ between cases; the card then
    shows the main case's."""
    notes: tuple[str, ...] = ()

    @property
    def python_entry(self) -> str:
        """Return the name that a Python kernel defines: a class for a model, else a function."""
        return ANSWER if self.is_model else self.entry

    @property
    def main_case(self) -> CardCase:
        """Return the main case of a verdict: a timed one of the default tier."""
        return min(self.cases, key=_rank)


def card_of(problem: Problem, *, given: str, entry: str) -> ProblemCard:
    """Return a problem's card. Its reference runs in this process, on tensors without values."""
    main = min((case for case in problem.cases if not case.hidden), key=_rank)
    specs = main.inputs
    alike = {tuple((one.dtype, len(one.shape)) for one in case.inputs) for case in problem.cases}
    places = {case: _output_forms(problem, index) for index, case in enumerate(problem.cases)}
    names = _argument_names(problem, len(specs))
    changed = sum(spec.in_place for spec in specs)
    known = [(case, forms[changed:]) for case, forms in places.items() if forms is not None]
    if len(alike) > 1:  # sizes of one case tell nothing about another
        known = [one for one in known if one[0] == main] or known[:1]
    outputs = known[0][1] if known else ()
    return ProblemCard(
        name=problem.name,
        given=given,
        entry=entry,
        summary=_summary(problem),
        task=problem.task,
        libraries=problem.libraries,
        is_model=problem.model is not None,
        inputs=tuple(map(_described, names, specs)),
        outputs=tuple(
            CardTensor(
                name="out" if len(outputs) == 1 else f"out_{place}",
                dtype=form.dtype,
                ndim=len(form.shape),
                sizes=_sizes([(case.inputs, forms[place].shape) for case, forms in known], names),
            )
            for place, form in enumerate(outputs)
        ),
        cases=tuple(
            CardCase(
                name=case.name,
                tier=case.tier,
                timed=case.timed,
                scalars=case.scalars,
                inputs=tuple(TensorForm(shape=one.shape, dtype=one.dtype) for one in case.inputs),
                outputs=None if forms is None else forms[changed:],
            )
            for case, forms in places.items()
            if not case.hidden
        ),
        tolerance=_tolerance(problem),
        varies=len(alike) > 1,
        notes=problem.notes,
    )


def _rank(case: Case | CardCase) -> tuple[int, bool]:
    return JUDGED_AT.index(case.tier), not case.timed


def _output_forms(problem: Problem, index: int) -> tuple[TensorForm, ...] | None:
    """Return the form of the reference's outputs in a case; None if computing it takes long."""
    import torch

    from ratchet.judge.problems.inputs import dtype_named

    case = problem.cases[index]
    if problem.model is None:
        given = [
            torch.empty(spec.shape, dtype=dtype_named(spec.dtype), device="meta")
            for spec in case.inputs
        ]
        try:
            return _run(problem, given, case.scalars)
        except (RuntimeError, NotImplementedError, TypeError, ValueError):
            pass  # the reference reads values
    if sum(math.prod(spec.shape) for spec in case.inputs) > MOST_ELEMENTS:
        return None
    return _run(problem, problem.build_inputs(case, 0), case.scalars)


def _run(
    problem: Problem, given: Sequence[Tensor], scalars: Sequence[float]
) -> tuple[TensorForm, ...]:
    import torch

    with torch.no_grad():
        answers = problem.load_reference()(*given, scalars)
    return tuple(
        TensorForm(shape=tuple(one.shape), dtype=str(one.dtype).removeprefix("torch."))
        for one in answers
    )


def _argument_names(problem: Problem, count: int) -> list[str]:
    """Return distinct names for the tensors of a call, valid in C++ and Python."""
    names: list[str] = []
    for name in _given_names(problem, count):
        usable = name
        while usable in TAKEN or usable in names:
            usable += "_"
        names.append(usable)
    return names


def _given_names(problem: Problem, count: int) -> list[str]:
    """Return the reference's names for its tensors; `x0`, `x1`, ... if it gives none."""
    if problem.model is not None:
        own = [name.replace(".", "_") for name in problem.model.state]
        left = count - len(own)
        return own + (["x"] if left == 1 else [f"x{place}" for place in range(left)])
    parameters = inspect.signature(problem.load_reference()).parameters.values()
    names = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD][:count]
    return names if len(names) == count else [f"x{place}" for place in range(count)]


def _summary(problem: Problem) -> str:
    if problem.model is not None:
        return ""
    return (inspect.getdoc(problem.load_reference()) or "").partition("\n")[0]


def _described(name: str, spec: TensorSpec) -> CardTensor:
    bounds = "" if spec.low is None or spec.high is None else f" [{spec.low:g}, {spec.high:g})"
    values = "" if spec.distribution == "normal" else spec.distribution + bounds
    if spec.deviation != 1.0:
        values = f"{values or 'normal'} x {spec.deviation:g}"
    return CardTensor(
        name=name, dtype=spec.dtype, ndim=len(spec.shape), values=values, in_place=spec.in_place
    )


def _sizes(
    seen: Sequence[tuple[tuple[TensorSpec, ...], tuple[int, ...]]], names: Sequence[str]
) -> tuple[str, ...]:
    """Express each size of an output by the size of an input that equals it in every case."""
    found = []
    for dimension in range(len(seen[0][1])):
        wanted = [shape[dimension] for _, shape in seen]
        found.append(_size_as(wanted, [inputs for inputs, _ in seen], names))
    return tuple(found) if all(found) else ()


def _size_as(
    wanted: Sequence[int], cases: Sequence[tuple[TensorSpec, ...]], names: Sequence[str]
) -> str:
    for place, name in enumerate(names):
        for dimension in range(len(cases[0][place].shape)):
            own = [inputs[place].shape[dimension] for inputs in cases]
            text = f"{name}.shape[{dimension}]"
            if own == list(wanted):
                return text
            if len(set(wanted)) == 1:
                continue
            if [size // 2 for size in own] == list(wanted):
                return f"{text} // 2"
            if [size * 2 for size in own] == list(wanted):
                return f"{text} * 2"
    return str(wanted[0]) if len(set(wanted)) == 1 else ""


def _tolerance(problem: Problem) -> str:
    """Describe the tolerance in one line; docs/reference/kernels.md has the whole rule."""
    own = problem.tolerance
    if problem.check:
        return "a check of its own, since several answers are right: see the reference's module"
    if own.exact:
        return "bit for bit the reference's"
    coded = ""
    if own.code_slack:
        coded = f"; codes may be {own.code_slack} off in {100 * own.code_share:g} %"
    return (
        f"the larger of {own.reference_factor:g} times what the reference loses against float64 "
        f"and {own.ulps:g} ulp of the output's scale, more for long sums; integers are "
        f"exact{coded}"
    )
