"""Parse the options of a call to the judge, given as text or as values of Python."""

from __future__ import annotations

import math
import re
from typing import Final, Literal, SupportsFloat, cast, get_args

from ratchet.base.errors import RatchetError
from ratchet.base.show.words import parse_duration_s
from ratchet.judge.kernels.kernel import Language
from ratchet.judge.problems.case import Task, Tier

Scale = float | Literal["auto", "emulated"] | None
SHORTEST_LIMIT_S = 1.0
LANGUAGES: Final[tuple[Language, ...]] = ("cpp", "torch", "triton")
"""Languages that can be judged."""
PROFILED: Final[tuple[Language, ...]] = ("triton", "hip")
"""Languages whose kernels have a static profile."""
EMULATED: Final = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
"""Targets whose machine code the emulator executes."""


def parse_tier(given: object) -> Tier:
    return cast(Tier, one_of("tier", given, get_args(Tier)))


def parse_task(given: object) -> Task:
    """Return `own` or `any`."""
    return cast(Task, one_of("task", given, get_args(Task)))


def parse_device(given: object) -> str:
    """Return `auto`, `cpu`, `cuda` or `cuda:N`; the judge finds out whether it exists."""
    if not isinstance(given, str) or not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", given):
        raise RatchetError(f"no device {given!r}: use auto, cpu, cuda or cuda:N")
    return given


def parse_target(given: object) -> str:
    """Return an AMD GPU whose machine code can be emulated."""
    return one_of("target", given, EMULATED)


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
