"""The judge's answer: a verdict with its evidence and its raw samples, as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from ratchet.base import Json, drawn_by
from ratchet.base.measure import Ratio
from ratchet.base.show.words import common_unit

Status = Literal[
    "proven", "correct", "wrong", "cheating", "crashed", "timed_out", "refused", "unmeasured"
]
ScreeningStatus = Literal["screened", "invalid", Status]


class _Frozen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Evidence(_Frozen, frozen=True, kw_only=True):
    """One check and its result."""

    check: str
    passed: bool | None  # None if it does not apply: the kernel declined the case, for example
    detail: str = ""


class TimedSample(_Frozen, frozen=True, kw_only=True):
    """One raw time of one arm: `measure.samples.Sample` with its case."""

    case: str
    arm: str
    launch: int
    round: int
    position: int
    iterations: int
    wall_time_s: float
    cpu_time_s: float  # Reported by the arm's own process: a claim, if it is a candidate


class Speedups(_Frozen, frozen=True, kw_only=True):
    """Speed-ups by rival; None if not measured."""

    vs_reference: Ratio | None = None
    vs_compile: Ratio | None = None


class EmulatedLine(_Frozen, frozen=True, kw_only=True):
    """Exact counts of one source line of a kernel in one call."""

    place: str  # `file:line`, or "" for instructions without one
    instructions: int
    cycles: int  # Cycles of the vector and matrix instructions in the SIMD
    lanes_off: float
    lines_64: int  # Lines of 64 bytes that its accesses needed, counted per access
    lds_conflicts: int
    assembly: list[tuple[str, int]] = []
    """Its instructions in order, with their executions by waves; only the hottest of many."""


class EmulatedTimeline(_Frozen, frozen=True, kw_only=True):
    """The source line that each wave of the first workgroup ran, in order of issue, not time."""

    cycles: int  # Counted until the last wave ends; waves leave a barrier together
    slot: int  # Cycles of a slot, which shows the line with most of them
    barriers: list[int]  # Their places, in cycles
    places: list[str]
    waves: list[list[tuple[int, int, int]]]
    """For each wave: the index of a place, its first slot and one past its last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedTime:
    """A time that the emulator's clock predicted, with its interval; never measured."""

    device: str
    time_s: float
    low_s: float
    high_s: float

    @property
    def words(self) -> str:
        """The time with its interval in brackets, in one unit."""
        unit = common_unit([self.time_s])
        interval = f"{unit.show(self.low_s)} to {unit.show(self.high_s)}"
        return f"{unit.show(self.time_s)} {unit.name} ({interval})"


class EmulatedKernel(_Frozen, frozen=True, kw_only=True):
    """Exact counts of one kernel's launches in one call, taken by the emulator."""

    name: str
    launches: int
    programs: int
    waves: int
    instructions: int  # All instructions that waves executed
    vector_instructions: int  # Without the matrix instructions
    scalar_instructions: int
    matrix_instructions: dict[str, int]
    lanes_off: float  # Share of lanes that were off, over all instructions
    accessed_bytes: int  # Bytes of tensors that lanes read or wrote
    touched_bytes: int  # Bytes of tensors in whole lines of 64 bytes, counted once per launch
    lines_64: int  # Lines of 64 bytes that accesses needed, counted per access
    lds_bytes: int
    lds_conflicts: int  # Cycles added by accesses to the same bank of the LDS
    predicted: PredictedTime | None = None  # Of all launches
    lines: list[EmulatedLine] = []  # The lines with most of the work, in descending order
    vgprs: int | None = None  # Vector registers of a lane, including accumulation registers
    workgroup_waves: int | None = None
    workgroup_lds_bytes: int | None = None
    occupancy_waves: int | None = None  # Most waves of a SIMD; `max_waves` if nothing limits them
    max_waves: int | None = None
    occupancy_limit: str = ""  # `registers`, `lds`, `workgroups` or `none`
    timeline: EmulatedTimeline | None = None


class EmulatedBound(_Frozen, frozen=True, kw_only=True):
    """A lower bound on the time of one call on a device, estimated and never measured."""

    device: str
    time_s: float
    memory_s: float
    matrix_s: float
    vector_s: float
    lds_s: float


class EmulatedCase(_Frozen, frozen=True, kw_only=True):
    """The emulator's counts of one call, and a bound from them (docs/reference/emulator.md)."""

    case: str
    target: str
    kernels: list[EmulatedKernel]
    bounds: list[EmulatedBound]
    predicted: PredictedTime | None = None  # On the first device of the bounds
    reference: list[EmulatedKernel] = []
    """Inductor's Triton kernels of the reference for the same target, emulated too."""
    reference_bounds: list[EmulatedBound] = []
    estimated_speedup: float | None = None
    """The reference's bound over this one, on the first device: of lower bounds, not timed."""
    no_estimate: str = ""  # Why there is no `estimated_speedup`, if one was wanted


class Verdict(_Frozen, frozen=True, kw_only=True):
    """The judge's answer on one kernel for one problem.

    proven: right, and faster than the reference beyond the A/A floor. correct: right, but not
    faster, undecided, or not timed. wrong: an output is wrong. cheating: it tried to fool the
    judge, with evidence. crashed, timed_out: its process died or was too slow. refused: the problem
    or the source is bad. unmeasured: the judge could not do its work, or doubts what it saw, and
    says why.
    """

    status: Status
    reason: str
    evidence: list[Evidence] = []
    speedup: Speedups = Speedups()
    not_timed: str = ""
    """Why the speed of a `correct` kernel is unknown: it was not timed, or the machine was too
    noisy. Another verdict may tell."""
    static: dict[str, Json] | None = None
    """The static profile of a Triton or HIP kernel for AMD targets, from `inspect_kernel`."""
    emulated: list[EmulatedCase] = []
    """One for each visible case, if the kernel's machine code was emulated."""
    environment: dict[str, Json] = {}
    isolation: str
    kernel_hash: str
    problem_hash: str
    samples: list[TimedSample] = []

    _repr_html_ = drawn_by("ratchet.judge.court.show:alone_report")


@dataclass(frozen=True, kw_only=True, slots=True)
class Screening:
    """A quick estimate for one kernel, from a few secret cases and a few rounds. Never a proof.

    screened: right on the cases that were drawn, and timed. invalid: an author's answer held no
    kernel, so there was nothing to screen. The other statuses are a verdict's, except that a
    screening never says `proven` or `correct`.
    """

    kernel_hash: str
    status: ScreeningStatus
    reason: str = ""
    ratio: float | None = None
    """Reference time over the kernel's time; above 1 is faster. None if it was not timed."""
    low: float | None = None
    high: float | None = None
    """Ends of the ratio's 95 % interval within this one start of the processes."""
    time_s: float | None = None  # Seconds of one call, the geometric mean over the timed cases
    against_best: float | None = None
    """Time of the best kernel so far over this kernel's time. None if there was none to compare."""
    evidence: tuple[str, ...] = ()  # The checks, one line each, for the kernel's author
    static_rank: tuple[float, ...] = ()
    """Smaller is better: the order among kernels that cannot be timed here."""

    @property
    def is_right(self) -> bool:
        """Return whether the kernel's outputs were right."""
        return self.status in ("screened", "proven", "correct")


# The answer of a trial, and the exception by which a stage gives it before the last one.


@dataclass(frozen=True, slots=True)
class Decided:
    """The answer with which a trial ends."""

    status: Status
    reason: str  # One printable line: a candidate may have chosen the words
    not_timed: str = ""  # Why the speed of a right kernel is unknown
    speedup: Speedups = field(default_factory=Speedups)

    def __post_init__(self) -> None:
        printable = "".join(c if c.isprintable() else " " for c in self.reason)
        object.__setattr__(self, "reason", " ".join(printable.split()))

    @staticmethod
    def untimed(why: str) -> Decided:
        """Return the answer on a right kernel whose speed is unknown."""
        reason = f"right on every case; its speed was not measured: {why}"
        return Decided("correct", reason, not_timed=why)


class CandidateFault(Exception):
    """A stage has the answer: a candidate failed, is wrong, or cannot be judged further."""

    def __init__(self, decided: Decided, *, raised: bool = False) -> None:
        super().__init__(decided.reason)
        self.decided = decided
        self.raised = raised
        """True if the kernel rejected its inputs, or returned other forms; its process goes on."""

    def on(self, where: str) -> CandidateFault:
        """Return it with the place where it happened."""
        named = replace(self.decided, reason=f"{where}: {self.decided.reason}")
        return CandidateFault(named, raised=self.raised)


def fault(status: Status, reason: str, *, raised: bool = False) -> CandidateFault:
    """Return the exception that ends a trial with this answer."""
    return CandidateFault(Decided(status, reason), raised=raised)
