"""Find the project's own files behind a user's workload, without running any of them.

A proof holds for the code it was made with: the workload's file, and every module of the project
that it imports directly or indirectly. The project is everything except the standard library,
installed packages and Ratchet. Imports are read from the source text, including those inside
functions and `importlib.import_module` with a literal name. A module whose name is known only at
run time is not found.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

PROJECT_MARKS = (".git", "pyproject.toml", "setup.py", "setup.cfg")
INSTALLED = ("site-packages", "dist-packages")
SUFFIXES = (".py", *EXTENSION_SUFFIXES)
IMPORTERS = ("import_module", "__import__")
STAR = "*"


class Folder:
    """A folder that may hold modules; its names are read once, and a missing folder has none."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def names(self) -> frozenset[str]:
        try:
            return frozenset(os.listdir(self.path))
        except OSError:
            return frozenset()

    def first(self, module: str) -> Path | None:
        """Return the file that holds `module` here; source files come before compiled ones."""
        for suffix in SUFFIXES:
            if f"{module}{suffix}" in self.names and (self.path / f"{module}{suffix}").is_file():
                return self.path / f"{module}{suffix}"
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Module:
    """A module by its dotted name; `file` is None for a namespace package."""

    name: str
    file: Path | None
    folders: tuple[Folder, ...] = ()
    """The folders of a package's submodules; empty for a plain module."""

    @property
    def package(self) -> str:
        """Return the package that relative imports start from."""
        return self.name if self.folders else self.name.rpartition(".")[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Import:
    """One import as written: `from ..name import members`, with `level` dots."""

    name: str
    members: tuple[str, ...] = ()
    level: int = 0


def source_hash(file: Path) -> str:
    """Hash the names and contents of a workload's file and of the project files it imports."""
    file, digest = file.resolve(), hashlib.sha256()
    for path in project_files(file):
        content = _content(path)
        digest.update(f"{os.path.relpath(path, file.parent)}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def project_files(file: Path) -> list[Path]:
    """List the workload's file and every project file that it imports, sorted."""
    file = file.resolve()
    search = _Search(roots=tuple(Folder(path) for path in _roots(file)))
    search.follow(Module(name=file.stem, file=file))
    return sorted(search.files)


class _Search:
    """Follows imports from module to module, each one once."""

    def __init__(self, roots: tuple[Folder, ...]) -> None:
        self.roots = roots
        self.files: set[Path] = set()
        self._seen: dict[str, Module | None] = {}

    def follow(self, module: Module) -> None:
        """Add this module's file and everything that it imports."""
        waiting = [module]
        while waiting:
            found = waiting.pop()
            if found.file is None or found.file in self.files:
                continue
            self.files.add(found.file)
            if found.file.suffix == ".py":
                for written in _imports(_content(found.file)):
                    waiting += self._modules(written, found)

    def _modules(self, written: Import, importer: Module) -> Iterator[Module]:
        """Yield the project modules that one import runs, including the packages on the way."""
        name = _absolute(written, importer)
        if not name:
            return
        chain = list(self._chain(name))
        yield from chain
        if not chain or chain[-1].name != name:
            return
        for member in written.members:
            names = _submodules(chain[-1]) if member == STAR else [member]
            yield from (one for part in names if (one := self._find(f"{name}.{part}")))

    def _chain(self, name: str) -> Iterator[Module]:
        """Yield the packages down to `name`, as long as they belong to the project."""
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            found = self._find(".".join(parts[:count]))
            if found is None:
                return
            yield found

    def _find(self, name: str) -> Module | None:
        if name not in self._seen:
            self._seen[name] = self._locate(name)
        return self._seen[name]

    def _locate(self, name: str) -> Module | None:
        parent, _, own = name.rpartition(".")
        if parent:
            package = self._find(parent)
            return _in_folders(name, own, package.folders) if package else None
        if name == "ratchet":
            return None
        found = _in_folders(name, own, self.roots)
        return found if found and found.file else _elsewhere(name) or found


def _in_folders(name: str, own: str, folders: Iterable[Folder]) -> Module | None:
    """Find a module like Python's path finder; packages come before plain modules."""
    portions = []
    for folder in folders:
        package = Folder(folder.path / own) if own in folder.names else None
        if package and (start := package.first("__init__")):
            return Module(name=name, file=start.resolve(), folders=(package,))
        if plain := folder.first(own):
            return Module(name=name, file=plain.resolve())
        if package and package.path.is_dir():
            portions.append(package)
    return Module(name=name, file=None, folders=tuple(portions)) if portions else None


def _elsewhere(name: str) -> Module | None:
    """Find a top-level project module through Python's own finders. Runs no module."""
    if name in sys.stdlib_module_names:
        return None
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None:
        return None
    folders = tuple(Path(one) for one in spec.submodule_search_locations or ())
    origin = Path(spec.origin).resolve() if spec.has_location and spec.origin else None
    places = [origin] if origin else [folder.resolve() for folder in folders]
    if not places or any(_is_installed(place) for place in places):
        return None
    return Module(name=name, file=origin, folders=tuple(Folder(path) for path in folders))


def _is_installed(path: Path) -> bool:
    return any(part in INSTALLED for part in path.parts) or any(
        path.is_relative_to(folder) for folder in _installed_folders()
    )


@cache
def _installed_folders() -> tuple[Path, ...]:
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple(Path(sysconfig.get_path(kind)).resolve() for kind in kinds)


def _roots(file: Path) -> tuple[Path, ...]:
    """Return the folders of top-level modules: the workload's folder, then the project's root.

    The root is included because scripts add it to `sys.path`.
    """
    for folder in file.parents:
        if any((folder / mark).exists() for mark in PROJECT_MARKS):
            return file.parent, folder, folder / "src"
    return (file.parent,)


def _absolute(written: Import, importer: Module) -> str:
    """Return the absolute name of an import, or "" for a relative one that leads nowhere."""
    if not written.level:
        return written.name
    package = importer.package.split(".") if importer.package else []
    kept = len(package) - (written.level - 1)
    if kept < 1:
        return ""
    return ".".join([*package[:kept], *([written.name] if written.name else [])])


def _submodules(package: Module) -> list[str]:
    """Return the submodules of a package that `import *` may run."""
    return sorted(
        {
            name.partition(".")[0]
            for folder in package.folders
            for name in folder.names
            if name.endswith(SUFFIXES) or Folder(folder.path / name).first("__init__")
        }
        - {"__init__"}
    )


def _content(path: Path) -> bytes:
    """Return a file's bytes; none if it is unreadable, and then the workload fails as well."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


@lru_cache(maxsize=4096)
def _imports(source: bytes) -> tuple[Import, ...]:
    """Return every import in a file's text; none if the text does not parse."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    return tuple(written for node in ast.walk(tree) for written in _written(node))


def _written(node: ast.AST) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(name=alias.name) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        members = tuple(alias.name for alias in node.names)
        yield Import(name=node.module or "", members=members, level=node.level)
    elif isinstance(node, ast.Call) and node.args:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        name = node.func.id if isinstance(node.func, ast.Name) else name
        given = node.args[0]
        if name in IMPORTERS and isinstance(given, ast.Constant) and isinstance(given.value, str):
            bare = given.value.lstrip(".")
            yield Import(name=bare, level=len(given.value) - len(bare))
