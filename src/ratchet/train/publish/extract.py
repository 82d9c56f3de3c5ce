"""Ratchet's own modules as the modules of a package that runs without Ratchet.

An exported op is the declaration that Ratchet itself runs, so nothing is written twice. A module is
cut down in two steps: statements that need a module which is not carried are dropped, and of the
rest those stay that are reached. Imports become relative.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from ratchet import base
from ratchet.judge.kernels import kernel, library
from ratchet.judge.kernels.library import sources
from ratchet.judge.problems import problem
from ratchet.judge.problems.problem_file import defined_by
from ratchet.judge.problems.suites import shipped

LEFT_BEHIND: Final = (
    base.NAME,
    *(one.__name__ for one in (kernel, library, sources, problem)),
)
"""Modules about judging and choosing kernels, which an exported package does not need."""
REFERENCES: Final = f"{shipped.__name__}."
ALL: Final = "*"


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """The meaning of a name that a module imports: a carried module, or a name of one."""

    module: str
    name: str = ""  # Empty if the name is the module itself


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A top-level statement with the docstring that follows it, if it is an assignment."""

    node: ast.stmt
    last_line: int
    defines: frozenset[str]
    uses: frozenset[str]

    @property
    def is_effect(self) -> bool:
        """Return whether the statement counts although nobody asks for its name, such as a call."""
        return not self.defines or _is_future(self.node)


@dataclass(frozen=True)
class OwnModule:
    """The source of a module, by its statements."""

    name: str
    text: str
    without: frozenset[str] = frozenset()
    """An effect whose first argument is one of these texts is dropped."""

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        body = ast.parse(self.text).body
        return tuple(
            _part(node, body[index + 1 : index + 2])
            for index, node in enumerate(body)
            if not _is_text(node)
        )

    @cached_property
    def imported(self) -> Mapping[str, Imported]:
        """Return what each name that is imported from Ratchet stands for."""
        return {
            alias.asname or alias.name: _meaning(node.module, alias.name)
            for node in self._imports
            for alias in node.names
            if node.module is not None
        }

    @cached_property
    def kept(self) -> tuple[Part, ...]:
        """Return the statements that need nothing of what is left behind."""
        lost = {name for name, one in self.imported.items() if one.module in LEFT_BEHIND}
        left = [one for one in self.parts if one.node not in self._imports]
        left = [one for one in left if _first_text(one.node) not in self.without]
        while fallen := [one for one in left if one.uses & lost]:
            left = [one for one in left if one not in fallen]
            lost |= {name for one in fallen for name in one.defines}
        return tuple(left)

    def reached(self, wanted: Collection[str]) -> tuple[Part, ...]:
        """Return what is kept of some names (`*` for all), with the effects of an import."""
        needed = {name for one in self.kept if one.is_effect for name in one.uses} | {*wanted}
        found: set[Part] = {one for one in self.kept if one.is_effect or ALL in wanted}
        while more := {one for one in self.kept if one.defines & needed} - found:
            found |= more
            needed |= {name for one in more for name in one.uses}
        needed |= {name for one in found for name in one.uses}
        return tuple(one for one in self.kept if one in found and _is_used(one, needed))

    def uses(self, wanted: Collection[str]) -> dict[str, set[str]]:
        """Return the names that some names need, by the module that has them."""
        found: dict[str, set[str]] = {}
        parts = self.reached(wanted)
        for name in {name for part in parts for name in part.uses} & self.imported.keys():
            one = self.imported[name]
            asked = {one.name} if one.name else _attributes_of(name, parts)
            found.setdefault(one.module, set()).update(asked)
        return found

    def written(self, wanted: Collection[str]) -> str:
        """Return the text of some names, with relative imports."""
        parts = self.reached(wanted)
        lines = self.text.splitlines(keepends=True)
        used = {name for part in parts for name in part.uses}
        imports = []
        for name, one in sorted(self.imported.items()):
            if name in used and one.module not in LEFT_BEHIND:
                file = file_of(one.module)
                what, place = (one.name, f".{file}") if one.name else (file, ".")
                renamed = "" if what == name else f" as {name}"
                imports.append(f"from {place} import {what}{renamed}\n")
        plain = [one for one in parts if isinstance(one.node, ast.Import | ast.ImportFrom)]
        others = [one for one in parts if one not in plain]
        head = [*self._head(wanted), *_texts(lines, plain), "\n" * bool(imports), *imports]
        return "".join([*head, *(f"\n\n{one}" for one in _texts(lines, others))])

    @cached_property
    def _imports(self) -> list[ast.ImportFrom]:
        found = [one.node for one in self.parts if isinstance(one.node, ast.ImportFrom)]
        return [one for one in found if f"{one.module}.".startswith(f"{base.NAME}.")]

    def _head(self, wanted: Collection[str]) -> Iterator[str]:
        """Yield the docstring; of a module that is wanted in part, its first paragraph."""
        said = ast.get_docstring(ast.parse(self.text), clean=False) or ""
        if wanted and ALL not in wanted:
            said = said.partition("\n\n")[0]
        if said:
            yield f'"""{said}"""\n\n'


@dataclass
class Extract:
    """The modules of a package, gathered from the names that it asks for."""

    without: frozenset[str] = frozenset()
    _modules: dict[str, OwnModule] = field(default_factory=dict)
    _wanted: dict[str, set[str]] = field(default_factory=dict)

    def add(self, module: str, names: Iterable[str] = (), text: str | None = None) -> None:
        """Add names of a module, and all that they need; `text` is that of a module to be made."""
        left = [(module, set(names))]
        if text is not None:
            self._modules[module] = OwnModule(module, text)
        while left:
            name, asked = left.pop()
            known = self._wanted.get(name)
            if name in LEFT_BEHIND or (known is not None and asked <= known):
                continue
            wanted = self._wanted.setdefault(name, set())
            wanted |= asked
            left += self._module(name).uses(wanted).items()

    def texts(self, namespace: str) -> dict[str, str]:
        """Return the text of each file, by its name; ops are defined in `namespace`."""
        return {
            f"{file_of(name)}.py": _in_namespace(self._module(name).written(wanted), namespace)
            for name, wanted in sorted(self._wanted.items())
        }

    def _module(self, name: str) -> OwnModule:
        if name not in self._modules:
            path = base.file_of(name)
            assert path is not None, name
            self._modules[name] = OwnModule(name, path.read_text(encoding="utf-8"), self.without)
        return self._modules[name]


def file_of(module: str) -> str:
    """Return the name of a module's file in a package, without its ending."""
    ending = "_reference" if module.startswith(REFERENCES) else ""
    return f"_{module.rpartition('.')[2]}{ending}"


def _in_namespace(text: str, namespace: str) -> str:
    for before, after in (
        (f"torch.ops.{base.NAME}.", f"torch.ops.{namespace}."),
        (f"{base.NAME}::", f"{namespace}::"),
        (f'"{base.NAME}"', f'"{namespace}"'),
    ):
        text = text.replace(before, after)
    return text


def _part(node: ast.stmt, following: list[ast.stmt]) -> Part:
    last = node.end_lineno or node.lineno
    if following and _is_text(following[0]) and isinstance(node, ast.Assign | ast.AnnAssign):
        last = following[0].end_lineno or last
    uses = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return Part(
        node=node, last_line=last, defines=frozenset(defined_by(node)), uses=frozenset(uses)
    )


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_used(part: Part, needed: Collection[str]) -> bool:
    """Return whether a statement stays: of several imported names, one is used."""
    if isinstance(part.node, ast.Import | ast.ImportFrom) and not _is_future(part.node):
        return bool(part.defines & {*needed})
    return True


def _first_text(node: ast.stmt) -> object:
    """Return the first argument of a call that is a statement, if it is a constant."""
    call = node.value if isinstance(node, ast.Expr) else None
    first = call.args[0] if isinstance(call, ast.Call) and call.args else None
    return first.value if isinstance(first, ast.Constant) else None


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _attributes_of(name: str, parts: Iterable[Part]) -> set[str]:
    """Return the names that a module is asked for; all of them if one is computed."""
    nodes = [one for part in parts for one in ast.walk(part.node)]
    named = sum(isinstance(one, ast.Name) and one.id == name for one in nodes)
    found = [
        one.attr
        for one in nodes
        if isinstance(one, ast.Attribute)
        and isinstance(one.value, ast.Name)
        and one.value.id == name
    ]
    return {ALL} if named > len(found) else {*found}


def _meaning(module: str, name: str) -> Imported:
    below = f"{module}.{name}"
    if base.file_of(below) is not None:
        return Imported(module=below)
    return Imported(module=module, name=name)


def _texts(lines: list[str], parts: Iterable[Part]) -> Iterator[str]:
    for one in parts:
        decorators = getattr(one.node, "decorator_list", [])
        first = min([one.node.lineno, *(each.lineno for each in decorators)])
        yield "".join(lines[first - 1 : one.last_line])
