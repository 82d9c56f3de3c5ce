"""Commits checked out and built in a folder of their own; the user's repository is only read."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from ratchet.base.errors import RepositoryError
from ratchet.base.files import make_folder, write_whole
from ratchet.base.git import git
from ratchet.guard.command import run_words


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkout:
    """A commit's folder, or why it could not be built."""

    root: Path
    folder: Path
    """As deep below the root as the folder that was asked from; the root if it is not there."""
    why: str
    """Empty if it is built."""


class Checkouts:
    """Checkouts of a repository's commits, built once each, kept across a kill.

    They belong to a repository of their own that borrows the objects of the user's.
    """

    def __init__(self, repository: Path, place: Path, build: str, build_limit_s: float) -> None:
        self._place, self._build, self._limit_s = place, build, build_limit_s
        self.root = Path(git(repository, "rev-parse", "--show-toplevel")).resolve()
        self.below = repository.resolve().relative_to(self.root)
        self._own = place / "repository"
        if not (self._own / "ready").exists():
            shutil.rmtree(self._own, ignore_errors=True)
            make_folder(self._own.parent)
            self._borrow(repository)

    def get(self, commit: str) -> Checkout:
        """Return a commit's checkout, built."""
        folder, done = self._place / commit, self._place / f"{commit}.built"
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # half made by a killed run
            git(self._own, "worktree", "prune")
            git(self._own, "worktree", "add", "--quiet", "--force", "--detach", str(folder), commit)
            why = ""
            if self._build:
                built = run_words(self._build, folder, self._limit_s, {"RATCHET_COMMIT": commit})
                why = f"the build failed: it {built}" if isinstance(built, str) else ""
            write_whole(done, why.encode())
        below = folder / self.below
        below = below if below.is_dir() else folder
        return Checkout(root=folder, folder=below, why=done.read_text())

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
