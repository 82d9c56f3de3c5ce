"""Checks on the layout of `src/` as a whole."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from ratchet.base import FOLDER

ROOT = Path(__file__).parents[1]
LONGEST = 700
"""Lines of a file, at most: what one reader would want open at once."""


@cache
def texts() -> dict[str, str]:
    """Every module of `src/` with its text."""
    found = {}
    for path in FOLDER.rglob("*.py"):
        parts = path.relative_to(FOLDER.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path.read_text("utf-8")
    return found


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Every statement below a node: no import stands in an expression."""
    for part in ("body", "orelse", "handlers", "finalbody", "cases"):
        for one in getattr(node, part, ()):
            yield one
            yield from statements(one)


def imports(text: str) -> Iterator[str]:
    """The modules that a file imports anywhere, for types alone too."""
    for node in statements(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            below = [f"{node.module}.{one.name}" for one in node.names]
            yield from (name if name in texts() else node.module for name in below)


def test_no_files_import_each_other_in_a_circle() -> None:
    graph = {
        name: {one for one in imports(text) if one in texts() and one != name}
        for name, text in texts().items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"a circle: {' -> '.join(error.args[1])}") from None


def test_no_file_is_longer_than_a_reader_wants_open() -> None:
    long = {name: text.count("\n") for name, text in texts().items()}
    assert {name: lines for name, lines in long.items() if lines > LONGEST} == {}


def test_docstrings_open_with_a_noun_or_a_verb() -> None:
    opens = re.compile(r'^ *r?"""\s*(What|Whether|How|Of)\b', re.MULTILINE)
    assert [name for name, text in texts().items() if opens.search(text)] == []


def test_every_long_test_exists() -> None:
    folder = Path(__file__).parent
    lines = (folder / "long_tests.txt").read_text(encoding="utf-8").splitlines()
    for line in lines:
        if line and not line.startswith("#"):
            file, *_, name = line.split("::")
            assert f"def {name}(" in (folder / file).read_text(encoding="utf-8"), line


def test_workflows_follow_githubs_schema() -> None:
    pytest.importorskip("check_jsonschema", reason="check-jsonschema carries GitHub's schema")
    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema"]
    files = sorted(map(str, (ROOT / ".github" / "workflows").glob("*.yml")))
    done = subprocess.run(
        [*words, "vendor.github-workflows", *files], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout
