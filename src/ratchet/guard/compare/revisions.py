"""Git revisions in worktrees of their own; the user's checkout is only read."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ratchet.errors import GuardError

LOCAL = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
"""Variables that a hook sets, and that would point git at another repository."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Repository:
    """A git repository that a folder lies in."""

    root: Path
    below: Path
    """The folder's path below the root."""

    @classmethod
    def of(cls, folder: Path) -> Repository:
        """Find the repository; GuardError if there is none."""
        try:
            root = Path(git(folder, "rev-parse", "--show-toplevel")).resolve()
        except GuardError as error:
            raise GuardError(f"{folder} is in no git repository: revisions need one") from error
        return cls(root=root, below=folder.resolve().relative_to(root))

    def commit(self, revision: str) -> str:
        """Return the full hash of a revision; GuardError if there is none of this name."""
        try:
            return git(
                self.root, "rev-parse", "--verify", "--quiet", "--end-of-options",
                f"{revision}^{{commit}}",
            )  # fmt: skip
        except GuardError as error:
            shallow = git(self.root, "rev-parse", "--is-shallow-repository") == "true"
            why = (
                "this clone is shallow: fetch the rest with `git fetch --unshallow`"
                if shallow
                else "`git log --all --oneline` shows those that there are"
            )
            raise GuardError(f"{self.root} has no revision {revision!r}; {why}") from error

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


def git(folder: Path, *words: str) -> str:
    """Return what a git command prints; GuardError if it fails."""
    environment = {name: value for name, value in os.environ.items() if name not in LOCAL}
    command = ["git", "-C", str(folder), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    except OSError as error:
        raise GuardError(f"git cannot start ({error.strerror}): install it") from error
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise GuardError(f"git {words[0]} failed in {folder} ({said})")
    return done.stdout.strip()
