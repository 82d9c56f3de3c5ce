"""Verdicts that are kept: one judge, and the ledger that remembers what it said."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from ratchet import __version__
from ratchet.base.errors import DeviceError
from ratchet.devices.probe import describe_device
from ratchet.judge.revision import revision
from ratchet.judge.sandbox.accelerator import may_use_gpu
from ratchet.judge.trial.kernel_trial import KernelJudge
from ratchet.judge.verdict import Screening, Verdict
from ratchet.kernels.kernel import Kernel, Language
from ratchet.ledger import Fingerprint, Ledger
from ratchet.ledger.connect import utc_now
from ratchet.ledger.fleet import Fleet, LocalFleet, Terms, verdict_under
from ratchet.problems.problem import Problem
from ratchet.problems.problem_file import described

__all__ = ["JudgedKernel", "RecordedJudge", "Terms", "judged_on"]

TOOK: Final = "verdict_took"
"""Kind of the evidence that holds how long a whole verdict took."""
LEAST_S: Final[dict[Language, float]] = {"cpp": 3.0, "torch": 6.0, "triton": 6.0, "hip": 6.0}
"""What a verdict takes at least before anything was seen: its processes start, and import torch."""
COMPILE_S = 10.0
"""What torch.compile takes on top, at least."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedKernel:
    """A verdict with what it was said of; plain data, as the page of a verdict takes it."""

    verdict: dict[str, Any]
    kernel: dict[str, Any]
    problem: dict[str, Any]
    judged_at: str
    recalled: bool
    """Found in the ledger, and not judged again."""

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, numbers and strings."""
        return asdict(self)


class RecordedJudge:
    """Judges kernels and appends every verdict to the ledger, with the kernel and the problem.

    The judge is this machine's, or a fleet's; the ledger is written by this process alone.
    """

    def __init__(
        self, ledger: str | None, *, threads: int | None = None, fleet: Fleet | None = None
    ) -> None:
        self.ledger = Ledger.open(ledger)
        self.fleet: Fleet = fleet or LocalFleet(KernelJudge(threads=threads))
        self.device = self.fleet.device("cpu")
        self.fingerprint = self.ledger.here(self.device, self.fleet.versions)

    def __enter__(self) -> RecordedJudge:
        return self

    def __exit__(self, *_: object) -> None:
        self.fleet.close()
        self.ledger.close()

    def begin(self, language: Language) -> None:
        """Start what a kernel in `language` needs here, beside what the caller does meanwhile."""
        if isinstance(self.fleet, LocalFleet):
            self.fleet.court.begin(language)

    def describe(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Run a problem's file beside the judge here; see `problem_file.Describe`."""
        if isinstance(self.fleet, LocalFleet):
            return self.fleet.court.describe(request, limit_s)
        return described(request, limit_s)

    def screen(
        self,
        problem: Problem,
        kernels: Sequence[Kernel],
        *,
        best: Kernel | None,
        time_limit_s: float,
    ) -> Sequence[Screening]:
        """Return a quick estimate of each kernel, in their order; see `KernelJudge.screen`."""
        return self.fleet.screen(problem, kernels, best=best, time_limit_s=time_limit_s)

    def try_out(
        self, kernels: Sequence[Kernel], problem: Problem, terms: Terms
    ) -> Iterator[tuple[Kernel, Verdict]]:
        """Give verdicts that are not kept: an estimate for kernels that are not screened."""
        return self.fleet.judge(kernels, problem, terms)

    def fingerprint_for(self, kernel: Kernel, terms: Terms) -> Fingerprint:
        """Return the device that a kernel is judged on: a GPU's verdict is not this CPU's."""
        if terms.target is not None or not may_use_gpu(kernel, terms.device):
            return self.fingerprint
        try:
            found = self.fleet.device(terms.device)
        except DeviceError:  # the judge says in its verdict that there is none
            return self.fingerprint
        return self.ledger.here(found, self.fleet.versions)

    def judge(
        self,
        kernel: Kernel,
        problem: Problem,
        terms: Terms,
        *,
        then: Kernel | None = None,
        spent_s: float = 0.0,
    ) -> JudgedKernel:
        """Judge now, whatever the ledger holds, and keep the verdict; `then` will be next.

        `spent_s` of the time limit went into reading the problem.
        """
        began_s = time.monotonic() - spent_s
        if isinstance(self.fleet, LocalFleet):
            court = self.fleet.court
            verdict = verdict_under(terms, court, kernel, problem, then=then, spent_s=spent_s)
        else:
            ((_, verdict),) = self.fleet.judge([kernel], problem, terms)
        if verdict.speedup.vs_reference is not None:  # it went through every step
            took = {"took_s": time.monotonic() - began_s}
            here = self.fingerprint_for(kernel, terms)
            self.ledger.remember(TOOK, _took_key(kernel, problem, terms), took, fingerprint=here)
        return self._kept(kernel, problem, terms, verdict)

    def expected_s(self, kernel: Kernel, problem: Problem, terms: Terms) -> float:
        """Return how long a whole verdict takes here: as the last one did, or at the very least."""
        here = self.fingerprint_for(kernel, terms)
        known = self.ledger.recall(TOOK, _took_key(kernel, problem, terms), fingerprint=here)
        least_s = LEAST_S[kernel.language] + (COMPILE_S if terms.against_compile else 0.0)
        return least_s if known is None else float(known["took_s"])

    def judge_all(
        self, kernels: Sequence[Kernel], problem: Problem, terms: Terms
    ) -> Iterator[JudgedKernel]:
        """Judge several kernels; each verdict is kept as soon as it is given."""
        for kernel, verdict in self.fleet.judge(kernels, problem, terms):
            yield self._kept(kernel, problem, terms, verdict)

    def _kept(self, kernel: Kernel, problem: Problem, terms: Terms, given: Verdict) -> JudgedKernel:
        verdict: dict[str, Any] = given.model_dump(mode="json")
        judged_at, here = utc_now(), self.fingerprint_for(kernel, terms)
        book = self.ledger
        book.record_kernel(kernel.hash, kernel.name, kernel.as_json(), fingerprint=here)
        book.record_problem(problem.hash, problem.name, problem.as_json(), fingerprint=here)
        trial = {"judged_at": judged_at, "ratchet": __version__, **asdict(terms)}
        book.record_verdict({**verdict, "trial": trial}, fingerprint=here)
        return _judged(verdict, kernel, problem, judged_at, recalled=False)

    def known(self, kernel: Kernel, problem: Problem, terms: Terms) -> JudgedKernel | None:
        """The newest verdict of this device and software, if it answers what is asked now."""
        here = self.fingerprint_for(kernel, terms)
        found = self.ledger.verdict(kernel.hash, problem.hash, here, judge=revision())
        if found is None:
            return None
        trial = found.pop("trial", None)
        untimed = bool(found.get("not_timed"))  # right, but no answer on its speed
        if trial is None or untimed or not _answers(found["status"], trial, terms):
            return None
        return _judged(found, kernel, problem, trial["judged_at"], recalled=True)


def _took_key(kernel: Kernel, problem: Problem, terms: Terms) -> str:
    return f"{problem.hash}:{kernel.language}:{terms.against_compile}:{terms.device}"


def _answers(status: str, trial: dict[str, Any], terms: Terms) -> bool:
    """Return whether a verdict found under the terms of `trial` would be the same under these."""
    if status == "unmeasured":  # the machine's fault or a time limit's: no answer on the kernel
        return False
    if status == "timed_out" and trial["time_limit_s"] < terms.time_limit_s:
        return False
    # Not kept before there was a choice. A stricter level than asked answers too.
    before = {"device": Terms().device, "among": 1, "target": None, "compared": False}
    trial = {**before, **trial}
    if trial["among"] < terms.among:
        return False
    if terms.target is not None and terms.compared and not trial["compared"]:
        return False  # it lacks the estimate beside the reference
    same = {
        "ratchet": __version__,
        "against_compile": terms.against_compile,
        "device": terms.device,
        "target": terms.target,
    }
    return all(trial[name] == value for name, value in same.items())


def _judged(
    verdict: dict[str, Any], kernel: Kernel, problem: Problem, judged_at: str, *, recalled: bool
) -> JudgedKernel:
    return JudgedKernel(
        verdict=verdict,
        kernel=kernel.as_json(),
        problem=problem.as_json(),
        judged_at=judged_at,
        recalled=recalled,
    )


def judged_on(judge: RecordedJudge) -> tuple[dict[str, Any], dict[str, str]]:
    """The device and the versions that stand beside every figure."""
    versions = {"ratchet": __version__, **asdict(judge.fleet.versions)}
    return dict(describe_device(judge.device)), versions
