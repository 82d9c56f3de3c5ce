"""The terms of a verdict: its options as text or values, and when a kept verdict answers."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, SupportsFloat, TypedDict, Unpack, cast, get_args

import msgspec

from ratchet.base import VERSION
from ratchet.base.errors import RatchetError
from ratchet.base.show.words import parse_duration_s
from ratchet.judge.kernels.kernel import TARGETS, Kernel, Language
from ratchet.judge.problems.case import Scale, Task, Tier
from ratchet.judge.problems.problem import Problem
from ratchet.judge.verdict import Status, Verdict

SHORTEST_LIMIT_S = 1.0
LANGUAGES: Final[tuple[Language, ...]] = ("cpp", "torch", "triton")  # Languages that can be judged
PROFILED: Final[tuple[Language, ...]] = ("triton", "hip")
"""Languages whose kernels have a static profile."""
SETTLED: Final[tuple[Status, ...]] = ("correct", "wrong", "cheating")
"""Answers that follow from texts. The others may be the machine's: its memory, its clock, what is
installed."""


class Options(TypedDict, total=False):
    """The keywords of `ratchet.judge`, as text or values; None is the default."""

    entry: str | None
    tier: str | None
    scale: Scale | str
    task: str | None
    time_limit_s: float | str
    against_compile: bool
    seed: int | None
    device: str
    target: str | None
    frozen_weights: bool
    profile: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """The options of a verdict, from a command or a call down to the trial and the ledger."""

    entry: str | None = None
    """The function to call, if neither the file nor its problem's name tells."""
    tier: Tier | None = None
    """Tier of the cases; by default the one that fits the device, or all of a Problem's."""
    scale: Scale = "auto"  # Shrinks a problem in KernelBench's form
    task: Task | None = None
    """`own` if the work must run in the kernel's own code, or `any`; None: as the problem says."""
    frozen_weights: bool = False
    """Keep the weights that a KernelBench model's constructor draws: another problem."""
    time_limit_s: float = 60.0  # For reading a problem's file and judging together
    spent_s: float = 0.0
    """Seconds of the time limit that are gone, for instance on reading the problem."""
    against_compile: bool = False  # Time torch.compile of the reference in the same rounds
    device: str = "auto"
    """`cpu`, `cuda` or `cuda:N`; by default Triton's kernels take a GPU where there is one."""
    among: int = 1
    """Verdicts of which the caller takes the best. Together they are falsely `proven` no
    more often than one alone, by a stricter level (Bonferroni)."""
    target: str | None = None  # A GPU whose machine code is emulated, such as `gfx942`
    profiled: tuple[str, ...] = ()  # AMD targets of the static profile of a kernel in Triton or HIP
    compared: bool = False
    """Estimate the bound of the reference's compiled kernels too, if a `target` is given."""
    seed: int | None = None  # For tests. A verdict whose seed was known is never kept.

    @staticmethod
    def of(**given: Unpack[Options]) -> Terms:
        """Check the options of a call. Raises RatchetError for a value that one cannot have."""
        tier, task, target = given.get("tier"), given.get("task"), given.get("target")
        profile = given.get("profile", False)
        return Terms(
            entry=given.get("entry"),
            tier=None if tier is None else cast(Tier, one_of("tier", tier, get_args(Tier))),
            scale=parse_scale(given.get("scale", "auto")),
            task=None if task is None else cast(Task, one_of("task", task, get_args(Task))),
            frozen_weights=given.get("frozen_weights", False),
            time_limit_s=parse_time_limit_s(given.get("time_limit_s", Terms().time_limit_s)),
            against_compile=given.get("against_compile", False),
            device=parse_device(given.get("device", "auto")),
            target=None if target is None else parse_target(target),
            profiled=TARGETS if profile else (),
            compared=profile,
            seed=given.get("seed"),
        )

    def for_trial(self) -> dict[str, Any]:
        """Return those that a trial of a kernel on a Problem has (`KernelJudge.judge`)."""
        asked = ("entry", "tier", "scale", "task", "frozen_weights")
        return {name: value for name, value in asdict(self).items() if name not in asked}


def signature_with(options: type, function: Callable[..., object]) -> inspect.Signature:
    """Return a function's signature with each option in the place of its `**options`."""
    given, defaults = inspect.signature(function), asdict(Terms())
    own = [one for one in given.parameters.values() if one.kind is not one.VAR_KEYWORD]
    keywords = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(name, False),
            annotation=kind.__forward_arg__,
        )
        for name, kind in options.__annotations__.items()
    ]
    return given.replace(parameters=[*own, *keywords])


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedKernel:
    verdict: Verdict
    kernel: Kernel
    problem: Problem
    judged_at: str
    recalled: bool  # True if the ledger held the verdict and it was not judged again


def trial_of(terms: Terms, judged_at: str) -> dict[str, object]:
    """Return what the ledger keeps beside a verdict."""
    return {"judged_at": judged_at, "ratchet": VERSION, **asdict(terms)}


def answers(verdict: Verdict, trial: Mapping[str, object], terms: Terms) -> bool:
    """Return whether a verdict that was given in `trial` answers what is asked under `terms`.

    An unmeasured verdict does not, nor does a right one whose speed noise or a limit left open.
    A time-out answers only if its limit was as long. A verdict with more than is asked answers: at
    a stricter level, beside torch.compile, with the estimate of the reference.
    """
    if not trial or verdict.status == "unmeasured" or verdict.not_timed:
        return False
    given = msgspec.convert(trial, Terms)
    if verdict.status == "timed_out" and given.time_limit_s < terms.time_limit_s:
        return False
    wants_profile = verdict.environment.get("language") in PROFILED and terms.profiled
    needs_more = (
        given.among < terms.among
        or (terms.against_compile and not given.against_compile)
        or (terms.target is not None and terms.compared and not given.compared)
        or (wants_profile and not set(terms.profiled) <= set(given.profiled))
    )
    return (
        not needs_more
        and trial["ratchet"] == VERSION
        and given.target == terms.target
        and _cores(given.device) == _cores(terms.device)
    )


def _cores(device: str) -> str:
    """Return a name that `auto` and `cpu` share: the fingerprint tells which device `auto` took."""
    return "cpu" if device == "auto" else device


def parse_device(given: object) -> str:
    """Return `auto`, `cpu`, `cuda` or `cuda:N`; the judge finds out whether it exists."""
    if not isinstance(given, str) or not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", given):
        raise RatchetError(f"no device {given!r}: use auto, cpu, cuda or cuda:N")
    return given


def parse_target(given: object) -> str:
    """Return an AMD GPU whose machine code can be emulated."""
    return one_of("target", given, TARGETS)


def parse_scale(given: object) -> Scale:
    """Return `auto`, `emulated`, or a factor above 0 and below 1; None for 1."""
    if given in (None, "auto", "emulated"):
        return cast(Scale, given)
    factor = _number(given)
    if not 0 < factor <= 1:
        raise RatchetError(f"scale {given!r} is neither auto nor a factor above 0 and at most 1")
    return None if factor == 1 else factor


def parse_time_limit_s(given: object) -> float:
    """Return a verdict's limit in seconds, at least one."""
    return parse_duration_s(given, "time limit", least_s=SHORTEST_LIMIT_S)


def parse_threads(given: object) -> int | None:
    """Return the number of cores that both sides may use; None for all of this process."""
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise RatchetError(f"threads {given!r} is not a number of cores: give 1 or more")
    return given


def one_of(what: str, given: object, known: tuple[str, ...]) -> str:
    """Return a known name; raises RatchetError with all of them for another."""
    if given not in known:
        raise RatchetError(f"unknown {what} {given!r}: use one of {', '.join(known)}")
    return given


def _number(given: object) -> float:
    """Return a number, also from its text; NaN for anything else."""
    if isinstance(given, bool) or not isinstance(given, (str, SupportsFloat)):
        return math.nan
    try:
        return float(given)
    except (TypeError, ValueError, OverflowError):
        return math.nan
