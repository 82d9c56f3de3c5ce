"""Pretraining text: files, folders, Hugging Face datasets, and what ships with Ratchet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from ratchet.base import Json
from ratchet.base.errors import LearnError, WorkloadError
from ratchet.base.ledger.store import Ledger
from ratchet.base.text import file_text, standard_library_text
from ratchet.write.knowledge.index import index_path, open_index

COLUMN: Final = "text"
PIECE: Final = 20_000
"""Most characters of a document: a longer text becomes several."""
TEXT_BYTES: Final = 2_000_000
"""Text of a dataset, or of what ships, at most."""
SUFFIXES: Final = frozenset({".txt", ".md", ".rst", ".py", ".cpp", ".hip", ".cu", ".h", ".hpp"})
"""Suffixes of the files that are read in a folder."""


def documents(
    texts: Sequence[Path], datasets: Sequence[str], ledger: Ledger | None
) -> Iterator[str]:
    """Yield the documents of files, folders and datasets.

    Without any, yield those of `ratchet knowledge add`, the notes that ship and Python's sources.

    Raises:
        LearnError: a file or a dataset cannot be read.
    """
    for name in datasets:
        yield from dataset_documents(name, TEXT_BYTES)
    if not texts and not datasets:
        with open_index(index_path(None if ledger is None else ledger.engine.url)) as index:
            yield from index.texts()
        whole = standard_library_text(TEXT_BYTES)
        yield from (whole[at : at + PIECE] for at in range(0, len(whole), PIECE))
        return
    for place in texts:
        files = [place]
        if place.is_dir():
            files = sorted(one for one in place.rglob("*") if one.suffix in SUFFIXES)
        for path in files:
            try:
                text = file_text(path)
            except WorkloadError as error:
                raise LearnError(str(error)) from error
            if text.strip():
                yield from (text[at : at + PIECE] for at in range(0, len(text), PIECE))


def dataset_documents(name: str, most_bytes: int) -> Iterator[str]:
    """Yield the rows of a dataset's text column, `most_bytes` of them in all.

    `name` is `NAME[:COLUMN]`: a name on the hub, or a folder that `datasets` can read (Parquet,
    JSON lines, CSV, text). The column is `text` unless it is named. Rows are streamed, so a large
    dataset is not downloaded whole. The split is `train`, or the only one.

    Raises:
        LearnError: `datasets` is not installed, or there is no such dataset or column.
    """
    place, _, column = name.partition(":")
    column = column or COLUMN
    left = most_bytes
    for row in _rows(place, name):
        if not isinstance(row.get(column), str):
            known = ", ".join(sorted(key for key, one in row.items() if isinstance(one, str)))
            raise LearnError(
                f"dataset {place!r} has no column of text {column!r}: name one of its columns "
                f"({known or 'none holds text'}), as in --dataset {place}:COLUMN"
            )
        text = row[column]
        for at in range(0, len(text), PIECE):
            piece = text[at : at + PIECE]
            left -= len(piece.encode())
            if left < 0:
                return
            if piece.strip():
                yield piece


def _rows(place: str, name: str) -> Iterator[dict[str, Json]]:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise LearnError(
            f"--dataset {name} needs the package datasets: pip install 'torch-ratchet[learn]'"
        ) from error
    try:
        splits = load_dataset(str(Path(place)) if Path(place).exists() else place, streaming=True)
        split = "train" if "train" in splits else next(iter(splits))
        yield from splits[split]
    except (OSError, ValueError, RuntimeError, StopIteration) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise LearnError(
            f"dataset {place!r} cannot be read ({why[:200]}): give a name on the hub, or a folder "
            "with Parquet, JSON lines, CSV or text files"
        ) from error
