"""Checks on the layout of `src/` as a whole."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import ratchet

PACKAGE = Path(ratchet.__file__).parent


def test_a_class_name_stands_once() -> None:
    places = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_every_long_test_exists() -> None:
    folder = Path(__file__).parent
    lines = (folder / "long_tests.txt").read_text(encoding="utf-8").splitlines()
    for line in lines:
        if line and not line.startswith("#"):
            file, *_, name = line.split("::")
            assert f"def {name}(" in (folder / file).read_text(encoding="utf-8"), line
