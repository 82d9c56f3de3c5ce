"""Checkouts of commits, built once each, and the environment in which each runs what it holds."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec

from ratchet.base.devices.probe import short_hash
from ratchet.base.errors import GuardError, RepositoryError
from ratchet.base.files import make_folder, write_whole
from ratchet.base.git import git
from ratchet.guard.command import run_words


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkout:
    """A commit's folder, or why it could not be built."""

    title: str
    root: Path
    folder: Path
    """As deep below the root as the folder that was asked from; the root if it is not there."""
    why: str = ""  # Empty if it is built
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables with which Python imports its packages, and what its build installs, first."""
    own: tuple[Path, ...] = ()  # Folders whose files are this checkout's, or made from it
    trees: tuple[Path, ...] = ()  # Folders in which the user has files of the repository
    beside: Path | None = None  # Folder of all checkouts

    @property
    def paths(self) -> tuple[Path, ...]:
        """Return the folders that its packages and modules are imported from."""
        return import_paths(self.root, self.folder)


class Checkouts:
    """Checkouts of a repository's commits, built once each, kept across a kill.

    They belong to a repository of their own that borrows the objects of the user's. With
    `environments`, or with a build, each has a Python environment of its own, made on top of the
    user's: what one installs, no other imports, and the user's environment stays as it is.
    """

    def __init__(
        self,
        repository: Path,
        place: Path,
        build: str,
        build_limit_s: float,
        *,
        environments: bool = False,
    ) -> None:
        self._place, self._build, self._limit_s = place.resolve(), build, build_limit_s
        self._environments = environments or bool(build)
        self._repository = repository
        self.root = Path(git(repository, "rev-parse", "--show-toplevel")).resolve()
        self.below = repository.resolve().relative_to(self.root)
        self._own = self._place / "repository"
        if not (self._own / "ready").exists():
            shutil.rmtree(self._own, ignore_errors=True)
            make_folder(self._own.parent)
            self._borrow(repository)

    def is_built(self, commit: str) -> bool:
        """Return whether `get` has built a commit before, or tried to."""
        return (self._place / f"{commit}.built").exists()

    def get(self, commit: str, python: str = "") -> Checkout:
        """Return a commit's checkout, built; `python` is the interpreter that it builds upon.

        GuardError if an environment cannot be made for it.
        """
        name = f"{commit}-{short_hash({'python': python})}" if python else commit
        folder, done = self._place / commit, self._place / f"{name}.built"
        if not folder.exists() or not list(self._place.glob(f"{commit}*.built")):
            shutil.rmtree(folder, ignore_errors=True)  # half made by a killed run
            git(self._own, "worktree", "prune")
            git(self._own, "worktree", "add", "--quiet", "--force", "--detach", str(folder), commit)
        below = folder / self.below
        below = below if below.is_dir() else folder
        made = self._place / f"{name}.made"
        if self._environments and not made.exists():  # built before there were environments
            done.unlink(missing_ok=True)
        environment = self._environment(made, python, folder, below, whole=done.exists())
        if not done.exists():
            why = ""
            if self._build:
                more = {**environment, "RATCHET_COMMIT": commit}
                built = run_words(self._build, folder, self._limit_s, more)
                why = f"the build failed: it {built}" if isinstance(built, str) else ""
            write_whole(done, why.encode())
        return Checkout(
            title=f"the checkout of {commit[:10]}",
            root=folder,
            folder=below,
            why=done.read_text(),
            environment=environment,
            own=(folder, made),
            trees=self._trees,
            beside=self._place,
        )

    def working(self, python: str = "") -> Checkout:
        """Return the user's files as they are, not built."""
        made = self._place / f"working-{short_hash({'python': python})}.made"
        folder = self.root / self.below
        return Checkout(
            title="your files",
            root=self.root,
            folder=folder,
            environment=self._environment(made, python, self.root, folder, whole=False),
            own=(self.root, made),
            trees=self._trees,
            beside=self._place,
        )

    @cached_property
    def _trees(self) -> tuple[Path, ...]:
        """Return the folders in which the user has commits of this repository."""
        lines = git(self._repository, "worktree", "list", "--porcelain").splitlines()
        named = [Path(line[9:]) for line in lines if line.startswith("worktree ")]
        return tuple(dict.fromkeys([self.root, *(one.resolve() for one in named)]))

    def _environment(
        self, made: Path, python: str, root: Path, folder: Path, *, whole: bool
    ) -> dict[str, str]:
        """Return the variables of a checkout, with an environment in `made` if it is to have one.

        One that is `whole` has been made.
        """
        first: list[Path] = []
        found: dict[str, str] = {}
        own = import_paths(root, folder)
        place = Path(python).parent.parent if python else None
        if self._environments:
            place = made / "venv"
            if whole:
                (packages,) = place.glob("lib/*/site-packages")
            else:
                packages = make_environment(place, python, own, self._trees)
            first = [packages]
        if place is not None:
            above = os.environ.get("PATH", os.defpath)
            found["PATH"] = os.pathsep.join([str(place / "bin"), above])
            found["VIRTUAL_ENV"] = str(place)
        paths = [*map(str, (*first, *own)), os.environ.get("PYTHONPATH", "")]
        found["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        # torch's own place for extensions is one for all folders, by the extension's name.
        found["TORCH_EXTENSIONS_DIR"] = str(made / "torch_extensions")
        return found

    def _borrow(self, repository: Path) -> None:
        """Make a bare repository that reads the user's objects."""
        git(repository, "init", "--quiet", "--bare", str(self._own))
        inside = Path(git(repository, "rev-parse", "--path-format=absolute", "--git-common-dir"))
        (self._own / "objects" / "info" / "alternates").write_text(f"{inside / 'objects'}\n")
        if (inside / "shallow").exists():
            shutil.copy(inside / "shallow", self._own / "shallow")
        for name, value in _promises(repository):
            git(self._own, "config", name, value)
        git(self._own, "config", "lfs.storage", str(inside / "lfs"))  # large files are there
        (self._own / "ready").touch()


def import_paths(root: Path, folder: Path) -> tuple[Path, ...]:
    """Return the folders below a checkout's root that its packages lie in: its own, then `src`."""
    found = (folder, folder / "src", root, root / "src")
    return tuple(dict.fromkeys(one for one in found if one.is_dir()))


def _promises(repository: Path) -> list[tuple[str, str]]:
    """Return the settings of the remotes that a partial clone fetches missing files from.

    A repository that has all its objects has none.
    """
    try:
        marked = git(repository, "config", "--local", "--get-regexp", r"^remote\..*\.promisor$")
    except RepositoryError:
        return []
    found = [("core.repositoryFormatVersion", "1")]  # so that git heeds them
    for line in marked.splitlines():
        remote = line.rpartition(".promisor ")[0]
        for name in (f"{remote}.url", f"{remote}.promisor", f"{remote}.partialclonefilter"):
            value = git(repository, "config", "--default", "", "--get", name)
            found += [(name, value)] if value else []
    return found


INSTALLED = ("site-packages", "dist-packages")
_ASK = """\
import glob, importlib.util, json, sys, sysconfig
paths = sysconfig.get_paths()
standard = [paths["stdlib"], paths["platstdlib"]]
lent = sysconfig.get_config_var("WHEEL_PKG_DIR") or paths["stdlib"] + "/ensurepip/_bundled"
pip = [one + "/pip" for one in sorted(glob.glob(lent + "/pip-*.whl"))[-1:]]
pip = ["-m", "pip"] if importlib.util.find_spec("pip") else pip
print(json.dumps([sys.executable, sys.path, pip, standard]))
"""
_LIMIT_S = 120.0
_LINKS = "zz_ratchet.pth"  # Read after the files of what the build installs: names are sorted


class _Python(msgspec.Struct, frozen=True, array_like=True):
    """An interpreter, as it says itself."""

    executable: str
    path: tuple[str, ...]
    pip: tuple[str, ...]  # The words that run pip: its own, or the wheel that it was shipped with
    standard: tuple[str, ...]  # Folders of the standard library


def make_environment(
    place: Path, python: str, own: Sequence[Path], trees: Collection[Path]
) -> Path:
    """Make a virtual environment in `place`, and return its folder of packages.

    It imports what will be installed in it, then from the folders `own`, then what `python` (the
    first on PATH if empty) can import, but nothing that is installed from `trees`. Its `python` and
    `pip` are its own. GuardError if it cannot be made.
    """
    python = python or shutil.which("python") or shutil.which("python3") or sys.executable
    below = _ask(python)
    shutil.rmtree(place, ignore_errors=True)
    words = [below.executable, "-m", "venv", "--without-pip", str(place)]
    done = run_words(words, Path("/"), _LIMIT_S, {})
    (packages, *_) = [*place.glob("lib/*/site-packages"), None]
    if isinstance(done, str) or packages is None:
        why = done if isinstance(done, str) else f"{place} holds no packages"
        raise GuardError(
            f"{python} cannot make a virtual environment ({why}): install its venv module, or put "
            "another python first on PATH"
        )
    for name in ("pip", "pip3") if below.pip else ():
        script = place / "bin" / name
        words = [str(place / "bin" / "python"), *below.pip]
        script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        script.chmod(0o755)
    folders = [one for one in below.path if _is_lent(one, below.standard, trees)]
    hooks = [
        f"import site; site.addpackage({str(hook.parent)!r}, {hook.name!r}, None)"
        for folder in folders
        for hook in sorted(Path(folder).glob("*.pth"))
        if Path(folder).name in INSTALLED and _is_hook(hook, trees)
    ]
    (packages / _LINKS).write_text("\n".join([*map(str, own), *folders, *hooks, ""]))
    return packages


def _ask(python: str) -> _Python:
    done = run_words([python, "-E", "-c", _ASK], Path("/"), _LIMIT_S, {})
    if isinstance(done, str):
        raise GuardError(f"{python} {done}: put another python first on PATH")
    try:
        return msgspec.convert(json.loads(done.out), _Python)
    except (ValueError, msgspec.ValidationError) as error:
        raise GuardError(
            f"{python} is no Python ({error}): put another python first on PATH"
        ) from error


def _is_lent(folder: str, standard: Collection[str], trees: Collection[Path]) -> bool:
    """Return whether a folder of the user's path is for every checkout."""
    if not os.path.isdir(folder):
        return False
    if set(INSTALLED) & set(Path(folder).parts):
        return True
    above = [*map(Path, standard), *trees]
    return not any(Path(folder).resolve().is_relative_to(one.resolve()) for one in above)


def _is_hook(file: Path, trees: Collection[Path]) -> bool:
    """Return whether a .pth file runs code, and none that finds the modules of `trees`."""
    text = _text(file)
    code = [line for line in text.splitlines() if line.startswith(("import ", "import\t"))]
    named = {name for line in code for name in re.findall(r"[A-Za-z_]\w*", line)}
    texts = [text, *(_text(file.with_name(f"{name}.py")) for name in named)]
    own = [re.compile(re.escape(str(tree)) + r"(?![\w.-])") for tree in trees]
    return bool(code) and not any(one.search(text) for one in own for text in texts)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
