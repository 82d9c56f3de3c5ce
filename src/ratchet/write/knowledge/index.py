"""The index of documents: SQLite's full-text search in a file beside the ledger."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

from sqlalchemy.engine import URL

from ratchet.base import files
from ratchet.base.errors import KnowledgeError
from ratchet.base.ledger.connect import file_of, resolve, utc_now, why_no_database
from ratchet.write.knowledge.read import (
    LEAST_CHARACTERS,
    Document,
    LeftOut,
    NoText,
    Passage,
    cut,
    digest_of,
    printable,
    read_document,
    walk,
)

FORMAT: Final = 1
APPLICATION: Final = 0x72_6B_6E_77
"""SQLite's application id: distinguishes an index from another program's database."""
SHIPPED: Final = "ratchet/"  # Paths of the notes that ship begin with it
BUSY_TIMEOUT_S: Final = 10.0
MOST_WORDS: Final = 64
_TABLES: Final = (
    "CREATE TABLE documents (id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, title TEXT NOT "
    "NULL, kind TEXT NOT NULL, size_bytes INTEGER NOT NULL, digest TEXT NOT NULL, added_at TEXT "
    "NOT NULL, passage_count INTEGER NOT NULL)",
    "CREATE VIRTUAL TABLE passages USING fts5(title, place, text, document UNINDEXED, "
    "tokenize = 'porter unicode61')",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {FORMAT}",
)
_WEIGHTS: Final = "3.0, 4.0, 1.0, 0.0"  # Weights of a word in a title, in a place, in the text


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexedDocument:
    path: str
    title: str
    kind: str
    size_bytes: int
    passages: int
    added_at: str  # UTC, ISO 8601

    @property
    def shipped(self) -> bool:
        return self.path.startswith(SHIPPED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Added:
    path: str
    passages: int
    change: str  # `added`, `replaced` or `unchanged`


def index_path(ledger: URL | str | None = None) -> Path:
    """Return the index's file: beside the ledger, or in the data folder for one on a server."""
    beside = (
        file_of(ledger if isinstance(ledger, URL) else resolve(ledger)) or files.default_ledger()
    )
    return beside.with_name(f"{beside.stem}-knowledge.db")


def open_index(path: Path, *, create: bool = False) -> KnowledgeIndex:
    """Open the index of a file, with the shipped notes in it.

    Without `create`, a missing file gives an index in memory that holds the notes alone. Raises
    KnowledgeError: the file is damaged, newer, another program's, or cannot be written.
    """
    index = KnowledgeIndex(path if create or path.exists() else None)
    try:
        index.add_notes()
    except BaseException:
        index.close()
        raise
    return index


class KnowledgeIndex:
    """An open index. Every method raises a `KnowledgeError` of one line if the file fails."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        if path is not None and (why := _why_not(path)):
            raise KnowledgeError(f"the index {path} {why}; choose another folder with --ledger")
        with self._explained():
            self._connection = sqlite3.connect(
                ":memory:" if path is None else path,
                timeout=BUSY_TIMEOUT_S,
                isolation_level=None,
                check_same_thread=False,
            )
            try:
                self._prepare()
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Close the file; what was added is committed already."""
        self._connection.close()

    def __enter__(self) -> KnowledgeIndex:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, start: Path) -> Iterator[Added | LeftOut]:
        """Index a file, or every file below a folder; yield what became of each path.

        A document that changed replaces its earlier text. What cannot be indexed is left out, and
        so is its earlier text.
        """
        for found in walk(start):
            yield found if isinstance(found, LeftOut) else self._add_file(found)

    def _add_file(self, path: Path) -> Added | LeftOut:
        place = str(path.resolve())
        if place != printable(Path(place)):
            return LeftOut.of(path, "has a name that is no plain text: rename it")
        known, count = self._known(place)
        current = ""
        try:
            current = "" if known is None else digest_of(path)
            if count and current == known:
                return Added(path=place, passages=count, change="unchanged")
            document = read_document(path)
            pieces = _pieces(document)
        except KnowledgeError as error:
            why = str(error)
            if known is not None and (current or isinstance(error, NoText)):
                with self._writing():
                    self._delete(place)
                why += "; its earlier text is no longer indexed"
            return LeftOut.of(path, why)
        count = self._store(place, document, pieces)
        return Added(path=place, passages=count, change="added" if known is None else "replaced")

    def add_notes(self) -> None:
        """Bring the shipped notes up to date; on a read-only file, keep those that are there."""
        folder = resources.files("ratchet.write.knowledge").joinpath("notes")
        for entry in sorted(folder.iterdir(), key=lambda one: one.name):
            if not entry.name.endswith(".md"):
                continue
            with resources.as_file(entry) as path:
                place = SHIPPED + entry.name
                if self._known(place)[0] == digest_of(path):
                    continue
                try:
                    document = read_document(path)
                    self._store(place, document, _pieces(document))
                except KnowledgeError as error:
                    if "read-only" not in str(error):
                        raise
                    return

    def documents(self) -> list[IndexedDocument]:
        """Return every document, the shipped notes first, then by path."""
        query = "SELECT path, title, kind, size_bytes, passage_count, added_at FROM documents"
        names = ("path", "title", "kind", "size_bytes", "passages", "added_at")
        with self._explained():
            rows = self._connection.execute(query).fetchall()
        found = [IndexedDocument(**dict(zip(names, row, strict=True))) for row in rows]
        return sorted(found, key=lambda one: (not one.shipped, one.path))

    def texts(self) -> list[str]:
        """Return every document's text, the passages in their order, by path."""
        query = (
            "SELECT documents.path, passages.text FROM passages JOIN documents "
            "ON documents.id = passages.document ORDER BY documents.path, passages.rowid"
        )
        found: dict[str, list[str]] = {}
        with self._explained():
            for path, text in self._connection.execute(query):
                found.setdefault(path, []).append(text)
        return ["\n\n".join(own) for own in found.values()]

    def remove(self, path: str) -> list[str]:
        """Remove the document of a path, or all below a folder; return the removed paths.

        Raises KnowledgeError: no document has this path, or it is a note that ships.
        """
        wanted = str(Path(path).resolve())
        known = [one.path for one in self.documents()]
        if path in known and path.startswith(SHIPPED):
            raise KnowledgeError(f"{path} ships with Ratchet: it cannot be removed")
        removed = [one for one in known if one == wanted or one.startswith(f"{wanted}/")]
        if not removed:
            raise KnowledgeError(
                f"no document {path!r} is indexed: ratchet knowledge list shows them"
            )
        with self._writing():
            for one in removed:
                self._delete(one)
        return removed

    def search(self, query: str, *, most: int = 8) -> list[Passage]:
        """Return the passages that fit a query best; any of its words counts, rare ones more."""
        words = list(dict.fromkeys(re.findall(r"\w+", query.lower())))[:MOST_WORDS]
        if not words:
            return []
        asked = " OR ".join(f'"{word}"' for word in words)
        score = f"bm25(passages, {_WEIGHTS})"
        with self._explained():
            rows = self._connection.execute(
                f"SELECT d.title, d.path, p.place, p.text, -{score} FROM passages p JOIN documents "
                f"d ON d.id = p.document WHERE passages MATCH ? ORDER BY {score}, p.rowid LIMIT ?",
                (asked, most),
            ).fetchall()
        return [
            Passage(title=title, path=path, place=place, text=text, score=score)
            for title, path, place, text, score in rows
        ]

    # The file.

    def _prepare(self) -> None:
        application = self._number("application_id")
        if application == APPLICATION:
            version = self._number("user_version")
            if version > FORMAT:
                raise KnowledgeError(
                    f"the index {self._path} has format {version}, and this Ratchet reads up to "
                    f"{FORMAT}: upgrade Ratchet, or choose another folder with --ledger"
                )
            return
        with self._writing():
            if self._number("application_id") == APPLICATION:
                return  # another process was faster
            if self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise KnowledgeError(
                    f"{self._path} is another program's database: choose another folder with "
                    "--ledger"
                )
            for statement in _TABLES:
                self._connection.execute(statement)

    def _number(self, pragma: str) -> int:
        return int(self._connection.execute(f"PRAGMA {pragma}").fetchone()[0])

    def _store(self, place: str, document: Document, pieces: Sequence[tuple[str, str]]) -> int:
        with self._writing():
            self._delete(place)
            row = self._connection.execute(
                "INSERT INTO documents (path, title, kind, size_bytes, digest, added_at, "
                "passage_count) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    *(place, document.title, document.kind, document.size_bytes),
                    *(document.digest, utc_now(), len(pieces)),
                ),
            ).lastrowid
            self._connection.executemany(
                "INSERT INTO passages (title, place, text, document) VALUES (?, ?, ?, ?)",
                [(document.title, where, piece, row) for where, piece in pieces],
            )
        return len(pieces)

    def _delete(self, place: str) -> None:
        one = (place,)
        own = "(SELECT id FROM documents WHERE path = ?)"
        self._connection.execute(f"DELETE FROM passages WHERE document = {own}", one)
        self._connection.execute("DELETE FROM documents WHERE path = ?", one)

    def _known(self, place: str) -> tuple[str | None, int]:
        """Return the digest and the number of passages of a path's document; None and 0 without."""
        query = "SELECT digest, passage_count FROM documents WHERE path = ?"
        with self._explained():
            row = self._connection.execute(query, (place,)).fetchone()
        return (None, 0) if row is None else (str(row[0]), int(row[1] or 0))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Run one transaction, all or nothing."""
        with self._explained():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise KnowledgeError(f"the index {self._path or 'in memory'} {_why(error)}") from error


def _pieces(document: Document) -> list[tuple[str, str]]:
    """Return a document's passages, each with its place; a NoText if it has none."""
    found = [(section.place, piece) for section in document.sections for piece in cut(section)]
    if not found:
        raise NoText(
            f"holds no passage: one has {LEAST_CHARACTERS} characters or more, with letters or "
            "digits among them"
        )
    return found


def _why_not(path: Path) -> str:
    if why := files.why_not_new_folder(path.parent):
        return f"is in a folder that {why}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"is in a folder that cannot be created ({error.strerror})"
    if why := files.why_not_new_file(path):
        return why
    why = why_no_database(path)
    return f"is not an index ({why}): move it away" if why else ""


_REMEDIES: Final[Sequence[tuple[int, str]]] = (
    (sqlite3.SQLITE_READONLY, "is read-only: make it writable, or move it with --ledger"),
    (sqlite3.SQLITE_CANTOPEN, "cannot be opened: check its folder's permissions"),
    (sqlite3.SQLITE_NOTADB, "is not an index (not an SQLite file): move it away"),
    (sqlite3.SQLITE_CORRUPT, "is damaged: remove it, and add the documents again"),
    (sqlite3.SQLITE_FULL, "is full: the disk has no room left"),
    (sqlite3.SQLITE_BUSY, f"is locked by another process (waited {BUSY_TIMEOUT_S:g} s): wait"),
)


def _why(error: sqlite3.Error) -> str:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    said = " ".join(str(error).split())
    if "no such module: fts5" in said:
        return "needs SQLite with FTS5, which this Python's SQLite lacks: use another Python"
    return dict(_REMEDIES).get(code, f"failed ({said})")


MOST_CHARACTERS: Final = 6_000
MOST_OF_ONE: Final = 2  # Passages of one document
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
