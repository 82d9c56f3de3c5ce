"""Every test that needs a GPU names a twin that shows the same rule on a GPU that is not here.

It does so by its mark, `gpu(twin="folder/test_file.py::test_name")`. A file's mark holds for each
of its tests that has none of its own. Some twins are of the long tier.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LEFT_OUT = {"gpu", "thorough", "skip"}
"""Marks of tests that do not run everywhere, if they stand on the whole test."""


def marks(nodes: list[ast.expr]) -> Iterator[tuple[str, ast.expr]]:
    """Yield the name and the expression of each mark in a decorator or in `pytestmark`."""
    for node in nodes:
        if isinstance(node, (ast.List, ast.Tuple)):
            yield from marks(node.elts)
            continue
        called = node.func if isinstance(node, ast.Call) else node
        if isinstance(called, ast.Attribute) and ast.unparse(called.value) == "pytest.mark":
            yield called.attr, node


def twin_in(node: ast.expr) -> str:
    """Return the twin that a mark names; "" if it names none."""
    given = {one.arg: one.value for one in node.keywords} if isinstance(node, ast.Call) else {}
    twin = given.get("twin")
    return str(twin.value) if isinstance(twin, ast.Constant) else ""


def found_in(path: Path) -> Iterator[tuple[str, dict[str, ast.expr]]]:
    """Yield each test of a file with its marks by name: its own, else the file's."""
    body = ast.parse(path.read_text()).body
    of_file = [
        one.value
        for one in body
        if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "pytestmark"
    ]
    for one in body:
        if isinstance(one, ast.FunctionDef) and one.name.startswith("test_"):
            yield one.name, dict(marks(of_file)) | dict(marks(one.decorator_list))


def on_gpus() -> list[tuple[str, str]]:
    """Return each test that needs a GPU, and its twin."""
    files = sorted(HERE.rglob("test_*.py"))
    texts = [path for path in files if "mark.gpu" in path.read_text()]
    return [
        (f"{path.relative_to(HERE)}::{name}", twin_in(found["gpu"]))
        for path in texts
        for name, found in found_in(path)
        if "gpu" in found
    ]


@pytest.mark.parametrize(("test", "twin"), on_gpus())
def test_a_test_that_needs_a_gpu_has_a_twin_that_needs_none(test: str, twin: str) -> None:
    file, _, name = twin.partition("::")
    assert name, f"{test}: name its twin, as gpu(twin='folder/test_file.py::test_name')"
    found = dict(found_in(HERE / file)).get(name)
    assert found is not None, f"{test}: there is no {twin}"
    assert not LEFT_OUT & found.keys(), f"{test}: {twin} does not run everywhere"
    on_cuda = [one for one in found.values() if "cuda.is_available" in ast.unparse(one)]
    assert not on_cuda, f"{test}: {twin} is skipped by what torch sees"
