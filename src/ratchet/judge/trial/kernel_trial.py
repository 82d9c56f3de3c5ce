"""Judge kernels one after another, with trusted processes that last. It fails closed."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ratchet.base.errors import CompilerMissing, JudgeError, OutOfTime, RatchetError
from ratchet.base.process import Clock, ends_within
from ratchet.base.process.channel import Message
from ratchet.judge.kernels.kernel import WITH_TORCH, Kernel, Language
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.problem_file import described
from ratchet.judge.sandbox.accelerator import Accelerator, all_nodes, may_use_gpu
from ratchet.judge.targets import References, targets
from ratchet.judge.terms import LANGUAGES
from ratchet.judge.trial.candidate import CandidateProcess
from ratchet.judge.trial.compiling import NextLibrary, Toolchain
from ratchet.judge.trial.launches import SharedCompilations
from ratchet.judge.trial.reference import ReferenceProcess
from ratchet.judge.trial.screening import Screener, ScreeningParts
from ratchet.judge.trial.screening_rounds import QuickClock
from ratchet.judge.trial.stages import KernelTrial
from ratchet.judge.verdict import CandidateFault, Decided, Screening, Verdict

LOG = logging.getLogger(__name__)
FindGpu = Callable[[str], Accelerator | Decided | None]
GRACE_S = 300.0
"""A verdict ends so long after its limit, whatever a step waits for; `court.calls` ends sooner."""
FIND_TIMEOUT_S = 120.0  # The first use of a GPU loads its libraries


class KernelJudge:
    """Judges kernels one after another, and keeps its trusted processes between them.

    These are the reference worker and the zygotes from which candidates are forked. Candidates'
    processes are never reused. `threads` is the number of cores that both sides may use, by default
    all of this process. The worker dies with the thread that made it.
    """

    def __init__(self, *, threads: int | None = None) -> None:
        self.threads = threads or len(os.sched_getaffinity(0))
        self._reference: ReferenceProcess | None = None
        self._tools = Toolchain(threads=self.threads)
        self._ahead = NextLibrary(self._tools)
        self._compilations = SharedCompilations()
        self._references: References | None = None
        self._screener = Screener(self._tools, threads=self.threads)
        self._warned: set[str] = set()

    def __enter__(self) -> KernelJudge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, language: Language) -> None:
        """Start the processes that a kernel in `language` needs on cores, without waiting."""
        self._worker()
        if language != "triton" or not all_nodes():  # a GPU's starts once the GPU is known
            self._tools.kernels(language, None)

    def describe(self, request: Message, limit_s: float) -> Message:
        """Run a problem's file in a fork that already holds torch (`problem_file.Describe`)."""
        try:
            return self._worker().describe(request, limit_s)
        except JudgeError as error:
            LOG.warning("the file's process starts anew: %s", error)
            self.close()
            return described(request, limit_s)

    def close(self) -> None:
        """End the reference worker and the zygotes, and forget compiled libraries."""
        self._ahead.close()
        self._compilations.close()
        self._screener.forget_problem()
        self._tools.close()
        if self._reference is not None:
            self._reference.close()
            self._reference = None

    def judge(
        self,
        kernel: Kernel,
        problem: Problem,
        *,
        time_limit_s: float = 60.0,
        spent_s: float = 0.0,
        seed: int | None = None,
        against_compile: bool = False,
        then: Kernel | None = None,
        device: str | Accelerator = "auto",
        among: int = 1,
        profiled: Sequence[str] = (),
        target: str | None = None,
        compared: bool = False,
    ) -> Verdict:
        """Return the verdict on `kernel` for `problem`, within about `time_limit_s` seconds.

        The limit decides how much is measured: a kernel that was right when time ran out is
        `correct`, and not timed. Each step has its own limit, in work, and none outlives the limit
        by more than GRACE_S. `spent_s` seconds of it are gone already, for reading the problem's
        file. The other options are those of `court.terms.Terms`. `then` is the kernel that is
        judged next: its compiler may run beside this kernel's, and is stopped while anything is
        timed. Raises CompilerMissing (there is no C++ compiler); KernelError (the problem's module
        cannot be found).
        """
        self._screener.forget_problem()  # the reference worker opens another
        secret = secrets.randbits(48) if seed is None else seed
        clock = Clock(deadline=time.monotonic() + time_limit_s - spent_s, limit_s=time_limit_s)
        if compared and self._references is None:
            self._references = targets().references()
        trial = KernelTrial(
            kernel=kernel,
            problem=problem,
            threads=self.threads,
            clock=clock,
            secret=secret,
            against_compile=against_compile,
            ahead=self._ahead,
            then=then,
            shared=self._compilations,
            among=max(1, among),
            profiled=profiled,
            target=target,
            references=self._references if compared else None,
        )
        answers: list[Decided] = []
        end_s = max(0.0, clock.left_s) + GRACE_S
        with ends_within(end_s), self._failing_closed(answers.append):
            answers.append(self._decide(trial, device))
        self._ahead.resume()
        return trial.verdict(answers[-1])

    def _decide(self, trial: KernelTrial, device: str | Accelerator) -> Decided:
        try:
            accelerator = self._accelerator(trial.kernel, "cpu" if trial.target else device)
            if isinstance(accelerator, Decided):
                return accelerator
            language = "torch" if trial.target else trial.kernel.language
            trial.use(accelerator, self._tools.kernels(language, accelerator))
            return trial.run(self._worker())
        except CandidateFault as fault:
            return fault.decided
        except OutOfTime as error:
            decided = trial.out_of_time(error)
            self.close()
            return decided

    @contextlib.contextmanager
    def _failing_closed(self, answer: Callable[[Decided], None]) -> Iterator[None]:
        """Answer `unmeasured` for a fault of the judge, and end its processes."""
        try:
            yield
        except CompilerMissing:
            raise
        except (RatchetError, OSError) as error:  # never a win, and the reason says what happened
            LOG.warning("the judge could not finish: %s", error)
            answer(Decided("unmeasured", f"the judge could not do its work: {error}"))
            self.close()
        except BaseException:  # also Ctrl-C: the reference worker's state is unknown
            self.close()
            raise

    def screen(
        self,
        problem: Problem,
        kernels: Sequence[Kernel],
        *,
        best: Kernel | None = None,
        time_limit_s: float = 120.0,
        seed: int | None = None,
        device: str | Accelerator = "auto",
    ) -> tuple[Screening, ...]:
        """Estimate which of many kernels are worth a verdict; return one answer each, in order.

        See `api.screen`. They are timed on the `device` on which `judge` would time them. Kernels
        that do not fit into `time_limit_s` are `unmeasured`. The problem stays open for the next
        call. Raises CompilerMissing, and KernelError if the problem's module cannot be found.
        """
        secret = secrets.randbits(48) if seed is None else seed
        clock = QuickClock(deadline=time.monotonic() + time_limit_s, limit_s=time_limit_s)
        find = functools.cache(self._find_gpu)
        parts = ScreeningParts(
            problem,
            kernels,
            best,
            threads=self.threads,
            clock=clock,
            place=lambda one: self._accelerator(one, device, find),
        )
        with contextlib.closing(parts), self._failing_closed(parts.decide_all):
            for run in parts.runs:
                self._screener.run(run, self._worker, secret)
        return parts.answers()

    @property
    def reference_pid(self) -> int | None:
        return None if self._reference is None else self._reference.pid

    def _accelerator(
        self, kernel: Kernel, asked: str | Accelerator, find: FindGpu | None = None
    ) -> Accelerator | Decided | None:
        """Return the GPU to judge on, or None for the machine's cores; `find` finds one."""
        if isinstance(asked, Accelerator):
            return asked if kernel.language in WITH_TORCH else None
        if kernel.language not in LANGUAGES:
            return None  # the trial says so
        if asked not in ("auto", "cpu") and kernel.language not in WITH_TORCH:
            why = f"a kernel in {kernel.language} does not run on {asked}: use --device cpu"
            return Decided("refused", why)
        return (find or self._find_gpu)(asked) if may_use_gpu(kernel, asked) else None

    def _find_gpu(self, asked: str) -> Accelerator | Decided | None:
        """Return the GPU of that name, why it cannot be used, or None if `auto` finds none."""
        try:
            found = self._worker().ask(limit_s=FIND_TIMEOUT_S, do="find gpu", name=asked)
        except JudgeError as error:
            self.close()
            return Decided("unmeasured", f"the judge could not find a GPU: {error}")
        if "missing" in found and asked == "auto":
            return None
        if "described" not in found:
            missing = found.get("refused") or found.get("missing")
            return Decided("unmeasured", f"nothing can be measured on {asked}: {missing}")
        accelerator = Accelerator.of(found)
        for words in accelerator.warnings:
            if words not in self._warned:
                LOG.warning("%s", words)
            self._warned.add(words)
        return accelerator

    def _worker(self) -> ReferenceProcess:
        if self._reference is None or not self._reference.alive:
            self._reference = ReferenceProcess(threads=self.threads)
        return self._reference


# Find out whether kernels can be tried on this machine at all, before anything waits for it.

LIMIT_S: Final = 60.0
MEMORY_BYTES: Final = 8 << 30
TRIED: Final = Kernel(
    name="readiness",
    language="cpp",
    source='#include "ratchet_abi.h"\nextern "C" int64_t answer(...) { return 0; }\n',
    entry="answer",
)


@functools.cache
def why_no_kernels() -> str | None:
    """Return why no kernel can be tried here, with the remedy, in one line; None if one can.

    Compiles and loads a kernel of one line in a candidate's sandbox, once for each process. This
    takes a fraction of a second.
    """
    try:
        with contextlib.closing(_started()) as process:
            process.start_compiling(TRIED)
            library = process.library()
        try:
            with contextlib.closing(_started()) as process:
                process.load(TRIED, library)
        finally:
            os.close(library)
    except (CandidateFault, RatchetError, OSError) as error:
        return f"no kernel can be tried on this machine: {error}"
    return None


def check_kernels() -> None:
    """Raise JudgeError with that line if no kernel can be tried here."""
    reason = why_no_kernels()
    if reason is not None:
        raise JudgeError(reason)


def _started() -> CandidateProcess:
    return CandidateProcess(TRIED, threads=1, memory_bytes=MEMORY_BYTES, clock=Clock.of(LIMIT_S))
