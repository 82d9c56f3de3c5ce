"""The commits between a good and a bad one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ratchet.base.errors import RepositoryError
from ratchet.base.git import git, resolve


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitLine:
    revision: str
    subject: str
    merge: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitRange:
    """GOOD, and the commits after it up to BAD along the first parents."""

    root: Path
    good: str
    after: tuple[CommitLine, ...]

    @property
    def bad(self) -> str:
        return self.after[-1].revision


def commit_range(folder: Path, good: str, bad: str) -> CommitRange:
    """Return the commits between two revisions.

    Raises:
        RepositoryError: no repository, no such revision, the same commit twice, or GOOD is not an
            ancestor of BAD.
    """
    root = Path(git(folder, "rev-parse", "--show-toplevel"))
    first, last = resolve(folder, good), resolve(folder, bad)
    if first == last:
        raise RepositoryError(f"{good!r} and {bad!r} are the same commit {first[:10]}: give two")
    base = _merge_base(folder, first, last)
    if base != first:
        shallow = git(folder, "rev-parse", "--is-shallow-repository") == "true"
        remedy = (
            "this clone is shallow: run git fetch --unshallow"
            if shallow
            else f"bisect from where they part: {base[:12]}"
            if base
            else "they share no history"
        )
        raise RepositoryError(f"GOOD {good!r} is not an ancestor of BAD {bad!r}; {remedy}")
    lines = git(
        folder, "log", "--reverse", "--first-parent", "--format=%H%x00%P%x00%s", f"{first}..{last}"
    ).splitlines()
    after = []
    for line in lines:
        revision, parents, subject = line.split("\0", 2)
        after.append(CommitLine(revision=revision, subject=subject, merge=" " in parents))
    return CommitRange(root=root, good=first, after=tuple(after))


def _merge_base(folder: Path, first: str, last: str) -> str:
    try:
        return git(folder, "merge-base", first, last)
    except RepositoryError:
        return ""
