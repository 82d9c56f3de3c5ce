"""Checkouts of commits, from repositories that do not hold every object."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.base.git import git
from ratchet.guard.checkouts import Checkouts


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of two commits, which lets itself be cloned without its files."""
    place = tmp_path / "whole"
    git(tmp_path, "init", "--quiet", str(place))
    git(place, "config", "user.name", "a test")
    git(place, "config", "user.email", "test@example.com")
    git(place, "config", "uploadpack.allowFilter", "true")
    git(place, "config", "uploadpack.allowAnySHA1InWant", "true")
    for text in ("old", "new"):
        (place / "file.txt").write_text(text)
        git(place, "add", "--all")
        git(place, "commit", "--quiet", "-m", text)
    return place


def test_a_partial_clone_fetches_what_it_lacks(repository: Path, tmp_path: Path) -> None:
    partial = tmp_path / "partial"
    git(tmp_path, "clone", "--quiet", "--filter=blob:none", f"file://{repository}", str(partial))
    before = git(partial, "count-objects", "-v")
    checkouts = Checkouts(partial, tmp_path / "place", "", 60.0)
    for revision, text in (("HEAD", "new"), ("HEAD~1", "old")):
        found = checkouts.get(git(partial, "rev-parse", revision))
        assert found.why == "" and (found.root / "file.txt").read_text() == text
    assert git(partial, "count-objects", "-v") == before, "the user's repository is only read"


def test_a_build_runs_once(repository: Path, tmp_path: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    for _ in range(2):
        checkouts = Checkouts(repository, tmp_path / "place", "echo built >> log.txt", 60.0)
        found = checkouts.get(commit)
    assert (found.folder / "log.txt").read_text() == "built\n"
