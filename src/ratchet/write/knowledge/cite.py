"""The passages that go into a prompt: those that fit a problem, a language and a device."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

from ratchet.write.knowledge.index import KnowledgeIndex
from ratchet.write.knowledge.passages import Passage

MOST_CHARACTERS: Final = 6_000
MOST_OF_ONE: Final = 2
"""Passages of one document."""
_PLAIN: Final = frozenset(
    (
        *("a", "an", "and", "are", "as", "at", "be", "by", "def", "for", "from", "has", "if"),
        *("import", "in", "into", "is", "it", "its", "no", "none", "not", "of", "on", "or", "out"),
        *("return", "returns", "self", "tensor", "tensors", "than", "that", "the", "then", "to"),
        *("true", "false", "tuple", "torch", "with", "functional", "float32", "scalars", "case"),
    )
)
"""Words that tell nothing about a kernel."""


def query_of(*parts: str) -> str:
    """Return the words of a problem, a language and a device that tell them apart."""
    words: dict[str, None] = {}
    for part in parts:
        for word in re.findall(r"[a-z][a-z0-9]+|\d+x\d+x\d+", part.lower().replace("_", " ")):
            if word not in _PLAIN:
                words[word] = None
    return " ".join(words)


def cite(index: KnowledgeIndex, query: str, *, avoid: Iterable[str] = ()) -> list[Passage]:
    """Return the passages that fit a query best, within a size, at most two of one document.

    Passages whose titles hold one of the words to `avoid` are left out: another vendor's notes.
    """
    unwanted = tuple(word.lower() for word in avoid)
    chosen: list[Passage] = []
    left, of_one = MOST_CHARACTERS, Counter[str]()
    for passage in index.search(query, most=32):
        title = passage.title.lower()
        if any(re.search(rf"\b{re.escape(word)}\b", title) for word in unwanted):
            continue
        if of_one[passage.path] >= MOST_OF_ONE or len(passage.text) > left:
            continue
        of_one[passage.path] += 1
        left -= len(passage.text)
        chosen.append(passage)
    return chosen
