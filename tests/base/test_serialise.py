"""The one serialiser: scalars of NumPy and of classes that extend Python's become Python's own."""

from __future__ import annotations

import json
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest

from ratchet.base.serialise import document_of, encoded, json_text


class Version(str):
    """A text of a class of its own, as torch's version is."""


class Row(msgspec.Struct):
    name: str
    ratio: float
    counts: tuple[int, ...] = ()


@dataclass(frozen=True)
class Whole:
    rows: list[Row]


ROW = Row(name=Version("2.13"), ratio=np.float64(1.5), counts=(np.int64(2), 3))  # type: ignore[arg-type]


def test_scalars_become_pythons_own() -> None:
    found = document_of(Whole([ROW]))["rows"][0]
    assert found == {"name": "2.13", "ratio": 1.5, "counts": (2, 3)}
    assert [type(one) for one in (found["name"], found["ratio"], found["counts"][0])] == [
        str,
        float,
        int,
    ]
    assert msgspec.convert(found, Row) == ROW


def test_a_number_that_is_not_finite_is_null() -> None:
    text = encoded(Row(name="a", ratio=float("nan")), indent=2)
    assert text.endswith(b"}\n") and json.loads(text)["ratio"] is None


def test_a_document_is_strict_json_in_ascii() -> None:
    rows = [ROW, Row(name="·", ratio=float("inf"))]
    text = json_text({"rows": rows, "worst": float("nan"), "pair": (float("-inf"), 1)})
    assert text.isascii()
    found = json.loads(text, parse_constant=pytest.fail)
    assert found["worst"] is None and found["pair"] == [None, 1]
    assert [row["ratio"] for row in found["rows"]] == [1.5, None]


def test_what_has_no_json_is_an_error() -> None:
    with pytest.raises(NotImplementedError, match="no JSON for object"):
        document_of([object()])
