"""Commits of results: their stamp, and what a checkout with changes is called."""

from __future__ import annotations

from pathlib import Path

from noisy_repository import git as run_git
from noisy_repository import make_repository

from ratchet.base import git
from ratchet.base.ledger import Fingerprint
from ratchet.train.turn.bench import observed


def test_a_stamp_names_the_commit_and_says_if_files_changed(tmp_path: Path) -> None:
    made = make_repository(tmp_path / "r", commits=2, slow_at=1)
    found = git.stamp(tmp_path / "r")
    assert (found.revision, found.committed_at[-6:]) == (made[-1], "+00:00")
    (tmp_path / "r" / "new").touch()
    assert git.stamp(tmp_path / "r") == found
    (tmp_path / "r" / "program.py").write_text("")
    assert git.stamp(tmp_path / "r").revision == f"{made[-1]}+changes"
    assert git.stamp(tmp_path) == git.CommitStamp()
    assert run_git(tmp_path / "r", "status", "--porcelain")


def test_a_bench_s_figures_are_observations_of_its_commit() -> None:
    figures = [
        ("step_time_s", "s", 0.5, 0.4, 0.6),
        ("first_step_s", "s", 3.0, None, None),
        ("peak_memory_bytes", "B", 1000, None, None),
    ]
    stamp = git.CommitStamp(revision="abc", committed_at="2026-01-01T00:00:00+00:00")
    here = Fingerprint(device="d", software="s")
    found = observed("llama-8m (cpu, fp32)", figures, stamp, here)
    assert [(one.metric, one.value, one.low) for one in found] == [
        ("step_time_s", 0.5, 0.4),
        ("first_step_s", 3.0, None),
        ("peak_memory_bytes", 1000.0, None),
    ]
    assert {one.benchmark for one in found} == {"llama-8m (cpu, fp32)"}
    assert {(one.revision, one.device, one.source) for one in found} == {("abc", "d", "bench")}
