"""Documents are read, cut, indexed and found; one that cannot be read is one line."""

from __future__ import annotations

import io
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from documents import pdf

from ratchet.base.errors import KnowledgeError
from ratchet.base.files import default_ledger
from ratchet.write.knowledge import KnowledgeIndex, open_index
from ratchet.write.knowledge import read as reading
from ratchet.write.knowledge.index import (
    MOST_CHARACTERS,
    MOST_OF_ONE,
    SHIPPED,
    Added,
    cite,
    index_path,
    query_of,
)
from ratchet.write.knowledge.read import MOST_CHARACTERS as PASSAGE
from ratchet.write.knowledge.read import LeftOut, Section, cut

HTML = """<html><head><title>T</title><style>p { color: red }</style></head><body>
<nav>Home wildebeest</nav><h1>Guide</h1><p>First   words.</p><h2>LDS &amp; banks</h2>
<script>var hidden = "zebra";</script><p>Pad the   rows by <b>zygote</b> bytes.</p>
<pre>line 1
  line 2</pre><h2>Last</h2><p>The end of the guide is here.</p></body></html>"""
CODE = """#include "ratchet_abi.h"
// A header comment that is long enough to be a passage.

static float helper(float x) {
    return x * 2 + 1; // quagga
}

RATCHET_ENTRY squared_relu(const ratchet_tensor* t, int64_t count, const double*, int64_t) {
    return RATCHET_DONE; // okapi lives here
}
"""


@pytest.fixture
def index(tmp_path: Path) -> Iterator[KnowledgeIndex]:
    with open_index(tmp_path / "index.db", create=True) as opened:
        yield opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "documents"
    made.mkdir()
    return made


def add(index: KnowledgeIndex, path: Path) -> dict[str, str]:
    """Index a path; each file's name with `added`, `replaced`, `unchanged` or its reason."""
    found = {}
    for one in index.add(path):
        found[Path(one.path).name] = one.change if isinstance(one, Added) else one.why
    return found


def test_every_kind_is_read_with_its_places(index: KnowledgeIndex, folder: Path) -> None:
    (folder / "guide.html").write_text(HTML)
    (folder / "notes.md").write_text(
        "# Notes\n\nIntro text here, long enough.\n\n## Deep\n\nThe ibex climbs the rocks.\n"
    )
    (folder / "plain.txt").write_text("The aardvark digs in the sand at night.\n")
    (folder / "kernel.cpp").write_text(CODE)
    (folder / "manual.pdf").write_bytes(pdf("Page one has the bongo.", "Page two has the dingo."))
    assert set(add(index, folder).values()) == {"added"}
    for word, source in {
        "zygote": "guide.html, Guide > LDS & banks",
        "ibex": "notes.md, Notes > Deep",
        "aardvark": "plain.txt",
        "okapi": "kernel.cpp, line 8, squared_relu",
        "dingo": "manual.pdf, page 2",
    }.items():
        [found] = index.search(word)
        assert found.source == f"{folder}/{source}" and word in found.text
    assert index.search("zebra") == [] and index.search("wildebeest") == []
    [guide] = index.search("zygote")
    assert "Pad the rows by zygote bytes." in guide.text and "line 1\n  line 2" in guide.text


def test_a_heading_inside_code_is_none(index: KnowledgeIndex, folder: Path) -> None:
    (folder / "a.md").write_text("# A\n\n```sh\n# not a heading\nmake zebra the target\n```\n")
    add(index, folder)
    [found] = index.search("zebra")
    assert found.place == "A" and "# not a heading" in found.text


def test_a_file_that_changed_replaces_its_text(index: KnowledgeIndex, folder: Path) -> None:
    file = folder / "a.txt"
    file.write_text("The quick aardvark is here.\n")
    assert add(index, file) == {"a.txt": "added"}
    assert add(index, file) == {"a.txt": "unchanged"}
    file.write_text("The slow bongo is here now.\n")
    assert add(index, folder) == {"a.txt": "replaced"}
    assert index.search("aardvark") == [] and len(index.search("bongo")) == 1
    assert [one.path for one in index.documents() if not one.shipped] == [str(file)]


EMPTY = {
    "nothing": b"",
    "blank": b"  \n\n",
    "mark": b"\xef\xbb\xbf",
    "short": b"hi\n",
    "rule": b"-" * 30,
    "invisible": "\u200b".encode() * 30,
    "headings.md": b"# T\n\n## U\n",
    "script.html": b"<body><script>var a = 12345678901234567890</script></body>",
    "comments.py": b"#\n#\n",
    "blank.pdf": pdf(""),
}


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_document_is_no_passage_and_takes_its_earlier_text_along(
    name: str, index: KnowledgeIndex, folder: Path
) -> None:
    file = folder / name
    file.write_bytes(EMPTY[name])
    [left] = index.add(file)
    assert isinstance(left, LeftOut) and left.why.startswith(("is empty", "holds no"))
    earlier = "the quick aardvark is here, and stays a while"
    file.write_bytes(pdf(earlier) if name.endswith("pdf") else earlier.encode())
    assert add(index, file) == {name: "added"}
    file.write_bytes(EMPTY[name])
    [left] = index.add(file)
    assert isinstance(left, LeftOut) and left.why.endswith("its earlier text is no longer indexed")
    assert index.search("aardvark") == []
    assert all(one.shipped for one in index.documents())


def test_a_document_that_may_not_be_read_keeps_its_earlier_text(
    index: KnowledgeIndex, folder: Path
) -> None:
    file = folder / "a.txt"
    file.write_text("The quick aardvark is here.\n")
    assert add(index, file) == {"a.txt": "added"}
    file.unlink()
    os.mkfifo(file)
    [left] = index.add(file)
    assert isinstance(left, LeftOut) and left.why == "is a FIFO"
    assert len(index.search("aardvark")) == 1


def test_what_cannot_be_read_is_left_out_and_the_rest_goes_on(
    index: KnowledgeIndex, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pypdf import PdfReader, PdfWriter

    monkeypatch.setattr(reading, "MOST_TEXT_BYTES", 10_000)
    (folder / "binary.o").write_bytes(bytes(range(256)) * 8)
    (folder / "empty.txt").write_bytes(b"")
    (folder / "blank.md").write_text("\n\n")
    (folder / "huge.txt").write_text("word " * 4000)
    os.mkfifo(folder / "pipe.txt")
    (folder / "dangling.md").symlink_to(folder / "nowhere")
    (folder / "self.md").symlink_to(folder / "self.md")
    (folder / "loop").symlink_to(folder)
    (folder / "bad.pdf").write_bytes(b"%PDF-1.7\nnot really")
    secret = PdfWriter(clone_from=PdfReader(io.BytesIO(pdf("The bongo sleeps."))))
    secret.encrypt("password", algorithm="RC4-128")
    secret.write(folder / "secret.pdf")
    (folder / os.fsdecode(b"caf\xe9.txt")).write_text("A name that is no UTF-8 text.\n")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("the aardvark hides in here\n")
    (folder / "good.txt").write_text("The aardvark is fine, thank you.\n")
    found = add(index, folder)
    for name, words in {
        "binary.o": "is binary",
        "empty.txt": "is empty",
        "blank.md": "holds no text",
        "huge.txt": "is too large",
        "pipe.txt": "is a FIFO",
        "dangling.md": "cannot be read (No such file",
        "self.md": "cannot be read (Too many levels of symbolic links",
        "loop": "read already",
        "bad.pdf": "cannot be read as a PDF",
        "secret.pdf": "is encrypted: remove its password",
        "caf\\xe9.txt": "no plain text",
        "good.txt": "added",
    }.items():
        assert words in found.pop(name), name
    assert found == {}
    [only] = index.search("aardvark")
    assert only.path == str(folder / "good.txt")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_left_out(index: KnowledgeIndex, folder: Path) -> None:
    (folder / "mine.txt").write_text("secret words in here\n")
    (folder / "mine.txt").chmod(0)
    assert "Permission denied" in add(index, folder)["mine.txt"]


def test_a_reader_that_dies_costs_its_file_alone(
    index: KnowledgeIndex, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ratchet.write.knowledge.read.WORKER", "no_such_module_at_all")
    (folder / "a.pdf").write_bytes(pdf("The bongo sleeps."))
    (folder / "b.txt").write_text("The aardvark is awake.\n")
    assert add(index, folder) == {
        "a.pdf": "cannot be read as a PDF: its reader died",
        "b.txt": "added",
    }


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_text_is_read_in_the_usual_encodings(
    encoding: str, index: KnowledgeIndex, folder: Path
) -> None:
    (folder / "a.txt").write_bytes("Die Größe der Kachel für den Zwergotter.\n".encode(encoding))
    assert add(index, folder) == {"a.txt": "added"}
    [found] = index.search("Zwergotter")
    assert "Größe" in found.text and "\ufeff" not in found.text


def test_what_a_terminal_would_obey_is_taken_out(index: KnowledgeIndex, folder: Path) -> None:
    (folder / "a.txt").write_text("red \x1b[31m aardvark \x9b1m and more words\n")
    add(index, folder)
    [found] = index.search("aardvark")
    assert "\x1b" not in found.text and "\x9b" not in found.text


def test_a_document_is_removed_alone_or_with_its_folder(
    index: KnowledgeIndex, folder: Path
) -> None:
    for name in ("a.txt", "b.txt", "c.txt"):
        (folder / name).write_text(f"The aardvark lives in {name} for now.\n")
    add(index, folder)
    assert index.remove(str(folder / "a.txt")) == [str(folder / "a.txt")]
    assert len(index.search("aardvark")) == 2
    assert len(index.remove(str(folder))) == 2 and index.search("aardvark") == []
    with pytest.raises(KnowledgeError, match=r"no document .* is indexed"):
        index.remove(str(folder))
    with pytest.raises(KnowledgeError, match="ships with Ratchet"):
        index.remove(f"{SHIPPED}amd.md")
    with pytest.raises(KnowledgeError, match="no document"):
        index.remove(f"{folder}%")


def test_passages_are_bounded_and_lose_no_word() -> None:
    words = [f"word{number}" for number in range(3000)]
    lines = [" ".join(words[at : at + 9]) for at in range(0, 2000, 9)]
    text = "\n\n".join("\n".join(lines[at : at + 7]) for at in range(0, len(lines), 7))
    text += "\n" + " ".join(words[2007:])  # one endless line
    pieces = list(cut(Section(place="", text=text)))
    assert max(map(len, pieces)) <= PASSAGE
    assert " ".join(pieces).split() == text.split()
    assert list(cut(Section(place="", text="x" * 5000))) == ["x" * PASSAGE] * 3 + ["x" * 200]
    assert list(cut(Section(place="", text=" \n short\n"))) == []


QUERIES = [
    '"',
    "a OR",
    "NEAR(",
    "* ^ -",
    "{col: x}",
    "'; DROP TABLE passages; --",
    "ünïcode \ud800",
    "\0",
]


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_is_words_and_never_syntax(query: str, index: KnowledgeIndex) -> None:
    index.search(query)
    assert index.search("") == []
    assert index.search("occupancy registers waves")


def test_the_notes_ship_and_fit(index: KnowledgeIndex) -> None:
    notes = [one for one in index.documents() if one.shipped]
    assert [one.path for one in notes] == [
        f"{SHIPPED}{name}.md" for name in ("amd", "judge", "x86")
    ]
    [first, *_] = index.search("MFMA shapes cycles bf16")
    assert (
        first.source
        == "ratchet/amd.md, AMD GPUs: CDNA and RDNA kernels > MFMA shapes and their cost"
    )
    assert "exp by polynomial" in index.search("expf vectorise polynomial softmax")[0].place


def test_without_a_file_the_notes_are_there_and_no_file_is_made(tmp_path: Path) -> None:
    with open_index(tmp_path / "none.db") as index:
        assert index.search("occupancy")
    assert list(tmp_path.iterdir()) == []


def test_citations_fit_and_come_from_several_documents(index: KnowledgeIndex, folder: Path) -> None:
    for name in "abc":
        text = "\n\n".join(
            f"## {number}\n\n" + "occupancy waves registers " * 50 for number in range(9)
        )
        (folder / f"{name}.md").write_text(f"# {name}\n\n{text}")
    add(index, folder)
    found = cite(index, "occupancy waves registers")
    assert sum(len(one.text) for one in found) <= MOST_CHARACTERS
    paths = [one.path for one in found]
    assert len(set(paths)) >= 3 and all(paths.count(one) <= MOST_OF_ONE for one in paths)
    assert all("AMD" not in one.title for one in cite(index, "occupancy waves", avoid=("AMD",)))


def test_a_query_leaves_out_what_tells_nothing() -> None:
    words = query_of(
        "softmax_backward", "def softmax_backward(x, scalars): return torch.exp(x)"
    ).split()
    assert words == ["softmax", "backward", "exp"]


# The file.


def test_it_lies_beside_the_ledger(tmp_path: Path) -> None:
    assert index_path(str(tmp_path / "mine.db")) == tmp_path / "mine-knowledge.db"
    assert index_path("postgresql://me@host/db").parent == default_ledger().parent


def test_two_processes_may_add_at_once(tmp_path: Path, folder: Path) -> None:
    for number in range(4):
        (folder / f"{number}.txt").write_text(f"The aardvark number {number} is here.\n")
    with (
        open_index(tmp_path / "i.db", create=True) as one,
        open_index(tmp_path / "i.db", create=True) as other,
    ):
        for a, b in zip(one.add(folder), other.add(folder), strict=True):
            assert isinstance(a, Added) and isinstance(b, Added)
        assert len(one.search("aardvark")) == len(other.search("aardvark")) == 4


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"not a database" * 99, "not an index"), (b"SQLite format 3\0" + b"x" * 4096, "index")],
)
def test_a_file_that_is_no_index_stays_as_it_is(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "i.db"
    path.write_bytes(content)
    with pytest.raises(KnowledgeError, match=words) as caught:
        open_index(path)
    assert "\n" not in str(caught.value) and path.read_bytes() == content


def test_a_file_that_is_no_index_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def noted(*where: object, **how: object) -> sqlite3.Connection:
        opened.append(connect(*where, **how))  # type: ignore[call-overload]
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", noted)
    path = tmp_path / "knowledge.db"
    path.write_bytes(b"SQLite format 3\0" + b"x" * 4096)
    with pytest.raises(KnowledgeError):
        KnowledgeIndex(path)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        opened[0].execute("select 1")


def test_another_programs_database_and_a_newer_one_are_refused(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE mine (x)")
    other.commit()
    other.close()
    with pytest.raises(KnowledgeError, match="another program's database"):
        open_index(tmp_path / "other.db")
    with open_index(tmp_path / "i.db", create=True):
        pass
    newer = sqlite3.connect(tmp_path / "i.db")
    newer.execute("PRAGMA user_version = 99")
    newer.commit()
    newer.close()
    with pytest.raises(KnowledgeError, match="has format 99"):
        open_index(tmp_path / "i.db")
    (tmp_path / "dir.db").mkdir()
    with pytest.raises(KnowledgeError, match="is a folder"):
        open_index(tmp_path / "dir.db")


def test_left_out_paths_are_one_line() -> None:
    assert LeftOut.of(Path("a\nb\x1b[31m"), "x").path == "a\\nb\\x1b[31m"
