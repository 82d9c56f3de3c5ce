"""`ratchet knowledge`: documents that authors may cite."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import typer

from ratchet.cli.app import AsJson, LedgerUrl, argument, group, option, print_json, print_result

DONE, NOTHING = 0, 1
DOCUMENT = "path title kind size_bytes passages added_at shipped"
PASSAGE = "title path place text score source"

commands = group(
    "knowledge", "Index documents that language models may cite when they write kernels."
)


@commands.command()
def add(
    path: Path = argument(
        "Text, Markdown, HTML, PDF, or kernels (.cpp, .cu, .hip, .py).", "PATH_OR_FOLDER"
    ),
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Index a file, or every file below a folder. A changed file replaces its old text.

    Exit code 0: something is indexed. 1: nothing could be. 2: a mistake in the call.
    """
    from ratchet.base.errors import KnowledgeError
    from ratchet.base.show.words import counted
    from ratchet.write.knowledge.index import index_path, open_index
    from ratchet.write.knowledge.read import LeftOut

    if not path.exists() and not path.is_symlink():
        raise KnowledgeError(f"{str(path)!r} does not exist: give a file or a folder")
    place = index_path(ledger)
    indexed, left_out = [], []
    with open_index(place, create=True) as index:
        for change in index.add(path):
            if isinstance(change, LeftOut):
                left_out.append(change)
                line = f"left out   {change.path}: {change.why}"
            else:
                indexed.append(change)
                line = f"{change.change:<10} {change.path} ({counted(change.passages, 'passage')})"
            if not as_json:
                _print(line)
    if as_json:
        print_json({"index": str(place), "indexed": indexed, "left_out": left_out})
    else:
        _print(f"{len(indexed)} indexed, {len(left_out)} left out; the index is {place}")
    raise typer.Exit(DONE if indexed else NOTHING)


@commands.command(name="list")
def list_documents(ledger: LedgerUrl = None, as_json: AsJson = False) -> None:
    """List the indexed documents, and the notes that ship with Ratchet."""
    from ratchet.base.show.words import counted, show_bytes
    from ratchet.write.knowledge.index import index_path, open_index

    place = index_path(ledger)
    with open_index(place) as index:
        found = index.documents()
    if as_json:
        return print_json({"index": str(place), "documents": _records(found, DOCUMENT)})
    lines = [
        f"{one.kind:<8}  {counted(one.passages, 'passage'):>13}  "
        f"{show_bytes(one.size_bytes):>9}  {one.path}"
        for one in found
    ]
    _print(*lines, f"\nthe index is {place}")


@commands.command()
def search(
    query: str = argument("Words to look for."),
    most: int = option(5, "Passages to show.", min=1, max=100),
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the passages that fit a query best, with their sources.

    Exit code 0: there are some. 1: there are none.
    """
    from ratchet.write.knowledge.index import index_path, open_index

    with open_index(index_path(ledger)) as index:
        found = index.search(query, most=most)
    if as_json:
        print_json({"query": query, "passages": _records(found, PASSAGE)})
    elif not found:
        _print(f"no passage holds a word of {query!r}")
    for one in found if not as_json else ():
        _print("", one.source, *one.text.splitlines())
    raise typer.Exit(DONE if found else NOTHING)


@commands.command()
def remove(
    path: str = argument("A document, or a folder of them.", "PATH_OR_FOLDER"),
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Remove a document from the index, or all below a folder. The files stay."""
    from ratchet.write.knowledge.index import index_path, open_index

    with open_index(index_path(ledger)) as index:
        removed = index.remove(path)
    if as_json:
        print_json({"removed": removed})
    else:
        _print(*(f"removed {one}" for one in removed))


def _records(rows: Iterable[object], names: str) -> list[dict[str, object]]:
    return [{name: getattr(one, name) for name in names.split()} for one in rows]


def _print(*lines: str) -> None:
    from ratchet.base.show.model import Lines, ResultReport

    print_result(ResultReport(header=(Lines(lines, indent=0),)))
