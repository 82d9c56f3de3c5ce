"""Score a candidate over a whole suite: fast_p, and a mean that includes every failure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec

from ratchet.judge.trial.kernel_checks import SLOWEST_FACTOR
from ratchet.judge.verdict import Ratio, Speedups, Status

FAST_P = (1.0, 1.2, 1.5, 2.0)
FAILED_RATIO = 1.0 / SLOWEST_FACTOR
"""Ratio that counts for a failure in the mean.

It is the slowest speed that the judge waits for, so no right answer can score less.
"""
RIGHT: tuple[Status, ...] = ("proven", "correct")

RowStatus = Status | Literal["unanswered", "not_reached"]
Rival = Literal["vs_reference", "vs_compile"]


class _ScoreModel(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    pass


class SuiteRow(_ScoreModel, kw_only=True):
    """One problem of a suite and the outcome for the kernel that answers it."""

    name: str
    status: RowStatus
    """A verdict's status; `unanswered`: no kernel; `not_reached`: the run ended early."""
    reason: str
    speedup: Speedups = Speedups()
    kernel: str = ""
    kernel_hash: str = ""
    problem_hash: str = ""
    recalled: bool = False
    """True if the verdict comes from the ledger and was not judged again."""

    @property
    def right(self) -> bool:
        """Return True if its answers were right on every case."""
        return self.status in RIGHT

    def ratio(self, rival: Rival) -> Ratio | None:
        """Return the speed-up to count; None if an answer was wrong or nothing was timed."""
        return getattr(self.speedup, rival) if self.right else None


class Score(_ScoreModel, kw_only=True):
    """The score against one rival."""

    measured: int
    """Number of right kernels with a measured ratio."""
    fast_p: dict[str, float]
    """Share of problems with a proven kernel whose whole interval against this rival is above p.

    `Ratio.confidence` is the interval's confidence. The interval alone is not enough: one over
    several cases may be above p although one of the cases is undecided.
    """
    fast_p_by_estimate: dict[str, float]
    """Share of problems with a right kernel and an estimate above p, as in KernelBench.

    Noise can lift a kernel above p.
    """
    geometric_mean: float | None
    """Geometric mean over all problems; a problem without a measured ratio counts as FAILED_RATIO.
    """
    geometric_mean_of_measured: float | None
    """Geometric mean over measured problems only; it does not show how many failed."""


class SuiteSummary(_ScoreModel, kw_only=True):
    """All counts and scores of one set of problems."""

    problems: int
    right: int
    statuses: dict[str, int]
    failed_ratio: float = FAILED_RATIO
    vs_reference: Score
    vs_compile: Score | None
    """None if torch.compile was not requested as a rival."""


def summarise(rows: Sequence[SuiteRow], *, against_compile: bool) -> SuiteSummary:
    """Summarise all given rows, failures included."""
    return SuiteSummary(
        problems=len(rows),
        right=sum(row.right for row in rows),
        statuses=dict(Counter(row.status for row in rows)),
        vs_reference=score(rows, "vs_reference"),
        vs_compile=score(rows, "vs_compile") if against_compile else None,
    )


def score(rows: Sequence[SuiteRow], rival: Rival) -> Score:
    """Compute fast_p and the means against one rival."""
    ratios = [row.ratio(rival) for row in rows]
    found = [ratio for ratio in ratios if ratio is not None]
    proven = [
        ratio.low
        for row, ratio in zip(rows, ratios, strict=True)
        if ratio is not None and row.status == "proven"
    ]
    all_ratios = [FAILED_RATIO if ratio is None else ratio.ratio for ratio in ratios]
    return Score(
        measured=len(found),
        fast_p=_shares(proven, len(rows)),
        fast_p_by_estimate=_shares([ratio.ratio for ratio in found], len(rows)),
        geometric_mean=_mean(all_ratios),
        geometric_mean_of_measured=_mean([ratio.ratio for ratio in found]),
    )


def _shares(ratios: Sequence[float], problems: int) -> dict[str, float]:
    if not problems:
        return {f"{p:g}": 0.0 for p in FAST_P}
    return {f"{p:g}": sum(ratio > p for ratio in ratios) / problems for p in FAST_P}


def _mean(ratios: Sequence[float]) -> float | None:
    """Return the geometric mean; a right kernel slower than a failure counts as a failure."""
    if not ratios:
        return None
    logs = [math.log(max(ratio, FAILED_RATIO)) for ratio in ratios]
    return math.exp(math.fsum(logs) / len(logs))


def answered(rows: Sequence[SuiteRow]) -> list[SuiteRow]:
    """Return the rows of problems that have a kernel."""
    return [row for row in rows if row.status not in ("unanswered", "not_reached")]


class SuiteResult(_ScoreModel, kw_only=True):
    """The whole result of `ratchet judge --suite`: the document behind the table and the page."""

    suite: str
    candidate: str
    tier: str
    summary: dict[Literal["all", "answered"], SuiteSummary]
    rows: list[SuiteRow]
    interrupted: bool
    device: dict[str, object]
    versions: dict[str, str]
    command: str
    started_at: str
    duration_s: float
