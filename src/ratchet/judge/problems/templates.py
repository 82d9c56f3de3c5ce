"""Files to start from: a right kernel in torch, a skeleton in C++ or Triton.

The skeletons compile, take every tensor of the problem at any strides and write zeros, which the
judge calls wrong. TODO marks the missing part.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, cast, get_args

from ratchet.base import NAME as PACKAGE
from ratchet.base import Json
from ratchet.base.errors import KernelError
from ratchet.base.show import model as m
from ratchet.judge.problems.card import ANSWER, CardTensor, ProblemCard, TensorForm
from ratchet.judge.problems.problem import JUDGED_AT, Problem, reference_text
from ratchet.judge.problems.problem_file import defined_by

# A reference as a file of its own, with only the parts of its module that it needs.

MODEL = "Model"


def standalone_reference(problem: Problem, entry: str = "") -> str | None:
    """Return a Python source that defines `entry` as the problem's reference, without Ratchet.

    A model becomes the class `entry`. Without an entry it keeps its own name. None if two modules
    use one name for different things.
    """
    module, _, function = problem.reference.rpartition(":")
    name = MODEL if problem.model is not None else function
    slice_ = _Slice()
    if not slice_.take(problem.text or reference_text(problem.reference), name, module):
        return None
    source = slice_.source()
    if not entry:
        return source
    if problem.model is not None:
        return re.sub(rf"\b{MODEL}\b", entry, source)
    return source if name == entry else f"{source}\n\n{entry} = {name}\n"


@dataclass(slots=True)
class _Slice:
    """A collector of statements from several modules, each after those that it needs."""

    imports: dict[str, None] = field(default_factory=dict)
    statements: list[str] = field(default_factory=list)
    homes: dict[str, str] = field(default_factory=dict)  # The module of each name defined so far

    def take(self, text: str, name: str, module: str) -> bool:
        """Add `name` of a module, after the names that it needs; False if a name is taken."""
        defined = {
            one: node
            for node in ast.parse(text).body
            for one in defined_by(node)
            if not (isinstance(node, ast.ImportFrom) and node.module == "__future__")
        }
        return self._add(name, defined, text, module)

    def _add(self, name: str, defined: dict[str, ast.stmt], text: str, module: str) -> bool:
        node = defined.get(name)
        if node is None or self.homes.get(name) == module:
            return True  # a builtin, or added already
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            return self._import(name, node)
        if name in self.homes:
            return False
        self.homes |= dict.fromkeys(defined_by(node), module)
        needed = dict.fromkeys(one.id for one in ast.walk(node) if isinstance(one, ast.Name))
        if not all(self._add(one, defined, text, module) for one in needed):
            return False
        self.statements.append(_segment(text, node))
        return True

    def _import(self, name: str, node: ast.Import | ast.ImportFrom) -> bool:
        alias = next(one for one in node.names if (one.asname or one.name.split(".")[0]) == name)
        home = node.module if isinstance(node, ast.ImportFrom) else None
        if home == PACKAGE:
            home = sys.modules[PACKAGE]._HOMES[alias.name]
        if home is None or not home.startswith(f"{PACKAGE}."):
            shown: ast.stmt = ast.Import(names=[alias])
            if isinstance(node, ast.ImportFrom):
                shown = ast.ImportFrom(module=node.module, names=[alias], level=node.level)
            self.imports[ast.unparse(shown)] = None
            return True
        if alias.asname:
            return False
        return self.take(reference_text(f"{home}:{alias.name}"), alias.name, home)

    def source(self) -> str:
        """Return the file: imports, then statements."""
        head = ["from __future__ import annotations", *sorted(self.imports)]
        return "\n\n\n".join(["\n".join(head), *self.statements]) + "\n"


def _segment(text: str, node: ast.stmt) -> str:
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(one.lineno for one in decorators)])
    return "\n".join(text.splitlines()[first - 1 : node.end_lineno])


TemplateLanguage = Literal["cpp", "triton", "torch"]
SUFFIXES: Final[dict[TemplateLanguage, str]] = {"cpp": ".cpp", "triton": ".py", "torch": ".py"}
C_TYPES: Final = {
    "float32": ("float", "F32"),
    "bfloat16": ("uint16_t", "BF16"),
    "float64": ("double", "F64"),
    "int64": ("int64_t", "I64"),
    "int32": ("int32_t", "I32"),
    "bool": ("uint8_t", "BOOL"),
    "float16": ("uint16_t", "F16"),
    "uint8": ("uint8_t", "U8"),
    "int8": ("int8_t", "I8"),
    "float8_e4m3fn": ("uint8_t", "F8_E4M3"),
    "float8_e5m2": ("uint8_t", "F8_E5M2"),
}
"""C type of an element, and the name of its code after `RATCHET_`."""
_CPP_HEAD: Final = """\
#include <cmath>
#include <cstdint>
#include <cstring>

#include "ratchet_abi.h"

// The place of element i, counted row by row: tensors may be strided, transposed or broadcast.
static inline int64_t place(const ratchet_tensor& t, int64_t i) {
    int64_t at = 0;
    for (int64_t d = t.ndim - 1; d >= 0; --d) {
        at += i % t.size[d] * t.stride[d];
        i /= t.size[d];
    }
    return at;
}
"""
_CPP_BFLOAT16: Final = """
static inline float from_bf16(uint16_t bits) {
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

// Rounds to the nearest, ties to even.
static inline uint16_t to_bf16(float value) {
    uint32_t wide;
    memcpy(&wide, &value, 4);
    if (value != value) return 0x7fc0;
    return (uint16_t)((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
}
"""
_CPP_VARIED: Final = """\
    // The number, dtypes or dimensions of the tensors differ between cases: read count and t[i].
    // TODO: compute the outputs. This skeleton writes nothing, so it is wrong.
    return RATCHET_DONE;
}
"""
_TRITON: Final = """\
{introduction}import torch
import triton
import triton.language as tl


@triton.jit
def {entry}_kernel(
{parameters}    out,
    n,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # TODO: compute the elements `at` of out. This skeleton writes zeros, so it is wrong.
    tl.store(out + at, tl.zeros((BLOCK,), tl.float32).to(out.dtype.element_ty), at < n)


def {entry}({arguments}):
{outputs}    for answer in {answers}:
        {entry}_kernel[(triton.cdiv(answer.numel(), 1024),)](
{passed}            answer,
            answer.numel(),
            BLOCK=1024,
        )
    return {answers}
"""


def parse_language(given: str) -> TemplateLanguage:
    """Return a language that has a template; a KernelError for any other."""
    if given not in get_args(TemplateLanguage):
        raise KernelError(
            f"no template for {given!r}: use one of {', '.join(get_args(TemplateLanguage))}"
        )
    return cast(TemplateLanguage, given)


def template(problem: Problem, card: ProblemCard, language: TemplateLanguage) -> str:
    """Return the text of a file to start from, in a language.

    Raises KernelError: a reference that does not fit in a file of its own, or Triton for a model.
    """
    if language == "torch":
        return _torch(problem, card)
    if language == "cpp":
        return _cpp(card)
    if card.varies:
        raise KernelError(
            f"the tensors of {card.name!r} differ in number or dtype between cases: start from "
            "--template cpp or torch"
        )
    if card.is_model:
        raise KernelError(
            f"a kernel in Triton for {card.name!r} is a {ANSWER} that launches it: start from "
            "--template torch"
        )
    return _triton(card)


def _torch(problem: Problem, card: ProblemCard) -> str:
    source = standalone_reference(problem, card.python_entry)
    if source is None:
        raise KernelError(
            f"the reference of {problem.name!r} needs two different things with one name: use "
            "--template cpp or triton"
        )
    head = _introduction(card, "#", "torch")
    if card.task == "own":
        head += (
            "# torch does the work here, but this problem requires the kernel's own code. The\n"
            "# answer is right, but only `ratchet judge --any` accepts it.\n"
        )
    return head + source


def _introduction(card: ProblemCard, mark: str, language: TemplateLanguage) -> str:
    """Return the top lines: the computation, its tensors and the tolerance."""
    case = card.main_case
    lines = [f"{card.name}: {card.summary}".rstrip(": "), f"Sizes are those of case {case.name}."]
    lines += [f"    {show_tensor(one, card)}" for one in (*card.inputs, *card.outputs)]
    if case.scalars:
        lines.append(f"    scalars: {', '.join(f'{one:g}' for one in case.scalars)}")
    lines.append(f"Run: ratchet judge {card.given} {card.entry}{SUFFIXES[language]}")
    return "".join(f"{mark} {line}\n" for line in lines) + "\n"


def show_tensor(tensor: CardTensor, card: ProblemCard) -> str:
    """Return a tensor's name, shape and dtype in the card's main case, and its distribution."""
    if tensor in card.outputs:
        forms = card.main_case.outputs
        form = forms[card.outputs.index(tensor)] if forms is not None else None
        words = "output"
    else:
        form = card.main_case.inputs[card.inputs.index(tensor)]
        words = "changed in place" if tensor.in_place else tensor.values
    shape = list(form.shape) if form is not None else f"{tensor.ndim} dimensions"
    return f"{tensor.name}: {tensor.dtype} {shape}" + (f", {words}" if words else "")


def _cpp(card: ProblemCard) -> str:
    tensors = (*card.inputs, *card.outputs)
    parts = [_introduction(card, "//", "cpp"), _CPP_HEAD]
    if any(one.dtype == "bfloat16" for one in tensors):
        parts.append(_CPP_BFLOAT16)
    parts.append(
        f"\nRATCHET_ENTRY {card.entry}(const ratchet_tensor* t, int64_t count,\n"
        f"{' ' * (len(card.entry) + 15)}const double* scalars, int64_t scalar_count) {{\n"
    )
    if card.varies:
        return "".join([*parts, _CPP_VARIED])
    parts.append(f"    if (count != {len(tensors)}) return RATCHET_DECLINED;\n")
    for index, one in enumerate(tensors):
        kind, code = C_TYPES[one.dtype]
        const = "" if one.in_place or one in card.outputs else "const "
        parts.append(
            f"    if (t[{index}].dtype != RATCHET_{code}) return RATCHET_DECLINED;\n"
            f"    {const}{kind}* {one.name} = ({const}{kind}*)t[{index}].data;\n"
        )
    parts.append(
        "\n    // TODO: compute the outputs. This skeleton writes zeros, so it is wrong.\n"
    )
    for index, one in enumerate(tensors):
        if one in card.outputs:
            parts.append(
                "    #pragma omp parallel for\n"
                f"    for (int64_t i = 0; i < ratchet_numel(&t[{index}]); ++i)\n"
                f"        {one.name}[place(t[{index}], i)] = 0;\n"
            )
    parts.append("    return RATCHET_DONE;\n}\n")
    return "".join(parts)


def _triton(card: ProblemCard) -> str:
    """Return one launch per output, over its elements; inputs come with their strides."""
    parameters, passed = [], []
    for one in card.inputs:
        parameters += [one.name, *(f"{one.name}_stride_{d}" for d in range(one.ndim))]
        passed += [one.name, *(f"{one.name}.stride({d})" for d in range(one.ndim))]
    names = [one.name for one in card.inputs]
    changed = [one.name for one in card.inputs if one.in_place]
    answers = ", ".join([*changed, *(one.name for one in card.outputs)])
    return _TRITON.format(
        introduction=_introduction(card, "#", "triton"),
        entry=card.entry,
        parameters="".join(f"    {one},\n" for one in parameters),
        arguments=", ".join([*names, "scalars"]),
        outputs="".join(_empty(one, card, names[0] if names else "") for one in card.outputs),
        answers=f"({answers},)",
        passed="".join(f"            {one},\n" for one in passed),
    )


def _empty(output: CardTensor, card: ProblemCard, first: str) -> str:
    device = f", device={first}.device" if first else ""
    made = f"    {output.name} = torch.empty(%s, dtype=torch.{output.dtype}{device})\n"
    if output.sizes or not output.ndim:
        return made % f"({', '.join(output.sizes)}{',' if len(output.sizes) == 1 else ''})"
    place = card.outputs.index(output)
    known = [case.outputs[place] for case in card.cases if case.outputs is not None]
    shape = known[0].shape if known else (1,) * output.ndim
    return f"    # TODO: this is one case's shape; derive it from the inputs.\n{made % (shape,)}"


# Problems for kernel authors: the suite's list, and one problem in full.

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
