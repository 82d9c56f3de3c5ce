"""The court over one ledger: recall a verdict that answers, or have one judged and keep it."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Final

import msgspec

from ratchet.base import VERSION
from ratchet.base.devices.probe import describe_device
from ratchet.base.errors import DeviceError, LedgerError
from ratchet.base.ledger import Fingerprint, Ledger
from ratchet.base.ledger.connect import resolve, shown, utc_now
from ratchet.base.ledger.schema import Payload
from ratchet.base.process.channel import Message
from ratchet.base.serialise import document_of
from ratchet.judge.court.machines import Fleet, LocalFleet
from ratchet.judge.kernels.kernel import Kernel, Language
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.problem_file import described
from ratchet.judge.revision import revision
from ratchet.judge.sandbox.accelerator import may_use_gpu
from ratchet.judge.terms import SETTLED, JudgedKernel, Terms, answers, trial_of
from ratchet.judge.verdict import Screening, Verdict

# Rank Triton kernels where there is no GPU: by the machine code that AMD's compiler makes.
#
# The order is that of the bound by the emulator's counts (`judge.emulator.estimates.bound`), then
# of spilled registers, then of occupancy. Nothing is measured: it is an order to look at kernels
# in, and no speed.

TARGET: Final = "gfx942"


def target_for(language: str | None, target: str | None, *, on_gpu: bool) -> str | None:
    """Return the GPU whose machine code is emulated for a run's kernels; None to run them."""
    never_here = language == "hip" or (language == "triton" and not on_gpu)
    return target or (TARGET if never_here else None)


def screening_of(verdict: Verdict, target: str | None) -> Screening:
    """Return the estimate that a verdict gives before the one that counts."""
    speedup = verdict.speedup.vs_reference
    rank = () if speedup or target is None else static_rank(verdict, target)
    right = verdict.status in ("proven", "correct")
    words = static_words(rank, target) if target and len(rank) == 3 else verdict.reason
    return Screening(
        kernel_hash=verdict.kernel_hash,
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


def static_rank(verdict: Verdict, target: str) -> tuple[float, float, float]:
    """Return bound in seconds, spills and lost occupancy: the smaller, the better.

    The bound is the sum over the visible cases, on the target's fastest device. A kernel without
    one comes last.
    """
    found = ((verdict.static or {}).get("targets") or {}).get(target) or {}
    kernels = found.get("kernels") or ()
    cases = [[one.time_s for one in case.bounds] for case in verdict.emulated]
    if not cases or not all(cases):
        return (float("inf"),) * 3
    lost = [
        1 - float(one["occupancy_waves"]) / float(one["max_waves"])
        for one in kernels
        if one.get("occupancy_waves") and one.get("max_waves")
    ]
    spills = sum(float(one.get("spills") or 0) for one in kernels)
    return sum(min(times) for times in cases), spills, max(lost, default=1.0)


def static_words(rank: tuple[float, float, float], target: str) -> str:
    bound_s, spills, lost = rank
    if bound_s == float("inf"):
        return f"emulated on {target}, and nothing is known of its time"
    return (
        f"emulated: on {target} at least {1e6 * bound_s:.3g} us (estimated), "
        f"{spills:.0f} registers spilled, {1 - lost:.0%} occupancy"
    )


LOG = logging.getLogger(__name__)
TOOK: Final = "verdict_took"  # Kind of the evidence that holds how long a whole verdict took
BY_TEXTS: Final = "verdict_by_texts"
"""Kind of the evidence that names the kernel and the problem of texts that were judged."""
LEAST_S: Final[dict[Language, float]] = {"cpp": 3.0, "torch": 6.0, "triton": 6.0, "hip": 6.0}
"""Least time of a verdict before one was seen: its processes start and import torch."""
COMPILE_S: Final = 10.0  # Least time that torch.compile adds
TRIED_S: Final = 30.0  # Time limit of a verdict that is not kept, where no screening is possible
ANY: Final = Terms()


class Court:
    """Recalls verdicts from a ledger, has the others judged, and keeps them with what they judge.

    The judge is this machine's, or a fleet's; this process alone writes the ledger. An open ledger
    that is given stays open. With `must_keep` off, a ledger that fails costs a warning and no
    verdict.
    """

    def __init__(
        self,
        ledger: Ledger | str | None = None,
        *,
        threads: int | None = None,
        fleet: Fleet | None = None,
        must_keep: bool = True,
    ) -> None:
        self._owned = not isinstance(ledger, Ledger)
        self.ledger = ledger if isinstance(ledger, Ledger) else Ledger.open(ledger)
        self.fleet: Fleet = fleet or LocalFleet(threads=threads)
        self.device = self.fleet.device("cpu")
        self.fingerprint = self.ledger.here(self.device, self.fleet.versions)
        self._must_keep = must_keep

    def __enter__(self) -> Court:
        return self

    def __exit__(self, *_: object) -> None:
        self.fleet.close()
        if self._owned:
            self.ledger.close()

    def judged_on(self, device: str = "cpu") -> tuple[Payload, dict[str, str]]:
        """Return the device of that name, and the versions, that stand beside every figure."""
        versions = {"ratchet": VERSION, **asdict(self.fleet.versions)}
        return dict(describe_device(self.fleet.device(device))), versions

    def begin(self, language: Language) -> None:
        """Start what a kernel in `language` needs here, while the caller does something else."""
        if isinstance(self.fleet, LocalFleet):
            self.fleet.begin(language)

    def describe(self, request: Message, limit_s: float) -> Message:
        """Run a problem's file beside the judge here; see `problem_file.Describe`."""
        if isinstance(self.fleet, LocalFleet):
            return self.fleet.describe(request, limit_s)
        return described(request, limit_s)

    def known(self, kernel: Kernel, problem: Problem, terms: Terms) -> JudgedKernel | None:
        """Return the ledger's newest verdict here if it answers what is asked; see `answers`."""
        found = self._newest(kernel, problem, terms)
        if found is None or not answers(found[0].verdict, found[1], terms):
            return None
        return found[0]

    def known_by_texts(self, key: str, terms: Terms) -> JudgedKernel | None:
        """Return the verdict that was kept under a key of `texts`, if it answers what is asked."""
        found = self.ledger.recall(BY_TEXTS, key, fingerprint=self.fingerprint)
        if found is None:
            return None
        kernel = self.ledger.kernel(found["kernel"])
        problem = self.ledger.problem(found["problem"])
        if kernel is None or problem is None:
            return None
        known = self.known(Kernel.from_json(kernel), Problem.from_json(problem), terms)
        return known if known is not None and known.verdict.status in SETTLED else None

    def keep_texts(self, key: str, judged: JudgedKernel) -> None:
        """Keep a key of `texts` for a verdict that this court has kept, if texts decide it."""
        named = {"kernel": judged.kernel.hash, "problem": judged.problem.hash}
        if judged.verdict.status not in SETTLED or judged.problem.fault:
            return
        with self._keeping():
            if self.ledger.recall(BY_TEXTS, key, fingerprint=self.fingerprint) != named:
                self.ledger.remember(BY_TEXTS, key, named, fingerprint=self.fingerprint)

    def last(self, kernel: Kernel, problem: Problem, terms: Terms = ANY) -> JudgedKernel | None:
        """Return the newest verdict here of this revision of the judge, even one left open.

        It ran on the device of `terms`; by their `target`, it was emulated.
        """
        found = self._newest(kernel, problem, terms)
        return None if found is None else found[0]

    def is_right(self, kernel: Kernel) -> bool:
        """Return whether a kernel is right here for a problem, and disproven for none."""
        here = self.fingerprint_for(kernel, ANY)
        return self.ledger.right(kernel.hash, here, judge=revision())

    def is_proven(self, kernel: Kernel) -> bool:
        """Return whether a kernel is proven here for a problem, and disproven for none."""
        here = self.fingerprint_for(kernel, ANY)
        return self.ledger.proven(kernel.hash, here, judge=revision())

    def judge(
        self,
        kernel: Kernel,
        problem: Problem,
        terms: Terms,
        *,
        fresh: bool = False,
        then: Kernel | None = None,
    ) -> JudgedKernel:
        """Return a verdict: the ledger's if it answers and `fresh` is off, or a new one, kept."""
        known = None if fresh else self.known(kernel, problem, terms)
        if known is not None:
            return known
        began_s = time.monotonic() - terms.spent_s
        ((_, verdict),) = self.fleet.judge([kernel], problem, terms, then=then)
        return self._kept(kernel, problem, terms, verdict, time.monotonic() - began_s)

    def judge_all(
        self, kernels: Sequence[Kernel], problem: Problem, terms: Terms, *, fresh: bool = False
    ) -> Iterator[JudgedKernel]:
        """Give each kernel a verdict, as `judge` does; each is kept as soon as it is given."""
        unknown = []
        for kernel in kernels:
            known = None if fresh else self.known(kernel, problem, terms)
            if known is None:
                unknown.append(kernel)
            else:
                yield known
        for kernel, verdict in self.fleet.judge(unknown, problem, terms):
            yield self._kept(kernel, problem, terms, verdict)

    def screen(
        self,
        kernels: Sequence[Kernel],
        problem: Problem,
        terms: Terms,
        *,
        best: Kernel | None = None,
    ) -> Sequence[Screening]:
        """Return an estimate of each kernel, in their order, timed beside `best`; nothing is kept.

        Kernels that are emulated are not screened: a short verdict, whose luck is not kept either,
        gives the estimate.
        """
        screened = [one for one in kernels if _is_timed(one, terms)]
        beside = best if best is not None and _is_timed(best, terms) else None
        found: dict[str, Screening] = {}
        if screened:
            said = self.fleet.screen(screened, problem, terms, best=beside)
            found = {one.kernel_hash: one for one in said}
        tried = [one for one in kernels if not _is_timed(one, terms)]
        short = Terms(
            time_limit_s=min(terms.time_limit_s, TRIED_S),
            device=terms.device,
            profiled=(terms.target or TARGET,),
            target=terms.target,
        )
        for kernel, verdict in self.fleet.judge(tried, problem, short):
            found[kernel.hash] = screening_of(verdict, terms.target)
        return [found[one.hash] for one in kernels]

    def expected_s(self, kernel: Kernel, problem: Problem, terms: Terms) -> float:
        """Return how long a whole verdict takes here: as the last one did, or at the very least."""
        here = self.fingerprint_for(kernel, terms)
        known = self.ledger.recall(TOOK, _took_key(kernel, problem, terms), fingerprint=here)
        least_s = LEAST_S[kernel.language] + (COMPILE_S if terms.against_compile else 0.0)
        return least_s if known is None else float(known["took_s"])

    def fingerprint_for(self, kernel: Kernel, terms: Terms) -> Fingerprint:
        """Return the device that a kernel is judged on: a GPU's verdict is not this CPU's."""
        if terms.target is not None or not may_use_gpu(kernel, terms.device):
            return self.fingerprint
        try:
            found = self.fleet.device(terms.device)
        except DeviceError:  # the judge says in its verdict that there is none
            return self.fingerprint
        return self.ledger.here(found, self.fleet.versions)

    def _newest(
        self, kernel: Kernel, problem: Problem, terms: Terms
    ) -> tuple[JudgedKernel, Payload] | None:
        here = self.fingerprint_for(kernel, terms)
        found = self.ledger.verdict(
            kernel.hash,
            problem.hash,
            here,
            judge=revision(terms.target),
            target=terms.target,
        )
        if found is None:
            return None
        trial: Payload = found.pop("trial", {})
        judged = JudgedKernel(
            verdict=msgspec.convert(found, Verdict),
            kernel=kernel,
            problem=problem,
            judged_at=trial.get("judged_at", ""),
            recalled=True,
        )
        return judged, trial

    def _kept(
        self,
        kernel: Kernel,
        problem: Problem,
        terms: Terms,
        verdict: Verdict,
        took_s: float | None = None,
    ) -> JudgedKernel:
        judged = JudgedKernel(
            verdict=verdict, kernel=kernel, problem=problem, judged_at=utc_now(), recalled=False
        )
        if terms.seed is not None:
            return judged
        with self._keeping():
            self._keep(judged, terms, took_s)
        return judged

    @contextlib.contextmanager
    def _keeping(self) -> Iterator[None]:
        """Warn of a ledger that fails, unless it must keep the verdict."""
        try:
            yield
        except LedgerError as error:
            if self._must_keep:
                raise
            LOG.warning("the verdict is not kept: %s", error)

    def _keep(self, judged: JudgedKernel, terms: Terms, took_s: float | None) -> None:
        kernel, problem, book = judged.kernel, judged.problem, self.ledger
        here = self.fingerprint_for(kernel, terms)
        if took_s is not None and judged.verdict.speedup.vs_reference is not None:
            # It went through every step.
            key = _took_key(kernel, problem, terms)
            book.remember(TOOK, key, {"took_s": took_s}, fingerprint=here)
        book.record_kernel(kernel.hash, kernel.name, kernel.as_json(), fingerprint=here)
        book.record_problem(problem.hash, problem.name, problem.as_json(), fingerprint=here)
        row = document_of(judged.verdict)
        row["trial"] = trial_of(terms, judged.judged_at)
        book.record_verdict(row, fingerprint=here)


def _is_timed(kernel: Kernel, terms: Terms) -> bool:
    """Return True if a kernel runs here as it is: Triton on a GPU, others but HIP on the cores."""
    if kernel.language == "triton":
        return terms.target is None and may_use_gpu(kernel, terms.device)
    return kernel.language != "hip"


def _took_key(kernel: Kernel, problem: Problem, terms: Terms) -> str:
    return f"{problem.hash}:{kernel.language}:{terms.against_compile}:{terms.device}"


def check_ledger(fleet: str, ledger: str | None) -> None:
    """Refuse a ledger in a file for a fleet: other machines' runs could not read its verdicts.

    Raises LedgerError: the ledger is not on PostgreSQL, and the fleet is not `local`.
    """
    url = resolve(ledger)
    if fleet != "local" and url.get_backend_name() != "postgresql":
        raise LedgerError(
            f"--fleet {fleet} needs a ledger on PostgreSQL, and {shown(url)} is a file of this "
            "machine: give --ledger or RATCHET_LEDGER postgresql://USER@HOST/DATABASE"
        )


def open_court(ledger: str | None, fleet: str = "local", *, device: str = "auto") -> Court:
    """Return the court of a fleet: `local`, `ray` for the cluster at hand, `ray://HOST:PORT`.

    Raises RatchetError: no cluster, none of its machines can judge, versions that differ, a ledger
    that is no fleet's or fails; no kernel can be tried on this machine.
    """
    if fleet == "local":
        from ratchet.judge.trial.kernel_trial import check_kernels

        check_kernels()
        return Court(ledger)
    check_ledger(fleet, ledger)
    from ratchet.judge.court.ray_cluster import RayCluster
    from ratchet.judge.court.ray_fleet import ClusterFleet

    machines = ClusterFleet(RayCluster(fleet, device=device))
    try:
        return Court(ledger, fleet=machines)
    except BaseException:
        machines.close()
        raise
