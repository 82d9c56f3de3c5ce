"""A reference as a file of its own, with only the parts of its module that it needs."""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass, field

from ratchet.base import NAME as PACKAGE
from ratchet.judge.problems.problem import Problem, reference_text

MODEL = "Model"


def standalone_reference(problem: Problem, entry: str = "") -> str | None:
    """Return a Python source that defines `entry` as the problem's reference, without Ratchet.

    A model becomes the class `entry`. Without an entry it keeps its own name. None if two modules
    use one name for different things.
    """
    module, _, function = problem.reference.rpartition(":")
    name = MODEL if problem.model is not None else function
    slice_ = _Slice()
    if not slice_.take(problem.text or reference_text(problem.reference), name, module):
        return None
    source = slice_.source()
    if not entry:
        return source
    if problem.model is not None:
        return re.sub(rf"\b{MODEL}\b", entry, source)
    return source if name == entry else f"{source}\n\n{entry} = {name}\n"


@dataclass(slots=True)
class _Slice:
    """A collector of statements from several modules, each after those that it needs."""

    imports: dict[str, None] = field(default_factory=dict)
    statements: list[str] = field(default_factory=list)
    homes: dict[str, str] = field(default_factory=dict)
    """The module of each name defined so far."""

    def take(self, text: str, name: str, module: str) -> bool:
        """Add `name` of a module, after the names that it needs; False if a name is taken."""
        defined = {
            one: node
            for node in ast.parse(text).body
            for one in _names_of(node)
            if not (isinstance(node, ast.ImportFrom) and node.module == "__future__")
        }
        return self._add(name, defined, text, module)

    def _add(self, name: str, defined: dict[str, ast.stmt], text: str, module: str) -> bool:
        node = defined.get(name)
        if node is None or self.homes.get(name) == module:
            return True  # a builtin, or added already
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            return self._import(name, node)
        if name in self.homes:
            return False
        self.homes |= dict.fromkeys(_names_of(node), module)
        needed = dict.fromkeys(one.id for one in ast.walk(node) if isinstance(one, ast.Name))
        if not all(self._add(one, defined, text, module) for one in needed):
            return False
        self.statements.append(_segment(text, node))
        return True

    def _import(self, name: str, node: ast.Import | ast.ImportFrom) -> bool:
        alias = next(one for one in node.names if (one.asname or one.name.split(".")[0]) == name)
        home = node.module if isinstance(node, ast.ImportFrom) else None
        if home == PACKAGE:
            home = sys.modules[PACKAGE]._HOMES[alias.name]
        if home is None or not home.startswith(f"{PACKAGE}."):
            shown: ast.stmt = ast.Import(names=[alias])
            if isinstance(node, ast.ImportFrom):
                shown = ast.ImportFrom(module=node.module, names=[alias], level=node.level)
            self.imports[ast.unparse(shown)] = None
            return True
        if alias.asname:
            return False
        return self.take(reference_text(f"{home}:{alias.name}"), alias.name, home)

    def source(self) -> str:
        """Return the file: imports, then statements."""
        head = ["from __future__ import annotations", *sorted(self.imports)]
        return "\n\n\n".join(["\n".join(head), *self.statements]) + "\n"


def _names_of(node: ast.stmt) -> list[str]:
    """Return the names that a statement at the top of a module defines."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [one.asname or one.name.split(".")[0] for one in node.names]
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]


def _segment(text: str, node: ast.stmt) -> str:
    """Return the lines of a statement, with its decorators."""
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(one.lineno for one in decorators)])
    return "\n".join(text.splitlines()[first - 1 : node.end_lineno])
