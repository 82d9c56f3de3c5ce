"""The knowledge of C's preprocessor: values of constants, and code that it leaves out on ROCm."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tree_sitter import Node

ON_ROCM: Final = frozenset(
    (
        *("USE_ROCM", "USE_HIP", "__HIP_PLATFORM_AMD__", "__HIP_PLATFORM_HCC__", "__HIP__"),
        *("__HIPCC__", "__HIP_DEVICE_COMPILE__", "TORCH_HIP_VERSION", "HIP_VERSION"),
        *("GGML_USE_HIP", "__AMDGCN__", "__CUDACC__"),
    )
)
"""Macros that are defined; hipify renames `__CUDACC__`."""
ON_CUDA: Final = frozenset(
    (
        *("__CUDA_ARCH__", "__NVCC__", "CUDA_VERSION", "CUDART_VERSION", "__CUDACC_RTC__"),
        *("__CUDACC_VER_MAJOR__", "__CUDACC_VER_MINOR__", "__HIP_PLATFORM_NVIDIA__"),
    )
)
"""Macros that are not."""
ON_BOTH: Final = frozenset(("__CUDACC__",))
_OPERATORS: Final[Mapping[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.LShift: lambda a, b: a << min(b, 64),
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.Mod: operator.mod,
}
_SIGNS: Final[Mapping[type[ast.unaryop], Callable[[int], int]]] = {
    ast.Invert: operator.invert,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
SIZES: Final = {
    **dict.fromkeys(("char", "int8_t", "uint8_t", "bool", "unsigned char", "__nv_fp8_e4m3"), 1),
    **dict.fromkeys(("half", "__half", "short", "nv_bfloat16", "__nv_bfloat16", "int16_t"), 2),
    **dict.fromkeys(
        ("float", "int", "unsigned", "unsigned int", "uint32_t", "int32_t", "half2"), 4
    ),
    **dict.fromkeys(("double", "long long", "int64_t", "uint64_t", "float2", "size_t"), 8),
    **dict.fromkeys(("float4", "int4", "uint4", "double2"), 16),
}
"""Bytes of the types that shared arrays have."""


def evaluated(text: str, known: Mapping[str, int]) -> int | None:
    """Return the value of an integer expression of C; None if it is not constant."""
    if len(text) > 200:
        return None
    text = re.sub(r"//.*|/\*.*?\*/", " ", text).replace("\\\n", " ")
    text = re.sub(r"\b(0[xX][0-9a-fA-F]+|\d+)[uUlL]+\b", r"\1", text)
    text = re.sub(r"sizeof\s*\(\s*([\w ]+?)\s*\)", lambda m: str(SIZES.get(m[1], "_")), text)
    text = re.sub(r"\((?:unsigned|int|size_t|unsigned int|uint32_t)\)", "", text)
    try:
        return _value(ast.parse(text.strip().replace("/", "//"), mode="eval").body, known)
    except (SyntaxError, ValueError, RecursionError, ZeroDivisionError, MemoryError):
        return None


def _value(node: ast.expr, known: Mapping[str, int]) -> int | None:
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.UnaryOp):
        inner, sign = _value(node.operand, known), _SIGNS.get(type(node.op))
        return None if inner is None or sign is None else sign(inner)
    if isinstance(node, ast.BinOp) and (combine := _OPERATORS.get(type(node.op))):
        left, right = _value(node.left, known), _value(node.right, known)
        return None if left is None or right is None else combine(left, right)
    return None


def left_out(conditions: Sequence[Node]) -> list[tuple[int, int]]:
    """Return the ranges of bytes that the preprocessor leaves out on ROCm, in order and apart."""
    ranges = []
    for text, first, other in _branches(conditions):
        answer = holds(text)
        if answer is False:
            ranges.append(first)
        elif answer is True and other is not None:
            ranges.append(other)
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def written_for_rocm(conditions: Sequence[Node]) -> list[tuple[int, int]]:
    """Return the ranges of bytes that are kept on ROCm and left out on CUDA."""
    found = []
    for text, first, other in _branches(conditions):
        answers = holds(text), holds(text, on=ON_BOTH | ON_CUDA, off=ON_ROCM - ON_BOTH)
        if answers == (True, False):
            found.append(first)
        elif answers == (False, True) and other is not None:
            found.append(other)
    return found


Range = tuple[int, int]


def _branches(conditions: Sequence[Node]) -> Iterator[tuple[str, Range, Range | None]]:
    """Yield each condition with the bytes that it keeps, and those of its other branch."""
    for node in conditions:
        said = node.child_by_field_name("condition") or node.child_by_field_name("name")
        other = node.child_by_field_name("alternative")
        if said is None:
            continue
        text = (said.text or b"").decode(errors="replace")
        if node.type == "preproc_ifdef":
            text = f"{'!' * (node.children[0].type == '#ifndef')}defined({text})"
        first = said.end_byte, other.start_byte if other is not None else node.end_byte
        yield text, first, (other.start_byte, other.end_byte) if other is not None else None


_TOKEN: Final = re.compile(
    rb"""//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|[()]"""
    rb"""|^[ \t]*\#[ \t]*(\w+)((?:[^\n\\]|\\.)*)""",
    re.DOTALL | re.MULTILINE,
)


def without_inner_conditions(text: bytes) -> bytes:
    """Return a text of the same length in which no condition stands between parentheses.

    Parsers of C++ read conditions between statements only: one inside an `asm` or a call's
    arguments spoils the rest of the file. The branch that ROCm takes is kept.
    """
    made = bytearray(text)
    depth = 0
    opened: list[list[int]] = []  # depth before, has a branch been kept, start of one that is not
    for token in _TOKEN.finditer(text):
        word = token[0]
        if word in b"()":
            depth = max(0, depth + (1 if word == b"(" else -1))
        if token[1] is None:
            continue
        name, condition = token[1].decode(errors="replace"), token[2].decode(errors="replace")
        if name in ("if", "ifdef", "ifndef"):
            opened.append([depth, 0, -1])
        elif not opened or name not in ("elif", "else", "endif"):
            continue
        before, has_kept, gap = opened[-1]
        if name != "endif":
            depth = before
        if name == "endif":
            opened.pop()
        if not before:
            continue
        if gap >= 0:
            _blank(made, gap, token.start())
        _blank(made, *token.span())
        if name.startswith("if") or name == "elif":
            if name in ("ifdef", "ifndef"):
                condition = f"{'!' * (name == 'ifndef')}defined({condition})"
            keeps = not has_kept and holds(condition) is not False
        else:
            keeps = not has_kept
        if name != "endif":
            opened[-1][1:] = [has_kept or keeps, -1 if keeps else token.end()]
    return bytes(made)


def _blank(made: bytearray, start: int, end: int) -> None:
    made[start:end] = re.sub(rb"[^\n]", b" ", bytes(made[start:end]))


def holds(
    condition: str, on: frozenset[str] = ON_ROCM, off: frozenset[str] = ON_CUDA
) -> bool | None:
    """Return whether a condition of `#if` holds; None if that depends on something else.

    `on` are the macros that are defined, by default ROCm's, and `off` those that are not.
    """
    text = re.sub(r"//.*|/\*.*?\*/|\\\n", " ", condition)
    text = re.sub(r"\bdefined\s*\(?\s*(\w+)\s*\)?", r" \1 ", text)
    text = re.sub(r"!(?!=)", " not ", text.replace("&&", " and ").replace("||", " or "))
    try:
        return _holds(ast.parse(text.strip(), mode="eval").body, on, off)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _holds(node: ast.expr, on: frozenset[str], off: frozenset[str]) -> bool | None:
    if isinstance(node, ast.Name):
        return True if node.id in on else False if node.id in off else None
    if isinstance(node, ast.Constant):
        return bool(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = _holds(node.operand, on, off)
        return None if inner is None else not inner
    if isinstance(node, ast.BoolOp):
        answers = {_holds(one, on, off) for one in node.values}
        decides = isinstance(node.op, ast.Or)
        return decides if decides in answers else None if None in answers else not decides
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Gt | ast.GtE):
        left = node.left  # a version of CUDA's that is not defined counts as 0
        return False if isinstance(left, ast.Name) and left.id in off else None
    return None
