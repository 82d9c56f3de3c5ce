"""Verdicts that are kept: one judge, and the ledger that remembers what it said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

from ratchet import __version__
from ratchet.devices.fingerprint import software
from ratchet.devices.probe import describe_device, probe
from ratchet.errors import DeviceError
from ratchet.judge.revision import revision
from ratchet.judge.sandbox.accelerator import may_use_gpu
from ratchet.judge.trial.kernel_trial import KernelJudge
from ratchet.judge.verdict import Screening, Verdict
from ratchet.kernels.kernel import Kernel
from ratchet.kernels.problem import Problem
from ratchet.ledger import Fingerprint, Ledger
from ratchet.ledger.connect import utc_now


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """The options of a verdict."""

    time_limit_s: float = 60.0
    against_compile: bool = False
    """Time torch.compile of the reference beside it."""
    device: str = "auto"
    """`cpu`, `cuda` or `cuda:N`; by default Triton's kernels take a GPU where there is one."""
    target: str | None = None
    """A GPU whose machine code is emulated: `gfx942` or `gfx950`."""
    among: int = 1
    """Verdicts that share one chance of a false answer: see `KernelJudge.judge`."""


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
    """Judges kernels and appends every verdict to the ledger, with the kernel and the problem."""

    def __init__(self, ledger: str | None, *, threads: int | None = None) -> None:
        self._ledger = Ledger.open(ledger)
        self._judge = KernelJudge(threads=threads)
        self.device = probe("cpu")
        self.fingerprint = self._ledger.here(self.device)

    def __enter__(self) -> RecordedJudge:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._judge.close()
        self._ledger.close()

    @property
    def ledger(self) -> Ledger:
        """The open ledger."""
        return self._ledger

    def screen(
        self,
        problem: Problem,
        kernels: Sequence[Kernel],
        *,
        best: Kernel | None,
        time_limit_s: float,
    ) -> Sequence[Screening]:
        """Return a quick estimate of each kernel, in their order; see `KernelJudge.screen`."""
        return self._judge.screen(problem, kernels, best=best, time_limit_s=time_limit_s)

    def try_out(
        self, kernel: Kernel, problem: Problem, *, time_limit_s: float, device: str
    ) -> Verdict:
        """Return a verdict that is not kept: an estimate for kernels that are not screened."""
        return self._judge.judge(kernel, problem, time_limit_s=time_limit_s, device=device)

    def fingerprint_for(self, kernel: Kernel, terms: Terms) -> Fingerprint:
        """Return the device that a kernel is judged on: a GPU's verdict is not this CPU's."""
        if terms.target is not None or not may_use_gpu(kernel, terms.device):
            return self.fingerprint
        try:
            found = probe(terms.device)
        except DeviceError:  # the judge says in its verdict that there is none
            return self.fingerprint
        return self._ledger.here(found)

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
        verdict: dict[str, Any] = self._judge.judge(
            kernel,
            problem,
            time_limit_s=terms.time_limit_s,
            spent_s=spent_s,
            against_compile=terms.against_compile,
            then=then,
            device=terms.device,
            among=terms.among,
            target=terms.target,
        ).model_dump(mode="json")
        judged_at, here = utc_now(), self.fingerprint_for(kernel, terms)
        book = self._ledger
        book.record_kernel(kernel.hash, kernel.name, kernel.as_json(), fingerprint=here)
        book.record_problem(problem.hash, problem.name, problem.as_json(), fingerprint=here)
        trial = {"judged_at": judged_at, "ratchet": __version__, **asdict(terms)}
        book.record_verdict({**verdict, "trial": trial}, fingerprint=here)
        return _judged(verdict, kernel, problem, judged_at, recalled=False)

    def known(self, kernel: Kernel, problem: Problem, terms: Terms) -> JudgedKernel | None:
        """The newest verdict of this device and software, if it answers what is asked now."""
        here = self.fingerprint_for(kernel, terms)
        found = self._ledger.verdict(kernel.hash, problem.hash, here, judge=revision())
        if found is None:
            return None
        trial = found.pop("trial", None)
        untimed = bool(found.get("not_timed"))  # right, but no answer on its speed
        if trial is None or untimed or not _answers(found["status"], trial, terms):
            return None
        return _judged(found, kernel, problem, trial["judged_at"], recalled=True)


def _answers(status: str, trial: dict[str, Any], terms: Terms) -> bool:
    """Return whether a verdict found under the terms of `trial` would be the same under these."""
    if status == "unmeasured":  # the machine's fault or a time limit's: no answer on the kernel
        return False
    if status == "timed_out" and trial["time_limit_s"] < terms.time_limit_s:
        return False
    # Not kept before there was a choice. A stricter level than asked answers too.
    trial = {"device": Terms().device, "among": 1, "target": None, **trial}
    if trial["among"] < terms.among:
        return False
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
    return dict(describe_device(judge.device)), {"ratchet": __version__, **asdict(software())}
