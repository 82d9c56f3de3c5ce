"""Replay text from datasets, as the package datasets reads them from a folder."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from ratchet.base.errors import LearnError
from ratchet.write.learn.corpus import PIECE, dataset_documents

pytestmark = [
    pytest.mark.skipif(find_spec("datasets") is None, reason="datasets is not installed"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


def folder_of(place: Path, rows: list[dict[str, object]]) -> str:
    place.mkdir()
    (place / "part.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(place)


def test_rows_become_documents_and_long_ones_several(tmp_path: Path) -> None:
    name = folder_of(tmp_path / "set", [{"text": "a" * (PIECE + 5)}, {"text": "  "}, {"text": "b"}])
    found = list(dataset_documents(name, 1_000_000))
    assert [len(one) for one in found] == [PIECE, 5, 1]


def test_no_more_is_read_than_was_asked_for(tmp_path: Path) -> None:
    name = folder_of(tmp_path / "set", [{"body": "x" * 100, "n": 1}] * 50)
    found = list(dataset_documents(f"{name}:body", 1000))
    assert len(found) == 10


def test_a_column_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    name = folder_of(tmp_path / "set", [{"body": "x", "n": 1}])
    with pytest.raises(LearnError, match=r"no column of text 'text'.*\(body\)"):
        list(dataset_documents(name, 1000))


def test_a_dataset_that_does_not_exist_is_one_line(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(LearnError, match="cannot be read"):
        list(dataset_documents(str(empty), 1000))
