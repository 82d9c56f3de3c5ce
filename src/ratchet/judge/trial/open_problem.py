"""A problem that the reference worker holds open for a verdict, and the batches drawn from it.

Only the judge's clock decides. A kernel is `unmeasured` if it and a GPU's own clock disagree by
more than the round trip between the processes explains, or if the kernel would win against a
reference that its own process slowed down: work on a GPU goes on while its process is stopped.
"""

from __future__ import annotations

import contextlib
import logging
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar

from ratchet.base.errors import JudgeError
from ratchet.base.process import Clock
from ratchet.base.process.channel import Message, close_descriptors
from ratchet.base.process.child import ChildFailure
from ratchet.judge.integrity.outputs import Read, Spot
from ratchet.judge.kernels.kernel import WITH_TORCH, Kernel
from ratchet.judge.problems.problem import Problem
from ratchet.judge.sandbox.accelerator import Accelerator
from ratchet.judge.sandbox.shared_memory import BatchLayout, Handing
from ratchet.judge.trial.reference import (
    DeviceMemoryRefused,
    ReferenceFault,
    ReferenceProcess,
    Rivals,
)
from ratchet.judge.verdict import EmulatedCase, Evidence, TimedSample, fault

LOG = logging.getLogger(__name__)
T = TypeVar("T")

MOST_ROUND_TRIP: Final = 1.0
"""A round trip up to this many times a batch's work is subtracted from its time."""
ROUND_TRIP_FACTOR: Final = 2.0  # A candidate's round trip may take this many times the reference's
ROUND_TRIP_FLOOR_S: Final = 0.0002
SHARE: Final = 0.05  # And this share of its time in addition: a process may wait for a core
IMPOSSIBLE: Final = 1.02
"""A device cannot work longer than the judge waits. Two clocks differ by less than this."""
SAVABLE: Final = 0.5
"""A process could save at most this share of its round trip: the driver and judge take the rest."""
DISTURBED: Final = 1.15
"""The reference may be this much slower beside a candidate than alone, by clocks and heat."""


class DeviceClock:
    """The times of each batch by both clocks, by case and arm."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[int, str], list[tuple[float, float | None]]] = {}
        self._round_trips: dict[int, list[float]] = {}  # Round trips of trusted batches, by case
        self._launch: dict[int, list[tuple[float, float]]] = {}
        """The trusted batches of this launch."""

    def begin(self, case: int) -> None:
        self._launch[case] = []

    def note(
        self,
        case: int,
        arm: str,
        wall_s: float,
        device_s: float | None,
        *,
        trusted: bool = False,
    ) -> None:
        """Note one batch; `device_s` is None without such a clock, or without a claim."""
        self._pairs.setdefault((case, arm), []).append((wall_s, device_s))
        if trusted and device_s is not None:
            self._round_trips.setdefault(case, []).append(wall_s - device_s)
            self._launch.setdefault(case, []).append((wall_s, device_s))

    def round_trip_s(self, case: int) -> float:
        """Return the round trip of a trusted batch of this launch; 0 without such a clock.

        It consists of mapping, messages and fences. A candidate's takes as long, so it is
        subtracted from both times. It is a median, because some batches wait for a core. A round
        trip longer than the work scatters too much to be subtracted: then it stays in both times.
        """
        pairs = self._launch.get(case)
        if not pairs:
            return 0.0
        round_trip_s = statistics.median(wall_s - device_s for wall_s, device_s in pairs)
        work_s = statistics.median(device_s for _, device_s in pairs)
        return round_trip_s if 0 < round_trip_s <= MOST_ROUND_TRIP * work_s else 0.0

    def exceeds_round_trip(self, case: int, name: str, saved_s: float) -> tuple[Evidence, str]:
        """Check that a win is more than a shorter round trip; `saved_s` is the gain per batch."""
        least_s = SAVABLE * max(0.0, statistics.median(self._round_trips.get(case, [0.0])))
        could = f"a process could save {least_s:.3g} s of its round trip"
        detail = f"a batch saves {saved_s:.3g} s, and {could}"
        found = Evidence(check=f"gain on {name}", passed=saved_s > least_s, detail=detail)
        return found, "" if found.passed else f"its gain may be a shorter round trip: {detail}"

    def compare(self, case: int, name: str, *, candidate: str) -> tuple[Evidence, str]:
        """Return the evidence on a case, and why its time is not believed, or ""."""
        pairs = self._pairs.get((case, candidate), [])
        round_trips = self._round_trips.get(case, [])
        named = [(wall_s, device_s) for wall_s, device_s in pairs if device_s is not None]
        if not round_trips or not named or len(named) < len(pairs):
            return _evidence(name, "not every batch has a time by the device's own clock")
        round_trip_s = max(0.0, statistics.median(round_trips))
        wall_s = statistics.median(wall for wall, _ in named)
        gap_s = statistics.median(wall - device for wall, device in named)
        longest = max(device / wall for wall, device in named)
        detail = (
            f"{wall_s:.3g} s a batch by the judge's clock, {wall_s - gap_s:.3g} s by the device's; "
            f"the round trip takes the reference {round_trip_s:.3g} s"
        )
        if longest > IMPOSSIBLE:
            return _evidence(name, f"the device would have worked longer than it took: {detail}")
        most_s = max(ROUND_TRIP_FACTOR * round_trip_s, round_trip_s + ROUND_TRIP_FLOOR_S)
        if gap_s > most_s + SHARE * wall_s:
            return _evidence(name, f"they disagree: {detail}")
        return Evidence(check=f"device clock on {name}", passed=True, detail=detail), ""


def _evidence(name: str, detail: str) -> tuple[Evidence, str]:
    found = Evidence(check=f"device clock on {name}", passed=False, detail=detail)
    return found, f"the judge's clock and the device's do not agree on {name}: {detail}"


def undisturbed(
    name: str, *, alone: Sequence[float], beside_s: float, candidate_s: float, least: float
) -> tuple[Evidence, str]:
    """Check that the reference was as fast beside the candidate as alone; return why not, or "".

    All in seconds per call: `alone` for each batch without a candidate, medians otherwise. A GPU's
    clock falls when it rests or gets hot, and a candidate works or pauses between the batches as it
    likes. So the candidate must be `least` times as fast as the reference alone, too.
    """
    alone_s = statistics.median(alone)
    detail = (
        f"the reference takes {alone_s:.3g} s a call alone and {beside_s:.3g} s beside the "
        f"candidate, which takes {candidate_s:.3g} s"
    )
    slowed = beside_s > DISTURBED * alone_s
    only_so = candidate_s < beside_s and least * candidate_s >= alone_s
    found = Evidence(
        check=f"device at rest on {name}", passed=not slowed and not only_so, detail=detail
    )
    if slowed:
        what = "something kept the device busy, or its clock low, while the reference ran"
        return found, f"{what}: {detail}"
    if only_so:
        what = "faster than the reference beside it, but not clearly than it is alone"
        return found, f"{what} ({least:g} times): {detail}"
    return found, ""


SLOWEST_FACTOR, SLOWEST_FLOOR_S = 100.0, 10.0
"""The judge gives up a kernel that is this many times slower than the reference, and so long."""
TORCH_BYTES = 32 << 30  # Address space that torch takes
MARGIN_BYTES = 4 << 30  # Address space beyond the tensors: the interpreter, threads' stacks, OpenMP
SHOWN_INPUTS = 4
MOST_KEPT_BYTES = 8 << 20
"""A batch of at most this size is given back with the next draw, which saves a message."""
COMPILE_LIMIT_S, COMPILE_SHARE, COMPILE_LEAST_S = 60.0, 0.5, 5.0
"""torch.compile of the reference may take this long, this share of the time left, and at least the
last of these."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseFacts:
    """The reference worker's measurements of one case."""

    name: str
    time_s: float  # One warm call of the reference, by the worker's own clock: for planning only
    flops: float  # Operations of one call; 0 if nothing is timed
    bytes: float  # Bytes of inputs and outputs: the least that can be moved
    is_same_in_modes: bool = False
    """True if a model's answer on the smallest case is the same in training and evaluation."""

    def limit_s(self, calls: int) -> float:
        """Return the seconds that a candidate may be at work on this many calls."""
        return SLOWEST_FLOOR_S + SLOWEST_FACTOR * calls * self.time_s


@dataclass(frozen=True, kw_only=True, slots=True)
class CallCheck:
    """The reference worker's findings in memory after one call of a candidate."""

    changed_input: int | None
    written: bool  # True if the call wrote to its outputs
    passed: bool
    detail: str
    off: float = 0.0  # The error in norm, relative to the answer's own, on a grown case
    overflows: bool = False
    """True if the reference overflows on these values, so nothing was compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawnBatch:
    """A batch in shared memory, as the judge holds it: places and descriptors, no answers."""

    number: int
    case: int
    layout: BatchLayout
    memories: list[int]
    values: Sequence[str] = ()
    """The case whose values each call has, if they are not the case's own."""
    read: Read | None = None  # Reads the outputs on a GPU, through the reference worker
    alike: Sequence[int] = ()
    """Calls whose inputs are those of an earlier one, but for a few elements."""


@dataclass(slots=True)
class Record:
    """All that a trial finds, in order. The verdict keeps it, however the trial ends."""

    evidence: list[Evidence] = field(default_factory=list)
    samples: list[TimedSample] = field(default_factory=list)
    emulated: list[EmulatedCase] = field(default_factory=list)

    def note(self, check: str, detail: str, *, passed: bool | None = True) -> None:
        self.evidence.append(Evidence(check=check, passed=passed, detail=detail))


class OpenProblem:
    """A problem that the reference worker holds open, and the secrets of this verdict."""

    def __init__(
        self,
        problem: Problem,
        reference: ReferenceProcess,
        cases: Sequence[CaseFacts],
        rng: random.Random,
        clock: Clock,
        accelerator: Accelerator | None = None,
        *,
        is_emulated: bool = False,
    ) -> None:
        self.problem = problem
        self.accelerator = accelerator
        self.reference = reference
        self.cases = list(cases)
        self.rng = rng
        self.clock = clock
        self.check_time_s = dict.fromkeys(range(len(self.cases)), 0.0)
        """Seconds that the last comparison of each case took."""
        self._variations = {
            index: problem.varied(case) for index, case in enumerate(problem.cases) if case.timed
        }
        self._is_emulated = is_emulated
        self._flushed: Message = {}
        self._batches = 0
        self._ahead: tuple[Message, int] | None = None
        """The order that was given ahead, and the number of its batch."""
        self._in_use: list[int] = []
        """The batches that are held here. The worker gives the others back with the next draw."""
        self._batch_part = 1
        """On a GPU a batch has this part of its calls: memory was refused for more."""

    def has_other_sizes(self, index: int) -> bool:
        """Return whether a case has sizes that the file of a KernelBench problem has not."""
        given = [one.shape for one in self.problem.cases[0].inputs]
        found = [one.shape for one in self.problem.cases[index].inputs]
        return self.problem.model is not None and found != given

    @property
    def is_shrunk(self) -> bool:
        """True if the judge chose smaller sizes than a KernelBench problem's file has."""
        return self.problem.model is not None and bool(self.problem.model.shrunk)

    def shown(self, index: int) -> str:
        """Return a case's name with its inputs' shapes and dtypes, without a model's state."""
        case, form = self.problem.cases[index], self.problem.model
        specs = case.inputs[0 if form is None else len(form.state) :]
        words = [f"{'x'.join(map(str, one.shape)) or 'scalar'} {one.dtype}" for one in specs]
        more = ["..."] if len(words) > SHOWN_INPUTS else []
        return f"{case.name} ({', '.join([*words[:SHOWN_INPUTS], *more])})"

    def limit_s(self, case: int, calls: int) -> float:
        """Return the seconds that a candidate may be at work on this many calls, untimed.

        An emulated kernel is not compared with the reference's speed: the verdict's limit holds.
        """
        if self._is_emulated:
            return self.clock.step_limit_s
        return self.cases[case].limit_s(calls)

    @property
    def timed(self) -> list[int]:
        return [index for index, case in enumerate(self.problem.cases) if case.timed]

    @property
    def is_same_in_modes(self) -> bool:
        """True if a model answers alike in training and in evaluation mode."""
        return all(case.is_same_in_modes for case in self.cases)

    def variations(self, case: int) -> int:
        """Return how many kinds of values a timed case has besides its own."""
        return len(self._variations.get(case, ()))

    def unchecked(self, case: int) -> list[int]:
        """Return the kinds of values that no hidden case has at these sizes."""
        hidden = [one.inputs for one in self.problem.cases if one.hidden]
        found = self._variations.get(case, ())
        return [kind for kind, varied in enumerate(found) if varied.inputs not in hidden]

    def memory_bytes(self, kernel: Kernel) -> int:
        """Return the address space for the largest case, copies of it, and torch if needed."""
        largest = max(case.bytes for case in self.cases)
        needed = TORCH_BYTES if kernel.language in WITH_TORCH else 1 << 30
        return int(8 * largest) + needed + MARGIN_BYTES

    def ask(self, **message: object) -> Message:
        """Ask the reference worker; raises ReferenceFault if it reports an error."""
        return self.reference.ask(limit_s=self.clock.reference_limit_s, **message)

    @contextlib.contextmanager
    def draw(
        self,
        case: int,
        calls: int,
        *,
        writable_inputs: bool,
        distinct: int | None = None,
        values: Sequence[int] = (),
        seeds: Sequence[int] = (),
        places: int | None = None,
        alike: Sequence[tuple[int, int]] = (),
        handing: Sequence[Handing] = (),
    ) -> Iterator[DrawnBatch]:
        """Draw fresh values for some calls of a case; they are given back at the end.

        `distinct` is the number of draws, which the calls take in turn; by default one per call.
        `values` names the variation (`Problem.varied`) from which each call's values are drawn.
        `seeds` are those of a round: all of its arms compute on the same values, each in memory of
        its own. Batches of a case with the same `places` have the same layout, and on cores their
        tensors lie at the same addresses. `alike` has pairs of a call and an earlier one, whose
        inputs it repeats but for a few elements, where the answer shows such a change. `handing`
        says how the candidate gets each call's inputs; without, each has its own.
        """
        wanted: dict[str, Any] = dict(
            case=case,
            calls=calls,
            writable_inputs=writable_inputs,
            distinct=distinct,
            values=list(values),
            seeds=list(seeds),
            places=places,
            alike=list(alike),
        )
        limit_s = self.clock.reference_limit_s
        if self._ahead is not None and self._ahead[0] == wanted:
            number, self._ahead = self._ahead[1], None
            reply, memories = self.reference.take_ahead(limit_s=limit_s)
        else:
            message = self._order(**wanted)
            number = self._batches
            reply, memories = self.reference.ask_for_memory(limit_s=limit_s, **message)
            self._in_use.append(number)
        is_large = self._is_large(case, calls)
        try:
            yield DrawnBatch(
                number=number,
                case=case,
                layout=replace(BatchLayout.of(reply["layout"]), handing=handing),
                memories=memories,
                values=[self._variations[case][kind].name for kind in values],
                read=partial(self._read, number) if self.accelerator else None,
                alike=reply["alike"],
            )
        finally:
            close_descriptors(memories)
            self._in_use.remove(number)
            if is_large and self.reference.alive:
                self.reference.ask(limit_s=30.0, do="release", in_use=self._in_use)

    def _order(
        self,
        *,
        calls: int,
        distinct: int | None = None,
        seeds: Sequence[int] = (),
        **more: object,
    ) -> Message:
        """Return the order for a new batch, whose number is then `_batches`."""
        drawn = seeds or [self.rng.getrandbits(48) for _ in range(min(calls, distinct or calls))]
        self._batches += 1
        return {
            "do": "draw",
            "batch": self._batches,
            "seeds": [drawn[call % len(drawn)] for call in range(calls)],
            "round": bool(seeds),
            "in_use": list(self._in_use),
            **more,
        }

    def _is_large(self, case: int, calls: int) -> bool:
        return calls * self.cases[case].bytes > MOST_KEPT_BYTES

    def draw_ahead(
        self,
        case: int,
        calls: int,
        *,
        seeds: Sequence[int] = (),
        places: int | None = None,
        alike: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Begin the batch that `draw` will be asked for next with these options.

        The reference worker draws while the batch before is prepared, and stands still while
        anything is timed. A large batch is not drawn ahead, nor is one on a GPU, which would draw
        beside what it times.
        """
        if self.accelerator is not None or self._is_large(case, calls):
            return
        if self._ahead is not None:
            self._in_use.remove(self._ahead[1])
        wanted: dict[str, Any] = dict(
            case=case,
            calls=calls,
            writable_inputs=False,
            distinct=None,
            values=[],
            seeds=list(seeds),
            places=places,
            alike=list(alike),
        )
        self.reference.ask_ahead(**self._order(**wanted))
        self._ahead = wanted, self._batches
        self._in_use.append(self._batches)

    def _read(self, number: int, spots: Sequence[Spot]) -> list[bytes]:
        """Return the bytes at some spots of a batch in a GPU's memory."""
        try:
            reply = self.ask(do="places", batch=number, spots=list(spots))
        except ChildFailure as error:  # it is not the candidate's process that failed
            raise JudgeError(f"the reference worker {error}") from error
        return [bytes.fromhex(one) for one in reply["found"]]

    def flush(self, *, load_s: float = 0.0) -> None:
        """Empty a GPU's caches before a batch, and keep it busy for so long.

        On cores each batch's memory is new to the caches.
        """
        if self.accelerator is not None:
            self._flushed = self.ask(do="flush", load_s=load_s)

    def flushes(self) -> str:
        """Return what was done to a GPU's caches before each batch."""
        size = f"{self._flushed.get('flushed_bytes', 0)} bytes written before every batch"
        reset = "reset" if self._flushed.get("persisting_reset") else "not known to this driver"
        return f"{size}; persisting lines {reset}"

    @contextlib.contextmanager
    def reference_rests(self) -> Iterator[None]:
        """Stop the reference worker while the candidate runs.

        On a GPU it goes on: it must read the outputs at once, and only waits until then.
        """
        if self.accelerator is not None:
            yield
            return
        self.reference.pause()
        try:
            yield
        finally:
            self.reference.resume()

    @property
    def compile_limit_s(self) -> float:
        """Seconds that torch.compile of the reference may take."""
        return max(COMPILE_LEAST_S, min(COMPILE_LIMIT_S, COMPILE_SHARE * self.clock.left_s))

    def check(self, batch: DrawnBatch, call: int, code: int, *, again: bool = False) -> CallCheck:
        """Compare the outputs of a call that returned `code`; the candidate must be stopped."""
        return self.check_together(batch, [(call, code)], again=again)[0]

    def check_together(
        self, batch: DrawnBatch, calls: Sequence[tuple[int, int]], *, again: bool = False
    ) -> list[CallCheck]:
        """Compare several calls, given with their codes, in one message: `check`."""
        began = time.perf_counter()
        reply = self.ask(do="check", batch=batch.number, calls=list(calls), again=again)
        self.check_time_s[batch.case] = (time.perf_counter() - began) / len(calls)
        return [CallCheck(**one) for one in reply["found"]]

    def with_fewer_calls(self, wanted: int, run: Callable[[int], T], *, least: int = 1) -> T:
        """Run with the wanted calls of a batch, and again with half as long as memory is refused.

        Others may hold a GPU's memory too. Later batches are as small. Raises DeviceMemoryRefused
        if memory is refused for the `least`: then the environment is at fault.
        """
        while True:
            calls = max(least, wanted // self._batch_part)
            try:
                return run(calls)
            except DeviceMemoryRefused as error:
                if calls <= least or self.accelerator is None:
                    raise
                LOG.debug("half of %d calls, because %s", calls, error)
            self._batch_part *= 2

    def told_of_fewer(self, wanted: int) -> str:
        """Return what to tell of smaller batches, or "" if they have the wanted calls."""
        calls = max(1, wanted // self._batch_part)
        if calls == wanted:
            return ""
        named = "1 call" if calls == 1 else f"{calls} calls"
        return f"device memory was refused: batches of {named} instead of {wanted}"


@dataclass(kw_only=True)
class Rivalry:
    """The kernel against the reference, while they are timed."""

    opened: OpenProblem
    rivals: Rivals
    record: Record
    device_clock: DeviceClock = field(default_factory=DeviceClock)
    alone: set[int] = field(default_factory=set)
    """The cases on which the reference works in one thread, however many it may use."""
    least_calls: int = 1  # The fewest calls of a timed batch, unless they are too large or too slow
    among: int = 1  # Verdicts that share one chance of a false answer


def described_cases(
    problem: Problem,
    reference: ReferenceProcess,
    *,
    threads: int,
    seed: int,
    limit_s: float,
    accelerator: Accelerator | None = None,
    kind: type[CaseFacts] = CaseFacts,
    is_timed: bool = True,
    record: Record,
) -> list[CaseFacts]:
    """Have the reference worker open a problem; return what it measured of each case, as `kind`.

    The worker judges the problem first: CandidateFault if it refuses the problem. It counts no
    operations unless a kernel `is_timed`.
    """
    try:
        reply = reference.ask(
            limit_s=limit_s,
            do="open",
            problem=problem.as_json(),
            threads=threads,
            seed=seed,
            device=accelerator.as_json() if accelerator else None,
            is_timed=is_timed,
        )
    except ReferenceFault as error:
        raise fault("refused", f"the problem cannot be judged: {error}") from error
    trivial = ", ".join(reply["gate"])
    detail = f"passes though trivial: {trivial}" if trivial else ""
    record.note("problem gate", detail, passed=not trivial)
    if trivial:
        raise fault("refused", f"the problem accepts {trivial}: tighten it")
    measured = zip(problem.cases, reply["cases"], strict=True)
    return [kind(name=case.name, **one) for case, one in measured]
