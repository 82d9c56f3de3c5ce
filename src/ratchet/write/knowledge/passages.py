"""Passages: pieces of bounded size that are indexed, found and cited."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

MOST_CHARACTERS: Final = 1_600
"""About 400 tokens: three or four fit into a prompt beside a kernel."""
LEAST_CHARACTERS: Final = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Passage:
    """A piece of a document with its source."""

    title: str
    """The document's title."""
    path: str
    place: str
    """Heading, page or function; empty for plain text."""
    text: str
    score: float = 0.0
    """Its fit to a query: larger is better; 0 without one."""

    @property
    def source(self) -> str:
        """Return where it stands: file or note, then the place."""
        return f"{self.path}, {self.place}" if self.place else self.path


def cut(section: Section, most: int = MOST_CHARACTERS) -> Iterator[str]:
    """Yield a section's text in pieces of at most `most` characters.

    Pieces end between paragraphs if they can, else between lines, else between words. A piece of
    fewer than LEAST_CHARACTERS, or without a letter or digit, is left out: nobody could find it.
    """
    piece = ""
    for part in _parts(section.text, most):
        if piece and len(piece) + len(part) > most:
            yield from _kept(piece)
            piece = ""
        piece += part
    yield from _kept(piece)


def _kept(piece: str) -> Iterator[str]:
    text = piece.strip("\n").rstrip()
    if len(text.strip()) >= LEAST_CHARACTERS and any(one.isalnum() for one in text):
        yield text


def _parts(text: str, most: int) -> Iterator[str]:
    for paragraph in re.split(r"(?<=\n)(?=[ \t]*\n)", text):
        if len(paragraph) <= most:
            yield paragraph
            continue
        for line in paragraph.splitlines(keepends=True):
            yield from _shortened(line, most)


def _shortened(line: str, most: int) -> Iterator[str]:
    while len(line) > most:
        at = line.rfind(" ", most // 2, most) + 1 or most
        yield line[:at]
        line = line[at:]
    yield line


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """Text below one heading, of one page or of one function."""

    place: str
    """`Occupancy > Registers`, `page 12`, `line 40, softmax`; empty for plain text."""
    text: str
