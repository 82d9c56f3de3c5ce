"""Every test that needs a GPU names a twin that shows the same rule on a GPU that is not here.

It does so by its mark, `gpu(twin="folder/test_file.py::test_name")`. A file's mark holds for each
of its tests that has none of its own. Some twins are of the long tier.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

import pytest

HERE = Path(__file__).parent
LEFT_OUT = {"gpu", "thorough", "skip"}
"""Marks of tests that do not run everywhere, if they stand on the whole test."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A test as its file's text has it."""

    name: str
    """With its class, as in `TestClass::test_name`."""
    marks: dict[str, ast.expr]
    """Those of the whole test by name: its own, else its class's, else its file's."""
    of_parameters: list[tuple[str, ast.expr]]
    """Those that stand on some of its parameters."""

    @property
    def on_gpu(self) -> list[ast.expr]:
        """Its marks that ask for a GPU."""
        of_parameters = [one for name, one in self.of_parameters if name == "gpu"]
        return of_parameters + ([self.marks["gpu"]] if "gpu" in self.marks else [])


Named = dict[str, ast.expr]
"""Values that a file gives a name to."""


def marks(nodes: Iterable[ast.expr], named: Named) -> Iterator[tuple[str, ast.expr]]:
    """Yield the name and the expression of each mark in a decorator or in `pytestmark`."""
    for node in nodes:
        if isinstance(node, (ast.List, ast.Tuple)):
            yield from marks(node.elts, named)
            continue
        if isinstance(node, ast.Name) and node.id in named:
            rest = {name: value for name, value in named.items() if name != node.id}
            yield from marks([named[node.id]], rest)
            continue
        called = node.func if isinstance(node, ast.Call) else node
        if isinstance(called, ast.Attribute) and ast.unparse(called.value) == "pytest.mark":
            yield called.attr, node


def marks_of_parameters(nodes: list[ast.expr], named: Named) -> Iterator[tuple[str, ast.expr]]:
    """Yield the marks that stand on parameters, in `pytest.param(..., marks=...)`."""
    whole = [one for name, one in marks(nodes, named) if name == "parametrize"]
    # Parameters may stand in a list with a name of its own.
    whole += [named[one.id] for top in whole for one in ast.walk(top) if _is_named(one, named)]
    for top in whole:
        for one in ast.walk(top):
            if isinstance(one, ast.Call) and ast.unparse(one.func) == "pytest.param":
                yield from marks([k.value for k in one.keywords if k.arg == "marks"], named)


def _is_named(node: ast.AST, named: Named) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and node.id in named


def twin_in(node: ast.expr) -> str:
    """Return the twin that a mark names; "" if it names none."""
    given = {one.arg: one.value for one in node.keywords} if isinstance(node, ast.Call) else {}
    twin = given.get("twin")
    return str(twin.value) if isinstance(twin, ast.Constant) else ""


def found_in(path: Path) -> Iterator[Found]:
    """Yield each test of a file."""
    yield from _found(ast.parse(path.read_text()).body, {}, {}, "")


def _found(
    body: list[ast.stmt], named: Named, above: dict[str, ast.expr], place: str
) -> Iterator[Found]:
    """Yield the tests of a file's body, or of a class's; those `above` are marked too."""
    assigned = [one for one in body if isinstance(one, ast.Assign)]
    named = named | {ast.unparse(one.targets[0]): one.value for one in assigned}
    above = above | dict(marks([named["pytestmark"]] if "pytestmark" in named else [], named))
    named.pop("pytestmark", None)
    for one in body:
        if isinstance(one, ast.ClassDef) and one.name.startswith("Test"):
            marked = above | dict(marks(one.decorator_list, named))
            yield from _found(one.body, named, marked, f"{place}{one.name}::")
        elif isinstance(one, ast.FunctionDef) and one.name.startswith("test_"):
            yield Found(
                name=place + one.name,
                marks=above | dict(marks(one.decorator_list, named)),
                of_parameters=list(marks_of_parameters(one.decorator_list, named)),
            )


def on_gpus(folder: Path = HERE) -> list[tuple[str, str]]:
    """Return each test that needs a GPU, with each of its twins."""
    files = sorted(folder.rglob("test_*.py"))
    texts = [path for path in files if "mark.gpu" in path.read_text()]
    return [
        (f"{path.relative_to(folder)}::{found.name}", twin_in(mark))
        for path in texts
        for found in found_in(path)
        for mark in found.on_gpu
    ]


def collected(folder: Path, *options: str) -> set[str]:
    """Return the tests that `pytest -m gpu` would run, without their parameters."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "gpu", *options]
    asked = [*command, "-o", "addopts=", "-p", "no:cacheprovider", str(folder)]
    done = subprocess.run(asked, cwd=folder, capture_output=True, text=True)
    assert done.returncode in (0, 5), done.stdout + done.stderr
    named = [line.partition("[")[0] for line in done.stdout.splitlines() if "::" in line]
    return {line.removeprefix("tests/") for line in named}


FORMS = """
import pytest

A_GPU = pytest.mark.gpu(twin="a.py::test_of_a_name")
ROWS = [1, pytest.param(2, marks=[A_GPU])]

class TestOfClass:
    pytestmark = pytest.mark.gpu(twin="a.py::test_of_class")
    def test_by_its_class(self): ...
    @pytest.mark.gpu(twin="a.py::test_own")
    def test_by_its_own(self): ...
    class TestInner:
        def test_within(self): ...

@A_GPU
class TestDecorated:
    def test_by_a_decorator(self): ...

@pytest.mark.parametrize("x", [1, pytest.param(2, marks=pytest.mark.gpu(twin="a.py::test_one"))])
def test_by_a_parameter(x): ...

@pytest.mark.parametrize("x", ROWS)
def test_by_named_rows(x): ...

@pytest.mark.gpu
def test_without_a_twin(): ...

@A_GPU
def test_by_name(): ...

def test_on_cores(): ...
"""


def test_all_forms_of_a_mark_are_found(tmp_path: Path) -> None:
    (tmp_path / "test_forms.py").write_text(FORMS)
    twins = {test.partition("::")[2]: twin.rpartition("::")[2] for test, twin in on_gpus(tmp_path)}
    assert twins == {
        "TestOfClass::test_by_its_class": "test_of_class",
        "TestOfClass::test_by_its_own": "test_own",
        "TestOfClass::TestInner::test_within": "test_of_class",
        "TestDecorated::test_by_a_decorator": "test_of_a_name",
        "test_by_a_parameter": "test_one",
        "test_by_named_rows": "test_of_a_name",
        "test_without_a_twin": "",
        "test_by_name": "test_of_a_name",
    }
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
    assert collected(tmp_path) == {f"test_forms.py::{name}" for name in twins}


@pytest.mark.thorough
def test_pytest_collects_the_same_tests() -> None:
    assert collected(HERE) == {test for test, _ in on_gpus()}


@pytest.mark.parametrize(("test", "twin"), on_gpus())
def test_a_test_that_needs_a_gpu_has_a_twin_that_needs_none(test: str, twin: str) -> None:
    file, _, name = twin.partition("::")
    assert name, f"{test}: name its twin, as gpu(twin='folder/test_file.py::test_name')"
    found = {one.name: one.marks for one in found_in(HERE / file)}.get(name)
    assert found is not None, f"{test}: there is no {twin}"
    assert not LEFT_OUT & found.keys(), f"{test}: {twin} does not run everywhere"
    on_cuda = [one for one in found.values() if "cuda.is_available" in ast.unparse(one)]
    assert not on_cuda, f"{test}: {twin} is skipped by what torch sees"
