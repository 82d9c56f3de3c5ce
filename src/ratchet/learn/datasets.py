"""Pretraining text from Hugging Face datasets: those of the hub, or folders on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ratchet.base.errors import LearnError

COLUMN: Final = "text"
PIECE: Final = 20_000
"""Most characters of a document: a longer row becomes several."""


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


def _rows(place: str, name: str) -> Iterator[dict[str, Any]]:
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
