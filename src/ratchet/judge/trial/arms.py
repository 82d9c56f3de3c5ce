"""The arms of a kernel's trial: the reference in its worker, the candidate in its sandbox."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set

from ratchet.base.measure import Arm, Timing
from ratchet.base.process import families
from ratchet.judge.integrity.call_order import CallOrder, Unseen, WatchedFamily
from ratchet.judge.integrity.outputs import OutputSpots
from ratchet.judge.integrity.own_work import LOOKING_S, PATIENCE_S, Watch
from ratchet.judge.sandbox.shared_memory import Handing
from ratchet.judge.trial.candidate import CandidateProcess
from ratchet.judge.trial.kernel_checks import check_calls
from ratchet.judge.trial.open_problem import DrawnBatch, OpenProblem, Rivalry
from ratchet.judge.trial.reference import COMPILED, OutputMode, RivalProcess
from ratchet.judge.verdict import fault

REFERENCE, TWIN, CANDIDATE = "reference", "reference again", "candidate"
ONE_THREAD = "reference on one thread"
"""A rival for short calls. Waking a second thread can cost more than it gives, depending on the
host. The kernel must beat the reference, not the wake-up. A reference that starts no second thread
wakes none."""
SHORT_CALL_S = 0.001
WARM_CALLS, WARM_S = 3, 0.5
"""Untimed calls at the start of a launch, or the seconds they take. Until the third call, results
of many megabytes lie on pages that are new to the process (see `arm_environment`)."""

PROBING_S = 3.0  # Seconds for more probes, if a kernel is so short that it was hardly seen at work
PATIENT_BATCHES = 60  # Batches that are sampled, or probed, however long a busy machine takes


class RoundSeeds:
    """The seeds of each round: all arms compute on the same values, each in memory of its own.

    The candidate sees a round's values once, and no other arm's memory. Without `fresh` all rounds
    have the same values.
    """

    def __init__(
        self, opened: OpenProblem, *, fresh: bool = True, arms: int = 0, rounds: int = 0
    ) -> None:
        """With `arms` that many take part in each of the rounds: batches are drawn ahead."""
        self._rng = opened.rng
        self._arms, self._batches, self._taken = arms, arms * rounds, 0
        self._fresh = fresh
        self._rounds: list[list[int]] = []

    def of(self, index: int, calls: int) -> list[int]:
        """Return one seed for each call of a round."""
        place = index if self._fresh else 0
        while len(self._rounds) <= place:
            self._rounds.append([self._rng.getrandbits(48) for _ in range(calls)])
        return self._rounds[place]

    def following(self, calls: int) -> list[int]:
        """Return the seeds of the batch after the one that is drawn now; none if it is the last."""
        if not self._fresh:
            return self.of(0, calls)
        self._taken += 1
        is_last = self._taken >= self._batches
        return [] if is_last else self.of(self._taken // self._arms, calls)


class RoundArm:
    """An arm of rounds on one case: each batch has the values of its round."""

    def __init__(self, name: str, rivalry: Rivalry, case: int) -> None:
        self.name = name
        self._opened, self._device_clock = rivalry.opened, rivalry.device_clock
        self._case = case
        self._seeds: RoundSeeds | None = None
        self._batch = 0

    def begin(self, seeds: RoundSeeds) -> None:
        """Begin rounds, warm or timed, on values that the other arms take too."""
        self._seeds, self._batch = seeds, 0

    @contextlib.contextmanager
    def _drawn(self, calls: int) -> Iterator[DrawnBatch]:
        """Draw the next batch, and begin to draw the one after it."""
        seeds = self._seeds.of(self._batch, calls) if self._seeds is not None else ()
        with self._opened.draw(self._case, calls, writable_inputs=False, seeds=seeds) as batch:
            if self._seeds is not None and (following := self._seeds.following(calls)):
                self._opened.draw_ahead(self._case, calls, seeds=following)
            yield batch


class RivalArm(RoundArm):
    """A rival, driven in the same way as a candidate."""

    def __init__(
        self, name: str, process: RivalProcess, rivalry: Rivalry, case: int, outputs: OutputMode
    ) -> None:
        super().__init__(name, rivalry, case)
        self.process = process
        self.outputs = outputs
        self.waited_s = self.ran_s = 0.0
        """Seconds in which its first thread waited for a core, and of its rounds as a whole."""
        self.rest_s = self.load_s = 0.0
        """Right before each batch a GPU rests for so long, and then is kept busy."""

    def begin(self, seeds: RoundSeeds) -> None:
        super().begin(seeds)
        self.waited_s = self.ran_s = 0.0

    def run(self, iterations: int) -> Timing:
        """Time one batch of calls while the reference worker is stopped."""
        with self._drawn(iterations) as batch:
            self._batch += 1
            self.process.resume()
            self.process.prepare(batch.layout, self.outputs)
            time.sleep(self.rest_s)
            self._opened.flush(load_s=self.load_s)
            spots = None
            if batch.read is not None:  # as for a candidate
                spots = OutputSpots(batch.layout, batch.memories, batch.read)
            with self._opened.reference_rests():
                waited_s = families.waited_s(self.process.pid)
                timing = self.process.go(batch.memories, spots)
            self.waited_s += families.waited_s(self.process.pid) - waited_s
            self.ran_s += timing.wall_time_s
        times = timing.wall_time_s, self.process.device_s
        self._device_clock.note(self._case, self.name, *times, trusted=True)
        return timing


class CandidateArm(RoundArm):
    """The kernel in its sandbox. The judge compares secret calls of secret batches."""

    def __init__(
        self,
        candidate: CandidateProcess,
        rivalry: Rivalry,
        case: int,
        watch: Watch | None = None,
    ) -> None:
        super().__init__(CANDIDATE, rivalry, case)
        self._candidate = candidate
        self._watch = watch
        self._watched: Set[int] = frozenset()
        self._probes: Mapping[int, int] = {}
        self._are_handed = False
        self.batch_s = math.inf  # Seconds of the shortest batch
        self.checked = 0  # Calls that were compared, timed or of probes
        self.order_looks = 0  # Moments at which the judge saw how far the calls of a batch had come
        self._sampled: Mapping[int, int] = {}
        self._due: tuple[DrawnBatch, list[int], list[int]] | None = None
        """A batch, its codes, and the calls to compare at the end of the round."""
        self._held = contextlib.ExitStack()  # Holds that batch

    def sample(self, calls: Mapping[int, int]) -> None:
        """Compare this many calls of these batches, counted from here, in secret."""
        self._sampled = calls

    def watch_before(self, batches: Set[int]) -> None:
        """Before each of these batches, counted as in `sample`, sample one more."""
        self._watched = batches

    def probe_before(self, batches: Mapping[int, int], *, handed: bool) -> None:
        """Before each of these batches run a probe, which looks like any other batch.

        Its calls have the values of the case's variations (`Problem.varied`), if there are any, and
        this many of them are compared. If it is `handed`, they share their tensors.
        """
        self._probes, self._are_handed = batches, handed

    def run(self, iterations: int) -> Timing:
        """Time one batch of the kernel's calls while the reference worker is stopped."""
        if self._batch in self._watched:
            self.be_watched(iterations)
        if self._batch in self._probes:
            compared = self._probes[self._batch]
            self._be_probed(iterations, compared, handed=self._are_handed)
        with contextlib.ExitStack() as held:
            batch = held.enter_context(self._drawn(iterations))
            wall_time_s, cpu_time_s, codes = self._go(batch, iterations)
            if any(codes):
                raise fault("wrong", f"right before it was timed, then it returned {codes}")
            if self._batch in self._sampled:
                count = min(self._sampled[self._batch], iterations)
                calls = self._opened.rng.sample(range(iterations), count)  # the answers are in
                self._due, self._held = (batch, codes, calls), held.pop_all()
        self._device_clock.note(self._case, self.name, wall_time_s, self._candidate.device_s)
        self._batch += 1
        self.batch_s = min(self.batch_s, wall_time_s)
        return Timing(wall_time_s=wall_time_s, cpu_time_s=cpu_time_s)

    def check_due(self) -> None:
        """Compare the calls that were drawn from this round's batch, at the end of the round.

        The comparison fills the caches of both cores. Right after the batch it would slow down the
        next arm, which is never the candidate. At the end of a round the next arm is random.
        """
        due, self._due = self._due, None
        with self._held:
            if due is not None:
                self._check(*due)

    def close(self) -> None:
        """Give back the batch of a round that did not end."""
        self._due = None
        self._held.close()

    def be_watched(self, iterations: int) -> None:
        """Run an untimed batch and sample whose code its threads run."""
        with self._opened.draw(self._case, iterations, writable_inputs=False) as batch:
            try:
                self._go(batch, iterations, watch=self._watch)
            except Unseen as error:
                why = f"whose code works was not seen: {error}"
                raise fault("unmeasured", why) from error

    def watch_until_enough(self, calls: int, watch: Watch) -> None:
        """Sample more batches, until there are enough samples or patience ends."""
        began, batches = time.perf_counter(), 0
        while not watch.plenty:
            spent_s = time.perf_counter() - began
            if spent_s > (LOOKING_S if watch.enough else PATIENCE_S) and (
                watch.enough or batches >= PATIENT_BATCHES
            ):
                return
            self.be_watched(calls)
            batches += 1

    def probe_until_seen(self, calls: int, least: int) -> None:
        """Run more probes, until a compiled kernel's order of calls was seen at enough moments."""
        began, batches = time.perf_counter(), 0
        while self.order_looks < least and (
            time.perf_counter() - began < PROBING_S or batches < PATIENT_BATCHES
        ):
            self._be_probed(calls, 1)
            batches += 1

    def _be_probed(self, iterations: int, compared: int, *, handed: bool = False) -> None:
        """Run an untimed batch: compare some calls, and see that all were made in order.

        If it is a `handed` one, all calls get the same tensors, refilled: a kernel cannot remember
        its last answer by them once it is timed, nor run ahead, as the next values are not there.
        """
        kinds, rng = self._opened.variations(self._case), self._opened.rng
        first = rng.randrange(kinds) if kinds else 0
        values = [(first + call) % kinds for call in range(iterations)] if kinds else []
        several, compiled = iterations > 1, not self._candidate.returns_outputs
        with self._opened.draw(
            self._case,
            iterations,
            writable_inputs=False,
            values=values,
            handing=[Handing.UNTOLD] * iterations if handed and several else (),
        ) as batch:
            ordered = several and compiled and not handed
            order = CallOrder(batch.layout, batch.memories) if ordered else None
            try:
                codes = self._go(batch, iterations, order=order)[2]
            except Unseen as error:
                why = f"the order of its calls was not seen: {error}"
                raise fault("unmeasured", why) from error
            # Neighbours have different kinds of values; the first call has no answer before it.
            start = rng.randrange(int(handed and several), iterations)
            calls = range(start, start + min(compared, iterations))
            self._check(batch, codes, [call % iterations for call in calls])
            if order is not None:
                together = order.conclude()
                self.order_looks += order.looked
                if together:
                    raise fault("cheating", f"it computes several calls at once: {together}")

    def _go(
        self,
        batch: DrawnBatch,
        iterations: int,
        *,
        watch: Watch | None = None,
        order: CallOrder | None = None,
    ) -> tuple[float, float, list[int]]:
        limit_s = self._opened.cases[self._case].limit_s(iterations)
        family = WatchedFamily(self._candidate.pid, wrapped=not self._candidate.sandbox.kept)
        meanwhile = None
        if watch is not None:
            meanwhile = watch.looks(family, self.batch_s, iterations)
        if order is not None and self.batch_s < math.inf:
            meanwhile = order.looks(family, self.batch_s)
        return run_batch(self._candidate, self._opened, batch, limit_s, meanwhile)

    def _check(self, batch: DrawnBatch, codes: list[int], calls: Sequence[int]) -> None:
        asked = {call: codes[call] for call in calls}
        answers = check_calls(self._candidate, self._opened, batch, asked)
        for call, answer in zip(asked, answers, strict=True):
            if any(codes) or not answer.passed:
                what = f" with {batch.values[call]}" if batch.values else ""
                why = f"right before it was timed, wrong while it was{what}: {answer.detail}"
                raise fault("wrong", why)
            self.checked += 1


def run_batch(
    candidate: CandidateProcess,
    opened: OpenProblem,
    batch: DrawnBatch,
    limit_s: float,
    meanwhile: Callable[[Callable[[], bool]], None] | None = None,
) -> tuple[float, float, list[int]]:
    """Time a batch of the kernel's calls while the reference worker is stopped.

    Return wall and CPU seconds, and the codes. `meanwhile` is called once the batch has begun.
    """
    candidate.resume()
    candidate.prepare(batch.layout, batch.memories, batch.read)
    opened.flush()
    with opened.reference_rests():
        calls = len(batch.layout.calls)
        return candidate.go(batch.memories, calls, limit_s=limit_s, meanwhile=meanwhile)


@contextlib.contextmanager
def rivals(process: CandidateProcess, rivalry: Rivalry, case: int) -> Iterator[Sequence[RivalArm]]:
    """Yield the rivals: the reference, its twin, torch.compile, the reference on one thread.

    torch.compile and one thread only if they are timed. On cores each is a new process and ends
    with this context. torch.compile's lasts for the verdict, and on a GPU all of them do.
    """
    opened, processes = rivalry.opened, rivalry.rivals
    names = [REFERENCE, TWIN, *([COMPILED] if COMPILED in processes.lasting else [])]
    outputs = output_mode(process, opened)
    threads, on_gpu = opened.reference.threads, opened.accelerator is not None
    is_short = opened.cases[case].time_s < SHORT_CALL_S
    if threads > 1 and is_short and not on_gpu and case not in rivalry.alone:
        names.append(ONE_THREAD)
    with contextlib.ExitStack() as stack:
        started = {}
        for name in names:
            if name not in processes.lasting:
                rival = processes.begin(threads=1 if name == ONE_THREAD else threads)
                started[name] = rival
                if not on_gpu:
                    stack.callback(processes.end_later, rival)
        for rival in started.values():
            rival.await_load()
        processes.end_all_that_end()
        found = processes.lasting | started
        if on_gpu:
            processes.lasting = found
        yield [RivalArm(name, found[name], rivalry, case, outputs) for name in names]


def output_mode(process: CandidateProcess, opened: OpenProblem) -> OutputMode:
    """Return what becomes of the reference's outputs beside this candidate."""
    if not process.returns_outputs:
        return "mapped"
    return "copied" if opened.accelerator is not None else "kept"


def warm(arm: Arm, calls: int) -> float:
    """Run an arm until its heap holds what a call needs; return the seconds of the last batch.

    A long first batch may have imported or compiled something, so another follows it.
    """
    spent_s, took_s, batches = 0.0, 0.0, 0
    while batches < math.ceil(WARM_CALLS / calls) or (batches == 1 and spent_s > WARM_S):
        if batches > 1 and spent_s > WARM_S:
            break
        began = time.perf_counter()
        arm.run(calls)
        took_s = time.perf_counter() - began
        spent_s += took_s
        batches += 1
    return took_s
