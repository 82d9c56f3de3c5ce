"""Files to start from: a right kernel in torch, a skeleton in C++ or Triton.

The skeletons compile, take every tensor of the problem at any strides and write zeros, which the
judge calls wrong. TODO marks the missing part.
"""

from __future__ import annotations

from typing import Final, Literal, cast, get_args

from ratchet.base.errors import KernelError
from ratchet.judge.problems.card import ANSWER, CardTensor, ProblemCard
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.standalone import standalone_reference

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

    Raises:
        KernelError: a reference that does not fit in a file of its own, or Triton for a model.
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
    """Return the statement that creates an output."""
    device = f", device={first}.device" if first else ""
    made = f"    {output.name} = torch.empty(%s, dtype=torch.{output.dtype}{device})\n"
    if output.sizes or not output.ndim:
        return made % f"({', '.join(output.sizes)}{',' if len(output.sizes) == 1 else ''})"
    place = card.outputs.index(output)
    known = [case.outputs[place] for case in card.cases if case.outputs is not None]
    shape = known[0].shape if known else (1,) * output.ndim
    return f"    # TODO: this is one case's shape; derive it from the inputs.\n{made % (shape,)}"
