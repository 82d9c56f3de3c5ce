"""The texts that a model reads and answers: prompts from templates, and the code in a reply.

A template for each language; the hash of its files is its version.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Final

import jinja2

from ratchet.base.ledger.books import Message
from ratchet.judge.kernels.kernel import Kernel, Language
from ratchet.write.agent.brief import ProblemBrief
from ratchet.write.agent.strategy import Assignment
from ratchet.write.author import Answer
from ratchet.write.knowledge import Passage

PACKAGE: Final = "ratchet.write.agent"
FOLDER: Final = "prompts"
SHARED: Final = ("system.md.j2", "turn.md.j2")
FENCES: Final[dict[Language, str]] = {
    "cpp": "cpp",
    "hip": "cpp",
    "triton": "python",
    "torch": "python",
}
MOST_SOURCE: Final = 40_000
MOST_EVIDENCE: Final = 12
MOST_LINE: Final = 600


@dataclass(frozen=True, kw_only=True, slots=True)
class Parent:
    source: str
    verdict: str
    evidence: tuple[str, ...]
    profile: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnFacts:
    """The common part of all prompts of a turn."""

    brief: ProblemBrief
    device: tuple[str, ...]
    passages: tuple[Passage, ...]
    best: tuple[str, ...]  # One line for each of the best kernels so far
    failed: tuple[str, ...]  # One line for each of the latest failures
    unusable: tuple[str, ...]  # Why answers of the last turn held no kernel


@functools.cache
def prompt_version(language: Language) -> str:
    """Return the first 12 hex digits of the SHA-256 of a language's prompt files."""
    digest = hashlib.sha256()
    folder = resources.files(PACKAGE).joinpath(FOLDER)
    for name in (*SHARED, f"{language}.md.j2"):
        digest.update(f"{name}\0".encode() + folder.joinpath(name).read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def prompt_hash(messages: Sequence[Message]) -> str:
    content = json.dumps([[one.role, one.content] for one in messages])
    return hashlib.sha256(content.encode()).hexdigest()


def render(
    language: Language, facts: TurnFacts, asked: Assignment, parents: Sequence[Parent]
) -> tuple[Message, ...]:
    values = {
        "language": language,
        "fence": FENCES[language],
        "facts": facts,
        "brief": facts.brief,
        "asked": asked,
        "parents": parents,
    }
    texts = (
        ("system", _environment().get_template("system.md.j2").render(values)),
        ("user", _environment().get_template(f"{language}.md.j2").render(values)),
    )
    return tuple(
        Message(role=role, content=text.encode("utf-8", "replace").decode().strip() + "\n")
        for role, text in texts
    )


def parent_of(answer: Answer, profile: Sequence[str]) -> Parent:
    """Return a kernel with its verdict, its evidence and its profile, cut to a prompt's size."""
    source = answer.kernel.source
    if len(source) > MOST_SOURCE:
        source = source[:MOST_SOURCE] + "\n... the rest is left out\n"
    return Parent(
        source=source.rstrip(),
        verdict=verdict_line(answer),
        evidence=tuple(_line(one) for one in answer.evidence[:MOST_EVIDENCE]),
        profile=tuple(map(_line, profile)),
    )


def verdict_line(answer: Answer) -> str:
    """Return what the judge said, in a line."""
    if answer.ratio is None:
        return f"{answer.status}: {_line(answer.reason)}".rstrip(": ")
    interval = ""
    if answer.low is not None and answer.high is not None:
        interval = f" ({answer.low:.2f} to {answer.high:.2f})"
    return f"{answer.status}, {answer.ratio:.2f}x the reference's speed{interval}"


def answer_line(answer: Answer) -> str:
    """Return one line about a kernel: its verdict, and what is new in it."""
    note = f"; {answer.note}" if answer.note else ""
    return _line(f"{verdict_line(answer)}{note}")


def _line(text: str) -> str:
    """Return a text as one line of bounded length: a kernel's process may have written it."""
    return " ".join(text.split())[:MOST_LINE]


@functools.cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader(PACKAGE, FOLDER),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
        keep_trailing_newline=True,
    )


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
class Usable:
    kernel: Kernel
    note: str  # The change in the model's own words, in a line; empty if it gives none


@dataclass(frozen=True, kw_only=True, slots=True)
class CodeBlock:
    tag: str
    text: str
    closed: bool


def read_answer(text: str, *, language: Language, entry: str, name: str) -> Usable | str:
    """Return the kernel of an answer: of several blocks, the last that defines `entry`.

    Of an answer without one, return why, as the model is told in its next turn.
    """
    spoken = _THOUGHTS.sub("", text)
    blocks = list(code_blocks(spoken))
    if not blocks:
        return "the answer holds no fenced code block"
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
        return f"no code block is in {language}: its opening fence says {blocks[-1].tag!r:.40}"
    return faults[0]


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
