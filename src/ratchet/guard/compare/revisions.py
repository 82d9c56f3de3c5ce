"""Git revisions in worktrees of their own; the user's checkout is only read."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ratchet.errors import RepositoryError
from ratchet.git import git, resolve


@dataclass(frozen=True, kw_only=True, slots=True)
class Repository:
    """A git repository that a folder lies in."""

    root: Path
    below: Path
    """The folder's path below the root."""

    @classmethod
    def of(cls, folder: Path) -> Repository:
        """Find the repository; RepositoryError if there is none."""
        try:
            root = Path(git(folder, "rev-parse", "--show-toplevel")).resolve()
        except RepositoryError as error:
            raise RepositoryError(
                f"{folder} is in no git repository: revisions need one"
            ) from error
        return cls(root=root, below=folder.resolve().relative_to(root))

    def commit(self, revision: str) -> str:
        """Return the full hash of a revision; RepositoryError if there is none of this name."""
        return resolve(self.root, revision)

    def changed(self) -> bool:
        """Return True if tracked files have changes that are not committed."""
        return bool(git(self.root, "status", "--porcelain", "--untracked-files=no"))


@contextlib.contextmanager
def worktree(repository: Repository, commit: str) -> Iterator[Path]:
    """Check a commit out into a temporary folder, and remove it afterwards."""
    with tempfile.TemporaryDirectory(prefix="ratchet-worktree-") as folder:
        place = Path(folder) / repository.root.name
        git(repository.root, "worktree", "add", "--detach", "--force", str(place), commit)
        try:
            yield place
        finally:
            git(repository.root, "worktree", "remove", "--force", "--force", str(place))


def import_paths(root: Path) -> dict[str, str]:
    """Return the environment in which Python imports a checkout's own packages first.

    A package that is installed in editable mode would come from the user's checkout otherwise, and
    both revisions would run the same code.
    """
    own = [str(path) for path in (root, root / "src") if path.is_dir()]
    return {"PYTHONPATH": os.pathsep.join([*own, *filter(None, [os.environ.get("PYTHONPATH")])])}
