"""The bound of the reference's compiled kernels, to compare a candidate's bound with."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from ratchet.amd.emulator.estimates.bound import estimate
from ratchet.amd.emulator.estimates.counts import read_told
from ratchet.base import Json, scratch
from ratchet.base.devices import catalogue
from ratchet.base.errors import JudgeError
from ratchet.base.process import Clock
from ratchet.base.process.child import Child, error_words, program
from ratchet.judge.problems.problem import Problem
from ratchet.judge.sandbox.isolation import arm_environment
from ratchet.judge.steps.arms import import_path
from ratchet.judge.verdict import EmulatedCase, Evidence

WORKER: Final = "ratchet.amd.emulator.estimates.worker"
NAME: Final = "estimated_speedup"
WORDS: Final = "of lower bounds, not timed"
SHARE: Final = 0.6
"""Share of the time left for compiling references; the static profile follows."""
LEAST_S: Final = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ReferenceWork:
    """The counts of the reference's kernels in one call, or why they are unknown."""

    told: Mapping[str, Json] | None = None
    missing: str = ""


class CompiledReferences:
    """Compiled references by problem and target, kept between verdicts."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], ReferenceWork] = {}

    def compared(
        self, cases: Sequence[EmulatedCase], problem: Problem, clock: Clock
    ) -> list[EmulatedCase]:
        """Return the cases with the reference's bound, or why it is missing.

        It never raises for what the reference or its compiler does.
        """
        limit = Clock.of(SHARE * clock.left_s)
        new = [one for one in cases if _key(problem, one) not in self._known]
        failed = ""
        try:
            for case, work in _works(new, problem, limit) if new else ():
                self._known[_key(problem, case)] = work
        except (JudgeError, OSError) as error:  # of this verdict, and not of the next
            failed = f"its compiler's process {error}"
        return [self._beside(one, problem, failed) for one in cases]

    def _beside(self, case: EmulatedCase, problem: Problem, otherwise: str) -> EmulatedCase:
        found = self._known.get(_key(problem, case))
        if found is None or found.told is None:
            missing = otherwise if found is None else found.missing
            return msgspec.structs.replace(case, no_estimate=missing or "not compiled")
        own = estimate(case.case, case.target, read_told(found.told, case.target))
        known = own.bounds and case.bounds and case.bounds[0].time_s > 0
        ratio = own.bounds[0].time_s / case.bounds[0].time_s if known else None
        kernels = [msgspec.structs.replace(one, lines=[]) for one in own.kernels]
        update = {"reference": kernels, "reference_bounds": own.bounds, NAME: ratio}
        missing = case.no_estimate or own.no_estimate
        return msgspec.structs.replace(case, **update, no_estimate=missing)


def _key(problem: Problem, case: EmulatedCase) -> tuple[str, str, str]:
    return problem.hash, case.target, case.case


def _works(
    cases: Sequence[EmulatedCase], problem: Problem, limit: Clock
) -> Iterator[tuple[EmulatedCase, ReferenceWork]]:
    """Ask a new process about each case. Raises JudgeError if it dies or takes too long."""
    target = cases[0].target
    places = {one.name: place for place, one in enumerate(problem.cases)}
    own = {"RATCHET_IMPORT_PATH": import_path(), **arm_environment(1)}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(scratch.folder("inductor"))
        environment = {**os.environ, **own, "TORCHINDUCTOR_CACHE_DIR": str(folder)}
        child = stack.enter_context(contextlib.closing(Child(program(_command, environment))))
        units = catalogue.compute_units(target)
        message = {"do": "open", "problem": problem.as_json(), "target": target, "units": units}
        opened = _ask(child, message, limit)
        for case in cases:
            place = places[case.case]
            reply = (
                opened if "error" in opened else _ask(child, {"do": "case", "case": place}, limit)
            )
            if "error" in reply:
                yield case, ReferenceWork(missing=error_words(reply["error"])[:300])
            else:
                yield case, ReferenceWork(told=reply["emulated"])


def _ask(child: Child, message: Mapping[str, object], limit: Clock) -> dict[str, Json]:
    if limit.left_s < LEAST_S:
        raise JudgeError("had no time left: raise the time limit")
    return child.ask(message, timeout_s=limit.left_s)


def _command(channel: int) -> list[str]:
    boot = f"from {WORKER} import main; main()"
    return [sys.executable, "-P", "-c", boot, str(channel), str(os.getpid())]


def said(cases: Sequence[EmulatedCase]) -> list[Evidence]:
    """Return one line for each case, or a single line if no case has an estimate."""
    if cases and not any(one.estimated_speedup for one in cases):
        why = next((one.no_estimate for one in cases if one.no_estimate), "no kernel was emulated")
        return [Evidence(check=NAME, passed=None, detail=f"no estimate: {why}")]
    return [
        Evidence(check=f"{NAME}, {one.case}", passed=None, detail=in_words(one)) for one in cases
    ]


def in_words(case: EmulatedCase) -> str:
    """Return the ratio of one case and its parts, or why there is none."""
    if case.estimated_speedup is None:
        return f"no estimate: {case.no_estimate or 'a bound is missing'}"
    own, reference = case.bounds[0], case.reference_bounds[0]
    count = sum(one.launches for one in case.reference)
    launches = f"{count} launches" if count > 1 else "launch"
    return (
        f"{case.estimated_speedup:.3g} {WORDS}: at least {own.time_s * 1e6:.3g} us, and "
        f"{reference.time_s * 1e6:.3g} us for the {launches} of torch.compile's kernels "
        f"of the reference on {own.device}"
    )
