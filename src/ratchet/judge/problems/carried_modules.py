"""References as candidates: a source that carries the Ratchet modules that it imports.

A candidate's sandbox holds none of these modules, since they tell how answers are judged. A source
that stands for the reference itself (`--candidate eager`) includes their text instead.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from typing import Final

from ratchet.base import NAME as PACKAGE
from ratchet.base import file_of

_PRELUDE: Final = '''
import importlib.machinery as _machinery
import sys as _sys


class _Carried:
    """A finder for the modules that this source carries, where the sandbox lacks or closes them."""

    texts = {texts!r}

    def find_spec(self, name, path=None, target=None):
        if name not in self.texts or self.is_open(name, path):
            return None
        below = any(one.startswith(name + ".") for one in self.texts)
        spec = _machinery.ModuleSpec(name, self, origin="<carried>", is_package=below)
        spec.has_location = True  # some modules ask for their __file__
        return spec

    def is_open(self, name, path):
        found = _machinery.PathFinder.find_spec(name, path)
        try:
            open(found.origin).close()
        except (AttributeError, TypeError, OSError):  # not found, or no file, or closed
            return False
        return True

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        exec(compile(self.texts[module.__name__], "<carried>", "exec"), module.__dict__)


_sys.meta_path.insert(0, _Carried())
'''


def with_modules(source: str) -> str:
    """Return a Python source without imports of Ratchet; unchanged if it has none."""
    tree = ast.parse(source)
    texts = _carried(tree)
    if not texts:
        return source
    lines = source.splitlines(keepends=True)
    first = _lines_before_code(tree)
    prelude = _PRELUDE.replace("{texts!r}", repr(texts))
    return "".join([*lines[:first], prelude, *lines[first:]])


def _lines_before_code(tree: ast.Module) -> int:
    """Return the number of lines of the docstring and `from __future__`, which must stay on top."""
    last = 0
    for place, node in enumerate(tree.body):
        is_text = place == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not is_text and not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            break
        last = node.end_lineno or last
    return last


def _carried(tree: ast.Module) -> dict[str, str]:
    """Return the texts of all imported modules, directly or not; parent packages are empty.

    Imports inside functions count only in the source itself: a reference calls nothing that draws
    inputs or checks answers.
    """
    texts: dict[str, str] = {}
    left = list(_imported(ast.walk(tree)))
    while left:
        name = left.pop()
        path = file_of(name)
        if path is None or name in texts or name == PACKAGE:
            continue
        texts[name] = path.read_text(encoding="utf-8")
        left += _imported(iter(ast.parse(texts[name]).body))
    above = {parent for name in texts for parent in _parents(name)}
    return dict.fromkeys(sorted(above - {PACKAGE}), "") | texts


def _imported(nodes: Iterator[ast.AST]) -> Iterator[str]:
    """Return the names that the imports among some nodes ask for, if they are or may be modules."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for one in node.names:
                yield one.name
                if one.name == PACKAGE:
                    yield from _homes(sys.modules[PACKAGE].__all__)
        elif isinstance(node, ast.ImportFrom) and node.module == PACKAGE:
            yield from _homes([one.name for one in node.names])
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{one.name}" for one in node.names)


def _homes(names: list[str]) -> Iterator[str]:
    """Return the modules of the public names that a problem is made of."""
    homes = (sys.modules[PACKAGE]._HOMES.get(name, "") for name in names)
    made_of = (f"{PACKAGE}.judge.kernels.", f"{PACKAGE}.judge.problems.")
    return (home for home in homes if home.startswith(made_of))


def _parents(name: str) -> Iterator[str]:
    while name := name.rpartition(".")[0]:
        yield name
