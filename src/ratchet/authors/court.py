"""The judge, as a writing run asks it: estimates that are not kept, and verdicts that are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from ratchet.authors.search.static_rank import TARGET, static_rank, static_words
from ratchet.kernels.kernel import Kernel
from ratchet.ledger.verdicts import JudgedKernel, RecordedJudge, Terms
from ratchet.problems.problem import Problem

if TYPE_CHECKING:
    from ratchet.judge.verdict import Screening, Verdict

NOT_SCREENED: Final = ("triton", "hip")
"""Languages whose estimate is a verdict that is not kept."""
TRIED_S: Final = 30.0
"""Time limit of such a verdict."""
RIGHT: Final = ("proven", "correct")


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """The judge's estimate of a kernel before a verdict; never a proof."""

    kernel_hash: str
    status: str
    reason: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    time_s: float | None = None
    static_rank: tuple[float, ...] = ()
    """Smaller is better; only of kernels that cannot be timed here."""
    evidence: tuple[str, ...] = ()


class Court(Protocol):
    """The judge, as a run asks it."""

    @property
    def width(self) -> int:
        """Return how many candidates are judged at once."""
        ...

    def estimate(
        self,
        problem: Problem,
        kernels: Sequence[Kernel],
        *,
        best: Kernel | None,
        time_limit_s: float,
        device: str,
    ) -> Sequence[Estimate]:
        """Return an estimate for each kernel, in their order."""
        ...

    def judge(
        self, kernels: Sequence[Kernel], problem: Problem, terms: Terms
    ) -> Iterator[JudgedKernel]:
        """Give each kernel a full verdict, and keep it; each comes as soon as it is given."""
        ...


class RecordedCourt:
    """A court that keeps its verdicts in the ledger."""

    def __init__(
        self, judge: RecordedJudge, *, target: str | None = None, fresh: bool = False
    ) -> None:
        """`target` is a GPU that is not here: the machine code of kernels in Triton is emulated.

        With `fresh` no verdict of the ledger is taken for an answer.
        """
        self._judge = judge
        self._target = target
        self._fresh = fresh

    @property
    def width(self) -> int:
        """Return how many candidates the fleet judges at once."""
        return self._judge.fleet.width

    def judge(
        self, kernels: Sequence[Kernel], problem: Problem, terms: Terms
    ) -> Iterator[JudgedKernel]:
        """Give each kernel a verdict: one that the ledger holds, if it answers, or a new one."""
        unknown = []
        for kernel in kernels:
            known = None if self._fresh else self._judge.known(kernel, problem, terms)
            if known is None:
                unknown.append(kernel)
            else:
                yield known
        yield from self._judge.judge_all(unknown, problem, terms)

    def estimate(
        self,
        problem: Problem,
        kernels: Sequence[Kernel],
        *,
        best: Kernel | None,
        time_limit_s: float,
        device: str,
    ) -> Sequence[Estimate]:
        """Return an estimate for each kernel; see `Court.estimate`."""
        screened = [one for one in kernels if one.language not in NOT_SCREENED]
        beside = best if best is not None and best.language not in NOT_SCREENED else None
        found = {}
        if screened:
            answers = self._judge.screen(problem, screened, best=beside, time_limit_s=time_limit_s)
            found = {one.kernel_hash: _estimate(one) for one in answers}
        tried = [one for one in kernels if one.language in NOT_SCREENED]
        terms = Terms(
            time_limit_s=min(time_limit_s, TRIED_S),
            device=device,
            profiled=(self._target or TARGET,),
            target=self._target,
            compared=False,
        )
        for kernel, verdict in self._judge.try_out(tried, problem, terms):
            found[kernel.hash] = _tried(kernel, verdict, self._target)
        return [found[one.hash] for one in kernels]


def _tried(kernel: Kernel, verdict: Verdict, target: str | None) -> Estimate:
    """Return an estimate from a verdict that is not kept: its luck is the search's."""
    speedup = verdict.speedup.vs_reference
    rank = () if speedup or target is None else static_rank(verdict, target)
    right = verdict.status in RIGHT
    words = static_words(rank, target) if target and len(rank) == 3 else verdict.reason
    return Estimate(
        kernel_hash=kernel.hash,
        status="screened" if right else verdict.status,
        reason=words if right else verdict.reason,
        ratio=None if speedup is None else speedup.ratio,
        low=None if speedup is None else speedup.low,
        high=None if speedup is None else speedup.high,
        static_rank=rank if right else (),
        evidence=tuple(
            f"{one.check}: {one.detail}"
            for one in verdict.evidence
            if one.passed is False or (target and one.check.startswith("hottest lines"))
        ),
    )


def _estimate(screening: Screening) -> Estimate:
    return Estimate(
        kernel_hash=screening.kernel_hash,
        status=screening.status,
        reason=screening.reason,
        ratio=screening.ratio,
        low=screening.low,
        high=screening.high,
        time_s=screening.time_s,
        evidence=tuple(screening.evidence),
    )
