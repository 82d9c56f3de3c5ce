"""The judge's answer: a verdict with its evidence and its raw samples, as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Status = Literal[
    "proven", "correct", "wrong", "cheating", "crashed", "timed_out", "refused", "unmeasured"
]
ScreeningStatus = Literal["screened", "invalid", Status]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Ratio(_Frozen):
    """Baseline time over new time, with its interval: above 1 is faster."""

    ratio: float
    low: float
    high: float
    confidence: float | None = None
    """Of the interval of each case: 0.983 for a kernel, whose three looks together err in at most
    5 %. None in verdicts from before it was kept."""


class Evidence(_Frozen):
    """One thing that was checked, and what came of it."""

    check: str
    passed: bool | None
    """None where it does not apply: the kernel declined the case, and torch would compute it."""
    detail: str = ""


class TimedSample(_Frozen):
    """One raw time of one arm: `measure.samples.Sample`, with the case it belongs to."""

    case: str
    arm: str
    launch: int
    round: int
    position: int
    iterations: int
    wall_time_s: float
    cpu_time_s: float
    """As the arm's own process reported it: for a candidate, a claim."""


class Speedups(_Frozen):
    """Against whom how fast; None was not measured."""

    vs_reference: Ratio | None = None
    vs_compile: Ratio | None = None


class EmulatedLine(_Frozen):
    """Exact counts of one source line of a kernel in one call."""

    place: str
    """`file:line`, or "" for instructions without one."""
    instructions: int
    cycles: int
    """Of the vector and matrix instructions, in the SIMD."""
    lanes_off: float
    lines_64: int
    """Lines of 64 bytes that its accesses needed, each counted once an access."""
    lds_conflicts: int
    assembly: list[tuple[str, int]] = []
    """Its instructions in order, and how often waves executed each; the hottest where many."""


class EmulatedTimeline(_Frozen):
    """Which source line each wave of the first workgroup ran, in order of issue: no times."""

    cycles: int
    """Counted, until the last wave ends; waves that meet at a barrier go on together."""
    slot: int
    """Cycles of a slot; the line with most of them stands for it."""
    barriers: list[int]
    """Where they are, in cycles."""
    places: list[str]
    waves: list[list[tuple[int, int, int]]]
    """Of each wave: the number of a place, the first slot and one past the last."""


class EmulatedKernel(_Frozen):
    """Exact counts of one kernel's launches in one call, taken by the emulator."""

    name: str
    launches: int
    programs: int
    waves: int
    instructions: int
    """Executed by waves, of every kind."""
    vector_instructions: int
    """Without the matrix instructions."""
    scalar_instructions: int
    matrix_instructions: dict[str, int]
    lanes_off: float
    """Share of lanes that were off, over all instructions."""
    accessed_bytes: int
    """In tensors, by every lane that read or wrote."""
    touched_bytes: int
    """In tensors, whole lines of 64 bytes, each counted once a launch."""
    lines_64: int
    """Lines of 64 bytes that accesses needed, each counted once an access."""
    lds_bytes: int
    lds_conflicts: int
    """Cycles that accesses to the same bank of the LDS add."""
    lines: list[EmulatedLine] = []
    """The lines with most of the work, the most first."""
    vgprs: int | None = None
    """Vector registers of a lane, accumulation registers among them."""
    workgroup_waves: int | None = None
    workgroup_lds_bytes: int | None = None
    occupancy_waves: int | None = None
    """Of a SIMD, at most; `max_waves` where nothing limits them."""
    max_waves: int | None = None
    occupancy_limit: str = ""
    """`registers`, `lds`, `workgroups` or `none`."""
    timeline: EmulatedTimeline | None = None


class EmulatedBound(_Frozen):
    """A lower bound on the time of one call on a device, estimated and never measured."""

    device: str
    time_s: float
    memory_s: float
    matrix_s: float
    vector_s: float
    lds_s: float


class EmulatedCase(_Frozen):
    """What the emulator counted in one call, and the bound that follows.

    See docs/reference/emulator.md.
    """

    case: str
    target: str
    kernels: list[EmulatedKernel]
    bounds: list[EmulatedBound]
    reference: list[EmulatedKernel] = []
    """Of Inductor's Triton kernels of the reference for the same target, emulated too."""
    reference_bounds: list[EmulatedBound] = []
    estimated_speedup: float | None = None
    """The reference's bound over this one, on the first device: of lower bounds, not timed."""
    no_estimate: str = ""
    """Why there is no `estimated_speedup`, where one was asked for."""


class Verdict(_Frozen):
    """The judge's answer on one kernel for one problem.

    proven: right, and faster than the reference beyond the A/A floor. correct: right, but not
    faster, undecided, or not timed. wrong: an answer is not right. cheating: it tried to fool the
    judge, with evidence. crashed, timed_out: its process died or was too slow. refused: a bad
    problem or source. unmeasured: the judge could not do its work, or doubts what it saw, and says
    why.
    """

    status: Status
    reason: str
    evidence: list[Evidence] = Field(default_factory=list)
    speedup: Speedups = Field(default_factory=Speedups)
    not_timed: str = ""
    """Why the speed of a `correct` kernel is not known, where it was to be: it was not timed, or
    the machine was too noisy. Another verdict may tell."""
    static: dict[str, Any] | None = None
    """What a Triton or HIP kernel compiles to for AMD targets, as `inspect_kernel` gives it."""
    emulated: list[EmulatedCase] = Field(default_factory=list)
    """Of each visible case, where the kernel's machine code was emulated."""
    environment: dict[str, Any] = Field(default_factory=dict)
    isolation: str
    kernel_hash: str
    problem_hash: str
    samples: list[TimedSample] = Field(default_factory=list)


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
    time_s: float | None = None
    """Seconds of one call, the geometric mean over the timed cases."""
    against_best: float | None = None
    """Time of the best kernel so far over this kernel's time. None if there was none to compare."""
    evidence: tuple[str, ...] = ()
    """What was checked, one line each, for the kernel's author."""
    static_rank: tuple[float, ...] = ()
    """Smaller is better: the order among kernels that cannot be timed here."""

    @property
    def is_right(self) -> bool:
        """Return whether the kernel's outputs were right."""
        return self.status in ("screened", "proven", "correct")
