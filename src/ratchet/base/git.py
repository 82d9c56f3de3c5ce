"""Questions to a git repository, and changes of files as a diff that `git apply` takes."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ratchet.base.errors import RepositoryError

LOCAL = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
"""Variables that a hook sets, and that would point git at another repository."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitStamp:
    """A commit, and when it was committed (UTC, ISO 8601); both empty outside of a repository."""

    revision: str = ""
    committed_at: str = ""


def git(folder: Path, *words: str) -> str:
    """Return what a git command prints, without the last line's end.

    RepositoryError, in git's own words, if the command fails or git is missing.
    """
    environment = {name: value for name, value in os.environ.items() if name not in LOCAL}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            check=False,
        )
    except FileNotFoundError as error:
        raise RepositoryError("git is not installed: install git") from error
    if done.returncode:
        said = " ".join(done.stderr.split())[:300] or f"exit code {done.returncode}"
        raise RepositoryError(f"git {words[0]} failed in {str(folder)!r}: {said}")
    return done.stdout.rstrip("\n")


def resolve(folder: Path, revision: str) -> str:
    """Return the full hash of a commit; RepositoryError without it: a shallow clone may lack it."""
    root = git(folder, "rev-parse", "--show-toplevel")
    try:
        return git(
            folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"
        )
    except RepositoryError as error:
        shallow = git(folder, "rev-parse", "--is-shallow-repository") == "true"
        remedy = (
            "this clone is shallow: run git fetch --unshallow"
            if shallow
            else "git log --oneline lists them"
        )
        raise RepositoryError(f"{root} has no commit {revision!r}; {remedy}") from error


def has_changes(folder: Path) -> bool:
    """Return whether tracked files of the checkout have changes that no commit holds."""
    return bool(git(folder, "status", "--porcelain", "--untracked-files=no"))


def stamp(folder: Path) -> CommitStamp:
    """Return the last commit with its time; an empty one outside of a repository.

    A checkout with changed files is not the commit: its revision ends in `+changes`.
    """
    try:
        hash, seconds = git(folder, "log", "-1", "--format=%H %ct").split()
        changed = has_changes(folder)
    except RepositoryError:
        return CommitStamp()
    moment = datetime.fromtimestamp(int(seconds), UTC).isoformat(timespec="seconds")
    return CommitStamp(revision=f"{hash}+changes" if changed else hash, committed_at=moment)


def diff_of(old: Mapping[str, bytes], new: Mapping[str, bytes]) -> bytes:
    """Return the changes as a diff that `git apply` takes, in the order of the files' names."""
    return b"".join(_diff(name, old[name], new[name]) for name in sorted(new))


def _diff(name: str, old: bytes, new: bytes) -> bytes:
    lines = difflib.diff_bytes(
        difflib.unified_diff, _lines(old), _lines(new), f"a/{name}".encode(), f"b/{name}".encode()
    )
    ended = rb"\ No newline at end of file"
    return b"".join(one if one.endswith(b"\n") else one + b"\n" + ended + b"\n" for one in lines)


def _lines(text: bytes) -> list[bytes]:
    """Split at line feeds alone: git keeps a carriage return as part of its line."""
    return re.findall(rb"[^\n]*\n|[^\n]+", text)
