"""Proof that a run imported the code of its own checkout: its Python processes tell their files."""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

from ratchet.base import scratch
from ratchet.base.errors import GuardError
from ratchet.base.git import git
from ratchet.guard.checkouts import INSTALLED, Checkout
from ratchet.trace.record import injected

T = TypeVar("T")
IMPORTS = "RATCHET_IMPORTS"  # The folder that the injected `sitecustomize` writes to
_SCRIPT = "__main__"  # A script is chosen by its path, so it may lie anywhere
_STARTUP = ("sitecustomize", "usercustomize")
_COPIED = {"third_party", "thirdparty", "vendor", "vendored", "_vendor", "external", "extern"}
"""Folders that hold other projects' code."""
_OF_OTHERS = (".git", "pyvenv.cfg", "conda-meta")
"""Found in the root of a folder that is not of the repository around it."""
_PYTHON = re.compile(r"python[\d.]*")


def prove(
    run: Callable[[Mapping[str, str]], T], words: Sequence[str] | str, checkout: Checkout, side: str
) -> tuple[T, str]:
    """Run a command once, and check which files its Python processes imported.

    `run` takes the variables to run with, `words` are what it runs, and `side` names it in errors.
    Return what `run` returned, and what was not looked at in a few words, empty if all was. If
    `run` returns text, the command failed, and nothing is checked. Raises GuardError: a module of
    the repository came from elsewhere than its checkout, or a Python told nothing.
    """
    with scratch.folder("imports") as told:
        path = injected({**os.environ, **checkout.environment})["PYTHONPATH"]
        answer = run({**checkout.environment, "PYTHONPATH": path, IMPORTS: str(told)})
        files = [json.loads(one.read_bytes()) for one in sorted(told.glob("*.json"))]
    if isinstance(answer, str):
        return answer, ""
    first = words.split()[:1] if isinstance(words, str) else words[:1]
    return answer, check_imports(files, checkout, side, first[0] if first else "")


def check_imports(
    processes: Sequence[Mapping[str, str]], checkout: Checkout, side: str, program: str
) -> str:
    """Check the modules that each process imported, with their files; `prove` says the rest."""
    own = 0
    _record.cache_clear()  # a build may have installed more since
    for modules in processes:
        for name, file in sorted(modules.items()):
            path = Path(os.path.realpath(file))
            if _is_below(checkout.own, path) or _is_below(checkout.own, Path(file)):
                own += 1
            elif _is_of_repository(name, path, checkout):
                raise GuardError(
                    f"{side} imports {name} from {file}, which is not {checkout.title}: give a "
                    "build that installs it with the first `pip` or `python` on PATH, and name no "
                    "folder of yours in the command"
                )
    if own:
        return ""
    if processes:
        return "it imports nothing of its checkout"
    if _PYTHON.fullmatch(Path(program).name):
        raise GuardError(
            f"{side}: {program} does not tell which files it imports: run it without -I, -E and -S"
        )
    return "no Python told what it imports, so which files it runs was not looked at"


def _is_below(folders: Sequence[Path], file: Path) -> bool:
    return any(file.is_relative_to(one) for one in folders)


def _is_of_repository(name: str, file: Path, checkout: Checkout) -> bool:
    """Return whether a module that is not the checkout's is the repository's all the same."""
    if name.partition(".")[0] in (*sys.stdlib_module_names, *_STARTUP):
        return False
    if checkout.beside is not None and file.is_relative_to(checkout.beside):
        return True  # another checkout, or what was built from it
    if name == _SCRIPT:
        return False
    if any(_is_in_tree(file, tree) for tree in checkout.trees):
        return True
    return any(_holds(path, name) for path in checkout.paths) or _is_installed(file, checkout.root)


def _is_in_tree(file: Path, tree: Path) -> bool:
    """Return whether a file is of a user's folder, and not of an environment or a repository in it.

    Virtual environments, conda's and submodules lie there often.
    """
    if not file.is_relative_to(tree) or set(INSTALLED) & set(file.relative_to(tree).parts):
        return False
    inner = file.parents[: len(file.relative_to(tree).parts) - 1]
    return not any((one / mark).exists() for one in inner for mark in _OF_OTHERS)


def _holds(folder: Path, name: str) -> bool:
    """Return whether a folder of the path holds a module, or the package that it is in."""
    top, _, rest = name.partition(".")
    here = folder / top
    if (here / "__init__.py").exists() or here.with_name(f"{top}.py").exists():
        return True
    return bool(rest) and here.is_dir() and _holds(here, rest)  # a namespace is shared


def _is_installed(file: Path, root: Path) -> bool:
    """Return whether a file was installed by a distribution that the checkout is the source of."""
    for packages in file.parents:
        if packages.name in INSTALLED:
            below = file.relative_to(packages).as_posix()
            return any(below in _record(packages, name) for name in _projects(root))
    return False


@cache
def _record(packages: Path, project: str) -> frozenset[str]:
    found: set[str] = set()
    for record in packages.glob("*.dist-info/RECORD"):
        if _normal(record.parent.name.partition("-")[0]) == project:
            lines = record.read_text(encoding="utf-8", errors="replace").splitlines()
            found |= {line.partition(",")[0].strip('"') for line in lines}
    return frozenset(found)


@cache
def _projects(root: Path) -> frozenset[str]:
    """Return the names of the distributions that a checkout is the source of."""
    files = git(root, "ls-files", "--", "*pyproject.toml", "*setup.cfg", "*setup.py").splitlines()
    own = [root / one for one in files if not _COPIED & set(Path(one).parts)]
    return frozenset(_normal(name) for file in own for name in _names(file))


def _names(file: Path) -> Iterator[str]:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
        if file.suffix == ".toml":
            table = tomllib.loads(text)
            named = [table.get("project", {}), table.get("tool", {}).get("poetry", {})]
            yield from (str(one["name"]) for one in named if "name" in one)
        else:
            pattern = r"^name\s*=\s*([\w.-]+)" if file.suffix == ".cfg" else _CALL
            yield from re.findall(pattern, text, re.MULTILINE)
    except (OSError, ValueError, AttributeError, TypeError):
        return  # not a project's file, or not as one writes it


_CALL = r"""\bname\s*=\s*["']([\w.-]+)["']"""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
