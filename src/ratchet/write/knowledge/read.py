"""Documents below a folder, each read once: text, Markdown, HTML, PDF and source code become
passages of bounded size, which are indexed, found and cited.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Final, Literal

from ratchet.base import files
from ratchet.base.errors import KnowledgeError
from ratchet.base.process import watchdog

MOST_CHARACTERS: Final = 1_600  # About 400 tokens: three or four fit into a prompt beside a kernel
LEAST_CHARACTERS: Final = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Passage:
    """A piece of a document with its source."""

    title: str
    path: str
    place: str  # Heading, page or function; empty for plain text
    text: str
    score: float = 0.0  # Its fit to a query: larger is better; 0 without one

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
            while len(line) > most:
                at = line.rfind(" ", most // 2, most) + 1 or most
                yield line[:at]
                line = line[at:]
            yield line


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """Text below one heading, of one page or of one function."""

    place: str  # `Occupancy > Registers`, `page 12`, `line 40, softmax`; empty for plain text
    text: str


UNSEEN: Final = frozenset({"script", "style", "noscript", "template", "svg", "nav", "footer"})
BLOCKS: Final = frozenset(
    ("p", "div", "br", "li", "ul", "ol", "tr", "table", "pre", "section", "article", "blockquote")
)
HEADINGS: Final = ("h1", "h2", "h3", "h4", "h5", "h6")

WORKER: Final = "ratchet.write.knowledge.pdf_worker"
TIME_LIMIT_S: Final = 180.0


def pdf_sections(raw: bytes) -> list[Section]:
    """Return one section a page.

    Raises KnowledgeError: it is encrypted, damaged, or takes too long or too much memory to read.
    """
    with tempfile.TemporaryFile() as given:
        given.write(raw)
        given.seek(0)
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-m", WORKER],
                stdin=given,
                capture_output=True,
                timeout=TIME_LIMIT_S,
                env=watchdog.environment(dict(os.environ)),
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise KnowledgeError(f"took more than {TIME_LIMIT_S:g} s to read") from None
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise KnowledgeError("cannot be read as a PDF: its reader died") from None
    if "why" in answer:
        raise KnowledgeError(str(answer["why"]))
    return [Section(place=f"page {page}", text=text) for page, text in answer["pages"]]


Kind = Literal["text", "markdown", "html", "pdf", "code"]

MOST_TEXT_BYTES: Final = 8 << 20
MOST_PDF_BYTES: Final = 64 << 20
KINDS: Final[dict[str, Kind]] = {
    **dict.fromkeys((".md", ".markdown"), "markdown"),
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
    ".pdf": "pdf",
    **dict.fromkeys((".cpp", ".cc", ".cxx", ".c", ".h", ".hpp"), "code"),
    **dict.fromkeys((".cu", ".cuh", ".hip", ".py", ".s", ".cl"), "code"),
}
"""By a name's ending; any other file counts as text if it is text."""
_HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*\s*$")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_FENCE = re.compile(r"^\s*(```|~~~)")
_DEFINITION = re.compile(
    r"^(?:(?:async\s+)?def|class)\s+(\w+)|^(?:[\w:<>*&]+\s+)+\**(\w+)\s*\([^;]*$|^RATCHET_ENTRY\s+(\w+)"
)
"""The first line of a function or class in Python or C++, at the left margin."""


class NoText(KnowledgeError):
    """A file that can be read and holds nothing to index."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A document's text in sections, each with its place."""

    path: str
    title: str
    kind: Kind
    size_bytes: int
    digest: str  # Hex SHA-256 of the file
    sections: tuple[Section, ...]


def read_document(path: Path) -> Document:
    """Read one file.

    Raises NoText (it holds nothing to index); KnowledgeError (the reason why it cannot be indexed,
    to print after its path).
    """
    kind = KINDS.get(path.suffix.lower(), "text")
    raw = _read(path, MOST_PDF_BYTES if kind == "pdf" else MOST_TEXT_BYTES)
    if kind != "pdf" and raw.startswith(b"%PDF-"):
        kind = "pdf"
    sections = tuple(
        Section(place=_printable(one.place), text=_printable(one.text))
        for one in _sections(kind, raw)
        if one.text.strip()
    )
    if not sections:
        raise NoText("holds no text")
    heading = sections[0].place.partition(" > ")[0] if kind in ("markdown", "html") else ""
    return Document(
        path=str(path),
        title=heading or path.name,
        kind=kind,
        size_bytes=len(raw),
        digest=hashlib.sha256(raw).hexdigest(),
        sections=sections,
    )


def digest_of(path: Path) -> str:
    """Return the hex SHA-256 of a file; raises as `read_document` does."""
    return hashlib.sha256(_read(path, MOST_PDF_BYTES)).hexdigest()


def _read(path: Path, most_bytes: int) -> bytes:
    try:
        # A plain open of a FIFO without a writer would block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise KnowledgeError(f"cannot be read ({error.strerror})") from error
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise KnowledgeError(f"is {files.kind(found.st_mode)}")
        if found.st_size > most_bytes:
            raise KnowledgeError(
                f"is too large ({found.st_size >> 20} MiB; the limit is {most_bytes >> 20} MiB)"
            )
        try:
            raw = file.read(most_bytes + 1)
        except OSError as error:
            raise KnowledgeError(f"cannot be read ({error.strerror})") from error
    if not raw:
        raise NoText("is empty")
    if len(raw) > most_bytes:
        raise KnowledgeError(f"is too large (the limit is {most_bytes >> 20} MiB)")
    return raw


def _sections(kind: Kind, raw: bytes) -> list[Section]:
    if kind == "pdf":
        return pdf_sections(raw)
    cut: dict[str, Callable[[str], list[Section]]] = {
        "markdown": _markdown_sections,
        "html": html_sections,
        "code": _code_sections,
        "text": lambda text: [Section(place="", text=text)],
    }
    return cut[kind](decoded(raw))


def decoded(raw: bytes) -> str:
    """Return a file's text; a KnowledgeError if it is binary."""
    for mark, encoding in ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"), (b"", "utf-8-sig")):
        if raw.startswith(mark):
            try:
                text = raw.decode(encoding)
            except UnicodeDecodeError:
                continue
            if "\0" not in text:
                return text
    if b"\0" in raw or sum(byte < 9 or 13 < byte < 27 for byte in raw[:65536]) > 8:
        raise KnowledgeError("is binary: give text, Markdown, HTML, PDF or source code")
    return raw.decode("cp1252", "replace")


def _markdown_sections(text: str) -> list[Section]:
    """Cut at headings; a section's place is its heading below those above it."""
    above: list[str] = []
    place, lines = "", list[str]()
    found, fenced = list[Section](), False
    for line in text.splitlines():
        if _FENCE.match(line):
            fenced = not fenced
        heading = None if fenced else _HEADING.match(line)
        if heading is None:
            lines.append(line)
            continue
        found.append(Section(place=place, text="\n".join(lines)))
        above = [*above[: len(heading[1]) - 1], heading[2]]
        place, lines = " > ".join(one for one in above if one), []
    found.append(Section(place=place, text="\n".join(lines)))
    return found


def _code_sections(text: str) -> list[Section]:
    """Cut before functions and classes at the left margin, and long ones again.

    The place is the piece's first line, and the name of the function or class.
    """
    found: list[Section] = []
    place, lines, name, size = "line 1", list[str](), "", 0
    for number, line in enumerate(text.splitlines(), 1):
        match = _DEFINITION.match(line[:400])
        size += len(line) + 1
        if match is not None:
            name = next((one for one in match.groups() if one), "")
        if lines and (match is not None or size > MOST_CHARACTERS):
            found.append(Section(place=place, text="\n".join(lines)))
            lines, size = [], len(line) + 1
        if not lines:
            place = f"line {number}" + (f", {name}" if name else "")
        lines.append(line)
    return [*found, Section(place=place, text="\n".join(lines))]


def _printable(text: str) -> str:
    """Return a text without lone surrogates and control characters, which terminals obey."""
    return _CONTROL.sub(" ", text).encode("utf-8", "replace").decode()


class _TextPage(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[Section] = []
        self._above: list[str] = []
        self._parts: list[str] = []
        self._unseen = 0
        self._verbatim = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in UNSEEN:
            self._unseen += 1
        elif tag in HEADINGS:
            self._end_section()
        elif tag in BLOCKS:
            self._parts.append("\n")
        elif tag in ("td", "th"):
            self._parts.append(" | ")
        self._verbatim += tag == "pre"

    def handle_endtag(self, tag: str) -> None:
        if tag in UNSEEN:
            self._unseen = max(0, self._unseen - 1)
        elif tag in HEADINGS:
            heading = " ".join("".join(self._parts).split())
            self._above = [*self._above[: HEADINGS.index(tag)], heading]
            self._parts = []
        elif tag in BLOCKS:
            self._parts.append("\n")
        if tag == "pre":
            self._verbatim = max(0, self._verbatim - 1)

    def handle_data(self, data: str) -> None:
        if not self._unseen:
            self._parts.append(data if self._verbatim else re.sub(r"\s+", " ", data))

    def close(self) -> None:
        super().close()
        self._end_section()

    def _end_section(self) -> None:
        text = re.sub(r"\n\s*\n\s*", "\n\n", "".join(self._parts)).strip()
        place = " > ".join(one for one in self._above if one)
        self.found.append(Section(place=place, text=text))
        self._parts = []


def html_sections(text: str) -> list[Section]:
    """Return the visible text below each heading, without scripts, styles and navigation."""
    page = _TextPage()
    page.feed(text)
    page.close()
    return page.found


MOST_FILES: Final = 20_000
PASSED_OVER: Final = frozenset(
    {"__pycache__", "node_modules", "site-packages", ".git", ".hg", ".svn", ".venv"}
)
"""Folders that hold no documents of their own; they are left out without a line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """A path that was not indexed, and why."""

    path: str
    why: str

    @staticmethod
    def of(path: Path, why: str) -> LeftOut:
        """Return a path's reason; bytes of its name that are no text are written out."""
        return LeftOut(path=printable(path), why=why)


def printable(path: Path) -> str:
    """Return a path in which bytes that are not UTF-8, and control characters, are written out."""
    text = str(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def walk(start: Path) -> Iterator[Path | LeftOut]:
    """Yield `start` if it is a file, else the files below it, sorted; symbolic links are followed.

    A folder is entered once, however many links lead to it. Anything that is neither a file nor a
    folder, or cannot be read, is yielded as `LeftOut`. Nothing is opened.
    """
    seen: set[tuple[int, int]] = set()
    waiting, count = [start], 0
    while waiting:
        path = waiting.pop()
        try:
            found = path.stat()
        except OSError as error:
            yield LeftOut.of(path, f"cannot be read ({_words(error)})")
            continue
        identity = (found.st_dev, found.st_ino)
        if stat.S_ISDIR(found.st_mode):
            if identity in seen:
                yield LeftOut.of(path, "is a folder that was read already (a link to it)")
                continue
            seen.add(identity)
            try:
                names = sorted(os.listdir(path), reverse=True)
            except OSError as error:
                yield LeftOut.of(path, f"cannot be read ({_words(error)})")
                continue
            waiting += [path / name for name in names if name not in PASSED_OVER]
            continue
        if not stat.S_ISREG(found.st_mode):
            yield LeftOut.of(path, f"is {files.kind(found.st_mode)}")
            continue
        if identity in seen:
            continue  # the same file under another name
        seen.add(identity)
        count += 1
        if count > MOST_FILES:
            yield LeftOut.of(start, f"has more than {MOST_FILES:,} files: add parts of it")
            return
        yield path


def _words(error: OSError) -> str:
    return error.strerror or type(error).__name__
