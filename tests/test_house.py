"""Checks on the layout of `src/` as a whole."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import ratchet

PACKAGE = Path(ratchet.__file__).parent


@cache
def texts() -> dict[str, str]:
    """Every file of `src/` by its path."""
    return {
        str(path.relative_to(PACKAGE)): path.read_text("utf-8") for path in PACKAGE.rglob("*.py")
    }


def classes(text: str) -> list[str]:
    return [node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]


def test_a_class_name_stands_once() -> None:
    """Only files in whose text a name stands twice are parsed: it may stand in a string."""
    places = defaultdict(list)
    for path, text in texts().items():
        for name in re.findall(r"^ *class (\w+)", text, re.MULTILINE):
            places[name].append(path)
    several = {path for paths in places.values() if len(paths) > 1 for path in paths}
    found = Counter(name for path in several for name in classes(texts()[path]))
    assert {name: places[name] for name, times in found.items() if times > 1} == {}


def test_docstrings_open_with_a_noun_or_a_verb() -> None:
    opens = re.compile(r'^ *r?"""\s*(What|Whether|How|Of)\b', re.MULTILINE)
    assert [path for path, text in texts().items() if opens.search(text)] == []


def test_every_long_test_exists() -> None:
    folder = Path(__file__).parent
    lines = (folder / "long_tests.txt").read_text(encoding="utf-8").splitlines()
    for line in lines:
        if line and not line.startswith("#"):
            file, *_, name = line.split("::")
            assert f"def {name}(" in (folder / file).read_text(encoding="utf-8"), line
