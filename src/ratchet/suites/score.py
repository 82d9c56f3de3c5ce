"""How good a candidate is over a whole suite: fast_p, and a mean that drops no failure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ratchet.judge.kernel_checks import SLOWEST_FACTOR
from ratchet.judge.verdict import Ratio, Speedup, Status

FAST_P = (1.0, 1.2, 1.5, 2.0)
FAILED_RATIO = 1.0 / SLOWEST_FACTOR
"""What a failure counts as in the mean: the slowest speed at which the judge still waits for an
answer. No right answer can score less."""
RIGHT: tuple[Status, ...] = ("proven", "correct")

RowStatus = Status | Literal["unanswered", "not_reached"]
Rival = Literal["vs_reference", "vs_compile"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SuiteRow(_Model):
    """One problem of a suite, and what came of the kernel that answers it."""

    name: str
    status: RowStatus
    """A verdict's status; `unanswered` where there is no kernel, `not_reached` where the run
    ended before it."""
    reason: str
    speedup: Speedup = Field(default_factory=Speedup)
    kernel: str = ""
    kernel_hash: str = ""
    problem_hash: str = ""
    recalled: bool = False
    """The verdict is the ledger's; it was not judged again."""

    @property
    def right(self) -> bool:
        """Whether its answers were right on every case."""
        return self.status in RIGHT

    def ratio(self, rival: Rival) -> Ratio | None:
        """The speed-up that counts: none where an answer is not right, or nothing was timed."""
        return getattr(self.speedup, rival) if self.right else None


class Score(_Model):
    """Against one rival."""

    measured: int
    """Right kernels with a measured ratio."""
    fast_p: dict[str, float]
    """Share of the problems whose kernel is proven and whose whole interval against this rival lies
    above p; `Ratio.confidence` is the interval's. An interval over several cases may lie above p
    where one of them is undecided, so the interval alone is not enough."""
    fast_p_by_estimate: dict[str, float]
    """As KernelBench publishes it: right, and the ratio alone above p. Noise can lift a kernel
    over p."""
    geometric_mean: float | None
    """Over all problems; one without a measured ratio counts as FAILED_RATIO."""
    geometric_mean_of_measured: float | None
    """Over the measured ones alone; says nothing of how many failed."""


class Summary(_Model):
    """The same problems counted in every way."""

    problems: int
    right: int
    statuses: dict[str, int]
    failed_ratio: float = FAILED_RATIO
    vs_reference: Score
    vs_compile: Score | None
    """None where torch.compile was not asked for as a rival."""


def summarise(rows: Sequence[SuiteRow], *, against_compile: bool) -> Summary:
    """Count every row given; a failure is a row like any other."""
    return Summary(
        problems=len(rows),
        right=sum(row.right for row in rows),
        statuses=dict(Counter(row.status for row in rows)),
        vs_reference=score(rows, "vs_reference"),
        vs_compile=score(rows, "vs_compile") if against_compile else None,
    )


def score(rows: Sequence[SuiteRow], rival: Rival) -> Score:
    """fast_p and the means against one rival."""
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
    """The geometric mean; a right kernel slower than a failure counts as one."""
    if not ratios:
        return None
    logs = [math.log(max(ratio, FAILED_RATIO)) for ratio in ratios]
    return math.exp(math.fsum(logs) / len(logs))


def answered(rows: Sequence[SuiteRow]) -> list[SuiteRow]:
    """The rows of problems for which there was a kernel."""
    return [row for row in rows if row.status not in ("unanswered", "not_reached")]


class SuiteResult(_Model):
    """The whole answer of `ratchet judge --suite`: the document behind the table and the page."""

    suite: str
    candidate: str
    tier: str
    summary: dict[Literal["all", "answered"], Summary]
    rows: list[SuiteRow]
    interrupted: bool
    device: dict[str, Any]
    versions: dict[str, str]
    command: str
    started_at: str
    duration_s: float
