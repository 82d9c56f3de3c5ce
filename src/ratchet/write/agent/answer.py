"""Reading an answer: the last code block of the language that defines the entry."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ratchet.judge.kernels.kernel import Kernel, Language

MOST_BYTES: Final = 256 << 10
MOST_NOTE: Final = 160
_FENCE = re.compile(r"^[ \t]{0,3}(`{3,}|~{3,})[ \t]*([^\s`]*)[^`]*$")
_THOUGHTS = re.compile(r"<(think|thinking|reasoning)>.*?(</\1>|\Z)", re.DOTALL)
_NOTE = re.compile(r"^[\s*_#>-]*change[*_]*\s*:[*_]*\s*(\S.*)$", re.IGNORECASE | re.MULTILINE)
_ASIDE = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
TAGS: Final[dict[Language, frozenset[str]]] = {
    "cpp": frozenset(("", "cpp", "c++", "cc", "cxx", "c")),
    "hip": frozenset(("", "hip", "cpp", "c++", "cuda", "cu", "c")),
    "triton": frozenset(("", "python", "py", "python3", "triton")),
    "torch": frozenset(("", "python", "py", "python3", "torch", "pytorch")),
}
"""The words that may follow the opening fence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unusable:
    """An answer without a kernel, and why, as the model is told in its next turn."""

    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Usable:
    """An answer's kernel."""

    kernel: Kernel
    note: str
    """The change in the model's own words, in a line; empty if it gives none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeBlock:
    tag: str
    text: str
    closed: bool


def read_answer(text: str, *, language: Language, entry: str, name: str) -> Usable | Unusable:
    """Return the kernel of an answer: of several blocks, the last that defines `entry`."""
    spoken = _THOUGHTS.sub("", text)
    blocks = list(code_blocks(spoken))
    if not blocks:
        return Unusable(why="the answer holds no fenced code block")
    fitting = [one for one in blocks if one.tag in TAGS[language]]
    faults = list[str]()
    for block in reversed(fitting):
        fault = _fault(block, language, entry)
        if fault is None:
            source = block.text.strip("\n") + "\n"
            kernel = Kernel(name=name, language=language, source=source, entry=entry)
            return Usable(kernel=kernel, note=_note(spoken))
        faults.append(fault)
    if not fitting:
        return Unusable(
            why=f"no code block is in {language}: its opening fence says {blocks[-1].tag!r:.40}"
        )
    return Unusable(why=faults[0])


def code_blocks(text: str) -> Iterator[CodeBlock]:
    """Yield the fenced blocks of a Markdown text, in order."""
    mark, tag, lines = "", "", list[str]()
    for line in text.splitlines():
        fence = _FENCE.match(line)
        if not mark:
            if fence is not None:
                mark, tag, lines = fence[1], fence[2].strip("{}.").lower(), []
        elif fence is not None and fence[1].startswith(mark) and not fence[2]:
            yield CodeBlock(tag=tag, text="\n".join(lines), closed=True)
            mark = ""
        else:
            lines.append(line)
    if mark:
        yield CodeBlock(tag=tag, text="\n".join(lines), closed=False)


def _fault(block: CodeBlock, language: Language, entry: str) -> str | None:
    """Return why a block is no kernel, or None."""
    if not block.closed:
        return "the code block is not closed: the answer was cut off"
    if len(block.text.encode("utf-8", "replace")) > MOST_BYTES:
        return f"the code has more than {MOST_BYTES >> 10} KiB"
    if language in ("cpp", "hip"):
        return _c_fault(block.text, language, entry)
    return _python_fault(block.text, language, entry)


def _c_fault(text: str, language: Language, entry: str) -> str | None:
    bare = _ASIDE.sub(" ", text)
    found = re.search(rf"\b{re.escape(entry)}\s*\(", bare)
    if found is None or not re.search(r'RATCHET_ENTRY|extern\s+"C"', bare):
        return f"no code block defines the entry: RATCHET_ENTRY {entry}(...)"
    if language == "hip" and "__global__" not in bare:
        return "no code block defines a kernel: __global__ void NAME(...)"
    return None


def _python_fault(text: str, language: Language, entry: str) -> str | None:
    try:
        body = ast.parse(text).body
    except SyntaxError as error:
        return f"the code is not Python: {error.msg} (line {error.lineno})"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"the code is not Python: {str(error)[:120]}"
    if entry not in _names(body):
        form = f"class {entry}" if entry == "ModelNew" else f"def {entry}(...)"
        return f"no code block defines the entry: {form}"
    if language == "triton" and not re.search(r"^\s*(import|from)\s+triton\b", text, re.MULTILINE):
        return "the code does not import triton"
    return None


def _names(body: list[ast.stmt]) -> set[str]:
    """Return the functions, classes and variables of a file's top."""
    found = {one.name for one in body if isinstance(one, (ast.FunctionDef, ast.ClassDef))}
    for one in body:
        if isinstance(one, ast.Assign):
            found |= {target.id for target in one.targets if isinstance(target, ast.Name)}
    return found


def _note(text: str) -> str:
    """Return the first line that begins with `Change:`, without the word."""
    outside = re.sub(r"^[ \t]*(```|~~~).*?^[ \t]*\1", "", text, flags=re.DOTALL | re.MULTILINE)
    found = _NOTE.search(outside)
    return " ".join(found[1].split()).strip("*_ ")[:MOST_NOTE] if found else ""
