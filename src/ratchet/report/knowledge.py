"""The index of documents: what was added, what is there, what was found."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.authors.knowledge import Passage
from ratchet.authors.knowledge.index import Added, IndexedDocument
from ratchet.authors.knowledge.walk import LeftOut
from ratchet.report.model import Column, ResultTable, records
from ratchet.report.terminal import make_console, verbatim
from ratchet.report.words import counted, show_bytes

DOCUMENTS = tuple(
    map(Column, ("path", "title", "kind", "size_bytes", "passages", "added_at", "shipped"))
)
PASSAGES = tuple(map(Column, ("title", "path", "place", "text", "score", "source")))


def print_change(change: Added | LeftOut) -> None:
    """Print one line about one path."""
    out = make_console()
    if isinstance(change, LeftOut):
        verbatim(out, [f"left out   {change.path}: {change.why}"])
    else:
        verbatim(
            out, [f"{change.change:<10} {change.path} ({counted(change.passages, 'passage')})"]
        )


def print_added(changes: Sequence[Added | LeftOut], place: str) -> None:
    """Print how many documents were indexed and left out, and where the index is."""
    done = sum(isinstance(one, Added) for one in changes)
    left = len(changes) - done
    verbatim(make_console(), [f"{done} indexed, {left} left out; the index is {place}"])


def added_document(changes: Sequence[Added | LeftOut], place: str) -> dict[str, object]:
    """Return what was added and left out as plain data."""
    return {
        "index": place,
        "indexed": [one for one in changes if isinstance(one, Added)],
        "left_out": [one for one in changes if isinstance(one, LeftOut)],
    }


def print_documents(documents: Sequence[IndexedDocument], place: str) -> None:
    """Print one line for each document."""
    lines = [
        f"{one.kind:<8}  {counted(one.passages, 'passage'):>13}  "
        f"{show_bytes(one.size_bytes):>9}  {one.path}"
        for one in documents
    ]
    verbatim(make_console(), [*lines, f"\nthe index is {place}"])


def documents_document(documents: Sequence[IndexedDocument], place: str) -> dict[str, object]:
    """Return the documents as plain data."""
    return {"index": place, "documents": records(ResultTable(DOCUMENTS, documents))}


def print_passages(passages: Sequence[Passage], query: str) -> None:
    """Print the passages that were found, each below its source."""
    out = make_console()
    if not passages:
        verbatim(out, [f"no passage holds a word of {query!r}"])
    for passage in passages:
        verbatim(out, ["", passage.source, *passage.text.splitlines()])


def passages_document(passages: Sequence[Passage], query: str) -> dict[str, object]:
    """Return the passages that were found as plain data."""
    return {"query": query, "passages": records(ResultTable(PASSAGES, passages))}


def print_removed(removed: Sequence[str]) -> None:
    """Print one line for each document that was removed."""
    verbatim(make_console(), [f"removed {one}" for one in removed])
