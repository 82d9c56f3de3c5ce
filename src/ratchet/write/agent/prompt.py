"""Prompts from files: one template for each language, versioned by the hash of its files."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Final

import jinja2

from ratchet.base.ledger.books import Message
from ratchet.judge.kernels.kernel import Language
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
    """A kernel as a prompt shows it."""

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
    best: tuple[str, ...]
    """One line for each of the best kernels so far."""
    failed: tuple[str, ...]
    """One line for each of the latest failures."""
    unusable: tuple[str, ...]
    """Why answers of the last turn held no kernel."""


@functools.cache
def prompt_version(language: Language) -> str:
    """Return the first 12 hex digits of the SHA-256 of a language's prompt files."""
    digest = hashlib.sha256()
    folder = resources.files(PACKAGE).joinpath(FOLDER)
    for name in (*SHARED, f"{language}.md.j2"):
        digest.update(f"{name}\0".encode() + folder.joinpath(name).read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def prompt_hash(messages: Sequence[Message]) -> str:
    """Return the hex SHA-256 of a prompt's messages."""
    content = json.dumps([[one.role, one.content] for one in messages])
    return hashlib.sha256(content.encode()).hexdigest()


def render(
    language: Language, facts: TurnFacts, asked: Assignment, parents: Sequence[Parent]
) -> tuple[Message, ...]:
    """Return the messages of one sample's prompt."""
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
