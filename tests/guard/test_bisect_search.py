"""The search over simulated commits."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ratchet.base.errors import MeasureError
from ratchet.guard.bisect import (
    BisectOptions,
    BisectResult,
    BisectRun,
    CommitLine,
    CommitRange,
    Journal,
    JournalLine,
)
from ratchet.guard.bisect.search import GOOD, CommitPair, CommitSearch
from ratchet.guard.command import MeasuredCommand


class MadeUpCommits:
    """Commits whose metric changes at one of them; some cannot be measured."""

    def __init__(
        self, seed: int, changed: int, effect: float, noise: float, broken: tuple[int, ...] = ()
    ) -> None:
        self._rng = np.random.default_rng(seed)
        self._changed, self._effect, self._noise = changed, effect, noise
        self._broken = broken
        self.measured = 0

    def measure(self, commit: int) -> float | str:
        if commit in self._broken:
            return "the build failed"
        self.measured += 1
        noise = self._noise / math.sqrt(2) * self._rng.standard_normal()
        return math.exp(self._effect * (commit >= self._changed) + noise)


def _range(count: int) -> CommitRange:
    after = tuple(CommitLine(revision=str(one), subject="", merge=False) for one in range(count))
    return CommitRange(root=Path(), good="good", after=after)


def _bisect(sim: MadeUpCommits, path: Path, count: int = 32) -> BisectResult:
    options = BisectOptions(command=MeasuredCommand(words=("made-up",)))
    run = BisectRun(_range(count), options, Journal(path), sim.measure, lambda *_: None)
    return run.answer()


@pytest.mark.parametrize("changed", [0, 1, 17, 31])
def test_the_changed_commit_is_found(tmp_path: Path, changed: int) -> None:
    result = _bisect(MadeUpCommits(changed, changed, 0.05, 0.04), tmp_path / "journal")
    assert result.found is not None
    assert int(result.found.revision) == changed
    assert result.change == pytest.approx(math.expm1(0.05), abs=0.03)


def test_faster_is_found_as_well(tmp_path: Path) -> None:
    result = _bisect(MadeUpCommits(1, 9, -0.1, 0.02), tmp_path / "journal")
    assert result.found is not None and result.found.revision == "9"


def test_a_metric_without_noise_needs_few_pairs(tmp_path: Path) -> None:
    result = _bisect(MadeUpCommits(0, 13, 0.02, 0.0), tmp_path / "journal", 64)
    assert result.found is not None and result.found.revision == "13"
    assert sum(result.pairs.values()) <= 20


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_endpoints_that_are_alike_are_not_reproduced(tmp_path: Path, noise: float) -> None:
    result = _bisect(MadeUpCommits(2, 99, 0.05, noise), tmp_path / "journal")
    assert (result.answer, result.suspects) == ("not reproduced", ())
    assert result.pairs["search"] == 0


def test_endpoints_are_not_called_alike_where_noise_could_hide_anything(tmp_path: Path) -> None:
    calm = _bisect(MadeUpCommits(2, 99, 0.05, 0.02), tmp_path / "calm")
    assert "too noisy" not in calm.reason
    wild = _bisect(MadeUpCommits(2, 99, 0.05, 2.0), tmp_path / "wild")
    assert wild.answer == "not reproduced" and "alike" not in wild.reason
    assert wild.reason.endswith("the machine was too noisy: bisect again")


def test_commits_that_cannot_be_built_are_skipped(tmp_path: Path) -> None:
    result = _bisect(MadeUpCommits(3, 20, 0.1, 0.02, broken=(15, 7)), tmp_path / "journal")
    assert result.found is not None and result.found.revision == "20"


def test_a_change_among_unbuildable_commits_is_narrowed(tmp_path: Path) -> None:
    result = _bisect(MadeUpCommits(4, 16, 0.1, 0.02, broken=(14, 15, 16)), tmp_path / "journal")
    assert result.answer == "narrowed"
    assert {"16"} <= {one.revision for one in result.suspects} <= {"14", "15", "16", "17"}
    assert any(one.skipped for one in result.suspects)


@pytest.mark.parametrize(("broken", "said"), [(GOOD, "GOOD"), (31, "BAD")])
def test_an_endpoint_that_cannot_be_built(tmp_path: Path, broken: int, said: str) -> None:
    with pytest.raises(MeasureError, match=f"{said} .* cannot be measured: the build failed"):
        _bisect(MadeUpCommits(5, 9, 0.1, 0.02, broken=(broken,)), tmp_path / "journal")


def test_a_killed_run_measures_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    whole = _bisect(MadeUpCommits(6, 12, 0.05, 0.04), path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: len(lines) // 2]) + lines[-1][:20])  # cut in a line
    sim = MadeUpCommits(7, 12, 0.05, 0.04)
    resumed = _bisect(sim, path)
    assert resumed.found is not None and whole.found is not None
    assert resumed.found.revision == whole.found.revision
    assert resumed.resumed_pairs == len(lines) // 2
    assert sim.measured == 2 * (sum(resumed.pairs.values()) - resumed.resumed_pairs)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(2, 40),
    st.lists(st.tuples(st.integers(0, 39), st.floats(-1, 1)), min_size=1, max_size=30),
)
@example(2, [(0, 0.0)] * 5 + [(1, 0.0), (0, 0.0), (0, 0.0), (0, 0.75), (0, 0.0)])
def test_the_posterior_is_a_distribution(count: int, probes: list[tuple[int, float]]) -> None:
    ends = [
        CommitPair(commit=count - 1, against=GOOD, value=0.1 + i / 100, reference=0.0)
        for i in (0, 1)
    ]
    search = CommitSearch(count, ends)
    for commit, value in probes:
        search.add(CommitPair(commit=commit % count, against=GOOD, value=value, reference=0.0))
    assert search.posterior.min() >= 0
    assert search.posterior.sum() + search.unchanged == pytest.approx(1)
    assert search.best() in search.credible()


@pytest.mark.parametrize("shared", ["nothing", "walk", "jumps"])
def test_means_tell_only_where_the_level_is_slow(shared: str) -> None:
    """The effect's error is below that of differences alone if the level stands still or walks."""
    rng = np.random.default_rng(8)
    level = {
        "nothing": np.zeros(60),
        "walk": np.cumsum(0.01 * rng.standard_normal(60)),
        "jumps": rng.standard_normal(60),
    }[shared]
    pairs = [
        CommitPair(
            commit=31 if at % 2 else 0,
            against=GOOD,
            value=0.05 * (at % 2) + level[at] + 0.03 * rng.standard_normal(),
            reference=level[at] + 0.03 * rng.standard_normal(),
        )
        for at in range(60)
    ]
    effect = CommitSearch(32, pairs).effect
    alone = effect.noise / math.sqrt(30)
    assert effect.mean == pytest.approx(0.05, abs=0.02)
    assert effect.noise == pytest.approx(0.03 * math.sqrt(2), rel=0.25)
    assert effect.error / alone == pytest.approx({"jumps": 1.0}.get(shared, 0.8), abs=0.12)


def test_a_pair_that_was_disturbed_decides_nothing() -> None:
    rng = np.random.default_rng(9)
    values = 0.05 + 0.03 * rng.standard_normal(30)
    pairs = [CommitPair(commit=31, against=GOOD, value=one, reference=0.0) for one in values]
    before = CommitSearch(32, pairs)
    spoilt = CommitPair(commit=15, against=GOOD, value=5.0, reference=0.0)
    after = CommitSearch(32, [*pairs[:15], spoilt, *pairs[15:]])
    assert after.effect.noise < 2.5 * before.effect.noise
    assert after.posterior[:16].sum() < 0.999 * (1 - after.unchanged)


def test_alike_endpoints_are_seldom_found_to_differ(tmp_path: Path) -> None:
    for seed in range(4):
        result = _bisect(MadeUpCommits(seed, 99, 0.0, 0.04), tmp_path / f"journal-{seed}")
        assert result.answer == "not reproduced"


def test_a_journal_drops_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "journal"
    Journal(path).add(JournalLine(phase="ends", commit=3, value=1.0))
    with path.open("ab") as file:
        file.write(b'{"phase": "en')
    journal = Journal(path)
    journal.add(JournalLine(phase="skip", commit=4, why="x"))
    assert [one.commit for one in Journal(path).lines] == [3, 4]
