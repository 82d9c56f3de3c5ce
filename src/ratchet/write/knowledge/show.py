"""The index of documents: what was added, what is there, what was found."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from ratchet.base.show.model import Column, Lines, ResultReport, ResultTable, records
from ratchet.base.show.words import counted, show_bytes
from ratchet.write.knowledge import Passage
from ratchet.write.knowledge.index import Added, IndexedDocument
from ratchet.write.knowledge.walk import LeftOut

DOCUMENTS = tuple(
    map(Column, ("path", "title", "kind", "size_bytes", "passages", "added_at", "shipped"))
)
PASSAGES = tuple(map(Column, ("title", "path", "place", "text", "score", "source")))


def change_report(change: Added | LeftOut) -> ResultReport:
    """Describe what became of one path."""
    if isinstance(change, LeftOut):
        return _lines(f"left out   {change.path}: {change.why}")
    return _lines(f"{change.change:<10} {change.path} ({counted(change.passages, 'passage')})")


def added_report(changes: Sequence[Added | LeftOut], place: str) -> ResultReport:
    """Say how many documents were indexed and left out, and where the index is."""
    done = sum(isinstance(one, Added) for one in changes)
    left = len(changes) - done
    return _lines(f"{done} indexed, {left} left out; the index is {place}")


def added_document(changes: Sequence[Added | LeftOut], place: str) -> dict[str, object]:
    """Return what was added and left out as plain data."""
    return {
        "index": place,
        "indexed": [one for one in changes if isinstance(one, Added)],
        "left_out": [one for one in changes if isinstance(one, LeftOut)],
    }


def documents_report(documents: Sequence[IndexedDocument], place: str) -> ResultReport:
    """Return one line for each document."""
    lines = [
        f"{one.kind:<8}  {counted(one.passages, 'passage'):>13}  "
        f"{show_bytes(one.size_bytes):>9}  {one.path}"
        for one in documents
    ]
    return _lines(*lines, f"\nthe index is {place}")


def documents_document(documents: Sequence[IndexedDocument], place: str) -> dict[str, object]:
    """Return the documents as plain data."""
    return {"index": place, "documents": records(ResultTable(DOCUMENTS, documents))}


def passages_report(passages: Sequence[Passage], query: str) -> ResultReport:
    """Return the passages that were found, each below its source."""
    if not passages:
        return _lines(f"no passage holds a word of {query!r}")
    found = (("", one.source, *one.text.splitlines()) for one in passages)
    return _lines(*chain.from_iterable(found))


def passages_document(passages: Sequence[Passage], query: str) -> dict[str, object]:
    """Return the passages that were found as plain data."""
    return {"query": query, "passages": records(ResultTable(PASSAGES, passages))}


def removed_report(removed: Sequence[str]) -> ResultReport:
    """Return one line for each document that was removed."""
    return _lines(*(f"removed {one}" for one in removed))


def _lines(*lines: str) -> ResultReport:
    return ResultReport(header=(Lines(lines, indent=0),))
