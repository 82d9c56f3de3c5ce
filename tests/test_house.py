"""Checks on the layout of `src/` as a whole."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import ratchet

PACKAGE = Path(ratchet.__file__).parent


@cache
def nodes() -> tuple[tuple[str, ast.ClassDef | ast.Expr], ...]:
    """Every class and every bare expression of `src/`, with the path of its file."""
    return tuple(
        (str(path.relative_to(PACKAGE)), node)
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef | ast.Expr)
    )


def test_a_class_name_stands_once() -> None:
    places = defaultdict(list)
    for path, node in nodes():
        if isinstance(node, ast.ClassDef):
            places[node.name].append(f"{path}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_docstrings_open_with_a_noun_or_a_verb() -> None:
    opens = re.compile(r"(What|Whether|How|Of)\b")
    found = []
    for path, node in nodes():
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = node.value.value
            if isinstance(text, str) and opens.match(text.strip()):
                found.append(f"{path}:{node.lineno}")
    assert found == []


def test_every_long_test_exists() -> None:
    folder = Path(__file__).parent
    lines = (folder / "long_tests.txt").read_text(encoding="utf-8").splitlines()
    for line in lines:
        if line and not line.startswith("#"):
            file, *_, name = line.split("::")
            assert f"def {name}(" in (folder / file).read_text(encoding="utf-8"), line
