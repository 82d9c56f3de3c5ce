"""The user's settings for one turn, and the files that a proof of it depends on."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import os
import pkgutil
import re
import shlex
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from ratchet.base.devices.probe import probe
from ratchet.base.errors import RatchetError, WorkloadError
from ratchet.base.files import why_not_new_folder
from ratchet.base.show.words import parse_duration_s
from ratchet.judge.terms import parse_target
from ratchet.train.workloads.names import (
    LoadOptions,
    check_name,
    check_options,
    is_saved_spec,
    title_of,
)
from ratchet.train.workloads.parallel import ParallelLayout, parse_parallel

DEFAULT_BUDGET_S, DEFAULT_OUT, DEFAULT_LAUNCHES = 1800.0, Path("ratchet-out"), 3
SMALLEST_BUDGET_S = 30.0
PRECISIONS = ("fp32", "bf16_autocast", "bf16_master")
LARGEST_SEED = 2**32 - 1
"""Largest seed that NumPy's generators accept; a workload may seed those too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The options of one turn, which travel as this object from the command to every stage.

    A new option is a parameter of `make_settings` and a field here, and an option of the command.
    """

    workload: str
    options: LoadOptions = field(default_factory=LoadOptions)
    """Keyword arguments of `workloads.load`: seed, batch_size, sequence, precision, ..."""
    budget_s: float = DEFAULT_BUDGET_S
    keep_precision: bool = False
    try_lever: str | None = None
    resume: bool = False
    out: Path = DEFAULT_OUT
    ledger: str | None = None
    seed: int = 0
    launches: int = DEFAULT_LAUNCHES
    until_proven: bool = False
    """End as soon as a recipe is proven faster than its rival, whatever the budget leaves."""
    layout: ParallelLayout | None = None
    """The ranks of `--parallel`; None for a step of one process."""
    loss_steps: int = 200
    loss_seeds: int = 3
    gone_s: float = 0.0
    """Seconds of the budget spent before the turn began, such as a command's imports."""

    @property
    def title(self) -> str:
        """Return the workload's display name; a Workload object has its own."""
        return title_of(self.workload)

    @property
    def command(self) -> str:
        """Return the command or call that repeats the turn, for the report.

        The ledger is left out: its URL may hold a password.
        """
        given: dict[str, object] = {
            "budget": f"{self.budget_s:g}s" if self.budget_s != DEFAULT_BUDGET_S else None,
            "out": str(self.out) if self.out != DEFAULT_OUT else None,
            "keep_precision": self.keep_precision or None,
            "try_lever": self.try_lever,
            "launches": self.launches if self.launches != DEFAULT_LAUNCHES else None,
            "until_proven": self.until_proven or None,
            "parallel": str(self.layout) if self.layout is not None else None,
            **self.options,
            "seed": self.seed or None,
        }
        given = {name: value for name, value in given.items() if value is not None}
        if self.title != self.workload:
            words = ["workload", *(f"{name}={value!r}" for name, value in given.items())]
            return f"ratchet.optimize({', '.join(words)})"
        words = ["ratchet", "optimize", self.workload]
        for name, value in given.items():
            option = "--try" if name == "try_lever" else f"--{name.replace('_', '-')}"
            words += [option] if value is True else [option, str(value)]
        return shlex.join(words)

    def key(self) -> str:
        """Hash all that determines the result, including the workload's source, not the budget."""
        content: dict[str, object] = {
            "workload": self.title,
            "source": _source_hash(self.workload),
            "options": {name: str(value) for name, value in sorted(self.options.items())},
            "keep_precision": self.keep_precision,
            "try": self.try_lever,
        }
        if self.layout is not None:
            content["layout"] = str(self.layout)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]


def check_seed(seed: int) -> None:
    """Refuse a seed that a random number generator cannot take."""
    if not 0 <= seed <= LARGEST_SEED:
        raise RatchetError(f"seed {seed} is out of range: give one from 0 to {LARGEST_SEED}")


def check_settings(settings: Settings) -> None:
    """Check the settings that can be checked without importing torch.

    Raises a RatchetError for an unknown workload or lever, a seed out of range, or an unusable
    output folder.
    """
    from ratchet.train.levers import check_lever

    check_name(settings.workload)
    check_seed(settings.seed)
    if settings.try_lever is not None and settings.layout is None:  # ranks have levers of their own
        check_lever(settings.try_lever)
    if settings.until_proven and settings.layout is not None:
        raise RatchetError("--until-proven ends a turn of one process: leave it or --parallel out")
    if why := why_not_new_folder(settings.out):
        raise RatchetError(f"--out {settings.out} {why}: name a folder")


def checked_target(target: str | None, *, dry: bool, layout: ParallelLayout | None) -> str | None:
    """Return the GPU of a dry run; RatchetError for an unknown one, or where it says nothing."""
    if target is None:
        return None
    known = parse_target(target)
    if not dry:
        raise RatchetError(
            f"--target {known} is a GPU that is not here, so nothing can be timed on it: "
            "add --dry-run"
        )
    if layout is not None:
        raise RatchetError("--target emulates one process: leave --parallel out")
    return known


def make_settings(
    workload: str,
    *,
    budget: str | float = "30m",
    out: str | Path = DEFAULT_OUT,
    keep_precision: bool = False,
    try_lever: str | None = None,
    resume: bool = False,
    launches: int = DEFAULT_LAUNCHES,
    until_proven: bool = False,
    batch_size: int | None = None,
    sequence: int | None = None,
    precision: str | None = None,
    text: str | Path | None = None,
    seed: int = 0,
    device: str | None = None,
    ledger: str | None = None,
    parallel: str | None = None,
    gone_s: float = 0.0,
) -> Settings:
    """Make Settings from the arguments of `ratchet.optimize`, which are the command's options."""
    made = Settings(
        workload=workload,
        budget_s=parse_budget_s(str(budget)),
        out=Path(out),
        keep_precision=keep_precision,
        try_lever=try_lever,
        resume=resume,
        launches=launches,
        until_proven=until_proven,
        seed=seed,
        ledger=ledger,
        layout=None if parallel is None else parse_parallel(parallel),
        gone_s=gone_s,
    )
    check_settings(made)
    given = workload_options([workload], batch_size, sequence, precision, text, device or "auto")
    return replace(made, options={**given, "seed": seed})


def workload_options(
    workloads: Sequence[str],
    batch_size: int | None,
    sequence: int | None,
    precision: str | None,
    text: str | Path | None,
    device: str,
) -> LoadOptions:
    """Return the given keyword arguments of `workloads.load`, as JSON for another process.

    Raises a RatchetError, before torch is imported, for an unknown workload or an option that one
    of the workloads does not support.
    """
    if precision is not None and precision not in PRECISIONS:
        raise WorkloadError(f"unknown precision {precision!r}: use one of {', '.join(PRECISIONS)}")
    path = Path(text) if text is not None else None
    for workload in workloads:
        check_name(workload)
        check_options(workload, batch_size=batch_size, sequence=sequence, text=path)
    found = probe(device)
    options: LoadOptions = {"device": found.torch_name if found.index else found.kind}
    if batch_size is not None:
        options["batch_size"] = batch_size
    if sequence is not None:
        options["sequence"] = sequence
    if precision is not None:
        options["precision"] = precision
    if path is not None:
        options["text"] = str(path.absolute())
    return options


def parse_budget_s(text: str) -> float:
    """Return the seconds of a budget that one paired run fits into."""
    return parse_duration_s(text, "budget", least_s=SMALLEST_BUDGET_S, too_short="one paired run")


def _source_hash(workload: str) -> str:
    """Hash the user's file and its imports, so that an edited script is a new workload."""
    if is_saved_spec(workload) and Path(workload).is_file():
        return hashlib.sha256(Path(workload).read_bytes()).hexdigest()
    file, _, function = workload.rpartition(":")
    path = Path(file).expanduser()
    if function and path.suffix == ".py" and path.is_file():
        return source_hash(path)
    return ""


# Find the project's own files behind a user's workload, without running any of them.
#
# A proof holds for the code it was made with: the workload's file, and every module of the project
# that it imports directly or indirectly. The project is everything except the standard library,
# installed packages and Ratchet. Imports are read from the source text, including those inside
# functions and `importlib.import_module` with a literal name. A module whose name is known only at
# run time is not found.

PROJECT_MARKS = (".git", "pyproject.toml", "setup.py", "setup.cfg")
INSTALLED = ("site-packages", "dist-packages")
IMPORTERS = ("import_module", "__import__")


@dataclass(frozen=True, kw_only=True, slots=True)
class Module:
    """A module by its dotted name; `file` is None for a namespace package."""

    name: str
    file: Path | None
    folders: tuple[str, ...] = ()
    """The folders of a package's submodules; empty for a plain module."""


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
    PathFinder.invalidate_caches()
    search = _Search(_roots(file))
    search.follow(Module(name=file.stem, file=file))
    return sorted(search.files)


class _Search:
    """Follows imports from module to module, each one once."""

    def __init__(self, roots: list[str]) -> None:
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
        folders: tuple[str, ...] = ()
        for end in (*(dot.start() for dot in re.finditer(r"\.", name)), len(name)):
            found = self._find(name[:end])
            if found is None:
                return
            yield found
            folders = found.folders
        stars = [one.name for one in pkgutil.iter_modules(folders)]
        for member in written.members:
            for part in stars if member == "*" else [member]:
                if inner := self._find(f"{name}.{part}"):
                    yield inner

    def _find(self, name: str) -> Module | None:
        if name not in self._seen:
            self._seen[name] = self._locate(name)
        return self._seen[name]

    def _locate(self, name: str) -> Module | None:
        parent, _, own = name.rpartition(".")
        if parent:
            package = self._find(parent)
            folders = list(package.folders) if package else []
            return _module(name, PathFinder.find_spec(own, folders)) if folders else None
        if name == "ratchet":
            return None
        found = _module(name, PathFinder.find_spec(name, self.roots))
        return found if found and found.file else _elsewhere(name) or found


def _module(name: str, spec: ModuleSpec | None) -> Module | None:
    if spec is None:
        return None
    file = Path(spec.origin).resolve() if spec.has_location and spec.origin else None
    return Module(name=name, file=file, folders=tuple(spec.submodule_search_locations or ()))


def _elsewhere(name: str) -> Module | None:
    """Find a top-level project module through Python's own finders. Runs no module."""
    if name in sys.stdlib_module_names:
        return None
    try:
        found = _module(name, importlib.util.find_spec(name))
    except (ImportError, ValueError, AttributeError):
        return None
    if found is None:
        return None
    places = [found.file] if found.file else [Path(one).resolve() for one in found.folders]
    return found if places and not any(_is_installed(place) for place in places) else None


def _is_installed(path: Path) -> bool:
    return any(part in INSTALLED for part in path.parts) or any(
        path.is_relative_to(folder) for folder in _installed_folders()
    )


@cache
def _installed_folders() -> tuple[Path, ...]:
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple(Path(sysconfig.get_path(kind)).resolve() for kind in kinds)


def _roots(file: Path) -> list[str]:
    """Return the folders of top-level modules: the workload's folder, then the project's root.

    The root is included because scripts add it to `sys.path`.
    """
    for folder in file.parents:
        if any((folder / mark).exists() for mark in PROJECT_MARKS):
            return [str(file.parent), str(folder), str(folder / "src")]
    return [str(file.parent)]


def _absolute(written: Import, importer: Module) -> str:
    """Return the absolute name of an import, or "" for a relative one that leads nowhere."""
    if not written.level:
        return written.name
    package = importer.name.split(".")[: None if importer.folders else -1]
    kept = len(package) - (written.level - 1)
    if kept < 1:
        return ""
    return ".".join([*package[:kept], *([written.name] if written.name else [])])


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
