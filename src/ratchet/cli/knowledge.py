"""`ratchet knowledge`: documents that authors may cite."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ratchet.cli.app import AsJson, Debug, LedgerUrl, app, print_json, print_result

DONE, NOTHING = 0, 1

commands = typer.Typer()
app.add_typer(commands, name="knowledge")


@commands.callback(invoke_without_command=True)
def knowledge(context: typer.Context) -> None:
    """Index documents that language models may cite when they write kernels."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@commands.command()
def add(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH_OR_FOLDER",
            help="Text, Markdown, HTML, PDF, or kernels (.cpp, .cu, .hip, .py).",
        ),
    ],
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Index a file, or every file below a folder. A changed file replaces its old text.

    Exit code 0: something is indexed. 1: nothing could be. 2: a mistake in the call.
    """
    from ratchet.base.errors import KnowledgeError
    from ratchet.write.knowledge.index import (
        added_document,
        added_report,
        change_report,
        index_path,
        open_index,
    )
    from ratchet.write.knowledge.read import LeftOut

    if not path.exists() and not path.is_symlink():
        raise KnowledgeError(f"{str(path)!r} does not exist: give a file or a folder")
    place = index_path(ledger)
    with open_index(place, create=True) as index:
        changes = []
        for change in index.add(path):
            changes.append(change)
            if not as_json:
                print_result(change_report(change))
    if as_json:
        print_json(added_document(changes, str(place)))
    else:
        print_result(added_report(changes, str(place)))
    indexed = any(not isinstance(one, LeftOut) for one in changes)
    raise typer.Exit(DONE if indexed else NOTHING)


@commands.command(name="list")
def list_documents(ledger: LedgerUrl = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """List the indexed documents, and the notes that ship with Ratchet."""
    from ratchet.write.knowledge.index import (
        documents_document,
        documents_report,
        index_path,
        open_index,
    )

    place = index_path(ledger)
    with open_index(place) as index:
        found = index.documents()
    if as_json:
        print_json(documents_document(found, str(place)))
    else:
        print_result(documents_report(found, str(place)))


@commands.command()
def search(
    query: Annotated[str, typer.Argument(help="Words to look for.")],
    most: Annotated[int, typer.Option("--most", min=1, max=100, help="Passages to show.")] = 5,
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show the passages that fit a query best, with their sources.

    Exit code 0: there are some. 1: there are none.
    """
    from ratchet.write.knowledge.index import (
        index_path,
        open_index,
        passages_document,
        passages_report,
    )

    with open_index(index_path(ledger)) as index:
        found = index.search(query, most=most)
    if as_json:
        print_json(passages_document(found, query))
    else:
        print_result(passages_report(found, query))
    raise typer.Exit(DONE if found else NOTHING)


@commands.command()
def remove(
    path: Annotated[
        str, typer.Argument(metavar="PATH_OR_FOLDER", help="A document, or a folder of them.")
    ],
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Remove a document from the index, or all below a folder. The files stay."""
    from ratchet.write.knowledge.index import index_path, open_index, removed_report

    with open_index(index_path(ledger)) as index:
        removed = index.remove(path)
    if as_json:
        print_json({"removed": removed})
    else:
        print_result(removed_report(removed))
