"""What tests ask of a verdict where they ask only whether the answers were right."""

from __future__ import annotations

from typing import Any, Final

from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Problem
from ratchet.judge.trial.kernel_trial import KernelJudge
from ratchet.judge.verdict import Verdict

RIGHT: Final = ("proven", "correct")
PATIENCE_S: Final = 240.0


class LentJudge:
    """A judge that outlives who opened it, as its worker takes seconds to start."""

    def __init__(self, kept: KernelJudge) -> None:
        self._kept = kept

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kept, name)

    def __enter__(self) -> LentJudge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Keep its workers."""


class PatientJudge(KernelJudge):
    """One whose time limit a busy machine does not reach, where a test sets none."""

    def judge(
        self, kernel: Kernel, problem: Problem, *, time_limit_s: float = PATIENCE_S, **others: Any
    ) -> Verdict:
        return super().judge(kernel, problem, time_limit_s=time_limit_s, **others)


def is_right_answer(status: str, reason: str) -> bool:
    """Whether every output was found right; a busy machine's clock may be doubted all the same.

    That a right kernel is also proven or found slower is asked where launches are enough for it.
    """
    doubted = status == "unmeasured" and reason.startswith("right, but")
    return status in RIGHT or (doubted and "cannot tell whose work" not in reason)


def is_right(verdict: Verdict) -> bool:
    return is_right_answer(verdict.status, verdict.reason)


def assert_right(verdict: Verdict) -> None:
    assert is_right(verdict), (verdict.status, verdict.reason)
