"""A section of a document: a stretch of text with the place where it stands."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """Text below one heading, of one page or of one function."""

    place: str
    """`Occupancy > Registers`, `page 12`, `line 40, softmax`; empty for plain text."""
    text: str
