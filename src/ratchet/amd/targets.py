"""Judge a kernel for an AMD GPU that is not here: interpreted or emulated, and never timed.

The names of `ratchet.judge.targets.Targets`.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import msgspec

from ratchet.amd.compile.hip_compiler import TOO_OLD
from ratchet.amd.compile.tools import NOT_STARTED
from ratchet.amd.compile.triton_source import load_interpreted
from ratchet.amd.emulator.estimates import estimate, hottest, read_told, words
from ratchet.amd.emulator.hip_build import (
    build_hip,
    build_ordered,
    compiled_machine,
    precompiled,
    toolchain,
)
from ratchet.amd.emulator.launch import NOT_EMULATED
from ratchet.amd.emulator.program import NO_TRITON, pretended_device
from ratchet.amd.port.patch import ported
from ratchet.amd.profile import profile_in_verdict
from ratchet.base import Json, address, scratch
from ratchet.base.devices import catalogue
from ratchet.base.errors import JudgeError, KernelError, RatchetError
from ratchet.base.process import Clock
from ratchet.base.process.child import Child, ChildFailure, error_words, program
from ratchet.judge.integrity.census import CaseCensus
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.kernel_file import is_extension
from ratchet.judge.problems.problem import MORE_TIME, Problem
from ratchet.judge.sandbox.isolation import arm_environment
from ratchet.judge.sandbox.rocm import find_tool
from ratchet.judge.steps.arms import import_path
from ratchet.judge.targets import Build
from ratchet.judge.trial.candidate import sealed_copy
from ratchet.judge.trial.kernel_checks import wrong_words
from ratchet.judge.trial.sources import loaded_by, uses_extensions
from ratchet.judge.verdict import CandidateFault, Decided, EmulatedCase, Evidence, fault

RIGHT = "right on every case in Triton's interpreter; its speed was not measured: there is no GPU"
INTERPRETER = "in Triton's interpreter"
NOT_INTERPRETED = ("NotImplementedError",)
"""Words of a failure that is the interpreter's, and not the kernel's."""


@contextlib.contextmanager
def runs(where: str) -> Iterator[None]:
    """Call a kernel unmeasured if it only exceeds what can run there (`without_blame`)."""
    try:
        yield
    except CandidateFault as error:
        raise CandidateFault(without_blame(error.decided, where)) from error


def without_blame(decided: Decided, where: str) -> Decided:
    """Call a kernel unmeasured if it only exceeds what can run there, or the time limit.

    A race or an access out of bounds in its machine code is `wrong`.
    """
    words = wrong_words(decided.reason) if decided.status == "crashed" else None
    if words is not None:
        return replace(decided, status="wrong", reason=words)
    limits = NOT_INTERPRETED if where == INTERPRETER else NOT_EMULATED
    beyond = decided.status == "crashed" and any(one in decided.reason for one in limits)
    if decided.status == "timed_out" or beyond:
        return replace(decided, status="unmeasured", reason=f"{where}: {decided.reason}")
    return decided


def interpreted(kernel: Kernel) -> Kernel:
    """Return the kernel as one in torch whose launches run in Triton's interpreter."""
    _need_triton()
    in_torch = replace(kernel, language="torch")
    return loaded_by(address(load_interpreted), in_torch, source=kernel.source)


def make_ready(kernel: Kernel, target: str) -> None:
    """Compile what every verdict on such a kernel uses, once: the emulator and HIP's headers."""
    with contextlib.suppress(RatchetError):  # the verdict says what is missing
        compiled_machine(target)
        with_torch = _is_extension(kernel) or uses_extensions(kernel)
        if with_torch or kernel.language == "hip":
            precompiled(target, with_torch=with_torch)


def _is_extension(kernel: Kernel) -> bool:
    return kernel.language == "hip" and is_extension(kernel.source)


def builder_for(kernel: Kernel, target: str, clock: Clock) -> Build | None:
    if not (_is_extension(kernel) or uses_extensions(kernel)):
        return None
    return partial(build_ordered, target, clock, precompiled(target, with_torch=True))


def emulated(kernel: Kernel, target: str, clock: Clock) -> Kernel:
    """Return the kernel as one in torch whose launches are emulated."""
    in_torch, told = replace(kernel, language="torch"), pretended_device(target)
    device = {"name": told.name, "units": told.units, "memory_bytes": told.memory_bytes}
    given: dict[str, object] = {"device": device}
    if kernel.language == "hip" and not _is_extension(kernel):
        try:
            assembly, host = build_hip(kernel, target, clock)
        except KernelError as error:
            missing = find_tool("clang") is None or any(
                one in str(error) for one in (TOO_OLD, NOT_STARTED)
            )
            raise fault("unmeasured" if missing else "refused", str(error)) from error
        except ChildFailure as error:
            raise fault("refused", f"the source does not compile: {error}") from error
        given |= {"assembly": assembly, "host": base64.b64encode(host).decode()}
        return loaded_by("ratchet.amd.emulator.hip_loading:load_hip", in_torch, **given)
    given |= {"source": kernel.source, "target": target}
    extensions = "ratchet.amd.emulator.extensions"  # a string, since it imports torch
    if _is_extension(kernel):
        return loaded_by(f"{extensions}:load_extension", in_torch, **given)
    if kernel.language != "triton" and not uses_extensions(kernel):
        reason = f"kernels in {kernel.language} are not emulated: give one in Triton, HIP or CUDA"
        raise fault("unmeasured", reason)
    _need_triton()
    if uses_extensions(kernel):
        return loaded_by(f"{extensions}:load_with_extensions", in_torch, **given)
    return loaded_by("ratchet.amd.emulator.loading:load_emulated", in_torch, **given)


def _need_triton() -> None:
    if importlib.util.find_spec("triton") is None:
        raise fault("unmeasured", NO_TRITON)


@contextlib.contextmanager
def sealed_machine(target: str) -> Iterator[int]:
    """Yield a descriptor of the compiled emulator, which a candidate cannot change."""
    with compiled_machine(target).open("rb") as file:
        descriptor = sealed_copy(file.fileno())
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def estimates(problem: Problem, target: str, censuses: Sequence[CaseCensus]) -> list[EmulatedCase]:
    """Return the counts of one call on each visible case. Raises CandidateFault for nonsense."""
    found: list[EmulatedCase] = []
    for case, census in zip(problem.cases, censuses, strict=False):
        if case.hidden:
            continue
        try:
            kernels = read_told(census.emulated, target, shown=not found)
            found.append(estimate(case.name, target, kernels))
        except (ValueError, TypeError) as error:
            raise fault("crashed", "the candidate's process answered nonsense") from error
    return found


def right_on(
    target: str, cases: Sequence[EmulatedCase], source: str, evidence: list[Evidence]
) -> Decided:
    """Return the answer on a kernel that passed every case: at most `correct`."""
    detail = f"every launch ran as {target}'s machine code in the emulator; no GPU took part"
    evidence.append(Evidence(check="emulated", passed=True, detail=detail))
    said = [(f"estimated, {one.case}", words(one)) for one in cases if one.kernels]
    for kernel in cases[0].kernels if cases else ():
        if lines := hottest(kernel, source):
            said.append((f"hottest lines, {kernel.name}", "; ".join(lines)))
    evidence += [Evidence(check=check, passed=None, detail=detail) for check, detail in said]
    reason = f"right on every case as machine code of {target}, emulated"
    return Decided("correct", f"{reason}; its speed was not measured")


WORKER: Final = "ratchet.amd.emulator.reference_worker"  # a string, since it imports torch
NAME: Final = "estimated_speedup"
WORDS: Final = "of lower bounds, not timed"
SHARE: Final = 0.6  # share of the time left for compiling references; the static profile follows
LEAST_S: Final = 3.0


ReferenceWork = Mapping[str, Json] | str
"""The counts of the reference's kernels in one call, or why they are unknown."""


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
        found = self._known.get(_key(problem, case), otherwise)
        if isinstance(found, str):
            return msgspec.structs.replace(case, no_estimate=found or "not compiled")
        own = estimate(case.case, case.target, read_told(found, case.target))
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
            asked = {"do": "case", "case": places[case.case]}
            reply = opened if "error" in opened else _ask(child, asked, limit)
            is_missing = "error" in reply
            yield case, error_words(reply["error"])[:300] if is_missing else reply["emulated"]


def _ask(child: Child, message: Mapping[str, object], limit: Clock) -> dict[str, Json]:
    if limit.left_s < LEAST_S:
        raise JudgeError(f"had no time left: {MORE_TIME}")
    return child.ask(message, limit_s=limit.left_s)


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


references = CompiledReferences
DECIDING = ("amd/targets.py", "amd/architectures.py", "amd/compile/**/*", "amd/emulator/**/*")

__all__ = [
    "DECIDING",
    "INTERPRETER",
    "RIGHT",
    "builder_for",
    "emulated",
    "estimates",
    "interpreted",
    "make_ready",
    "ported",
    "profile_in_verdict",
    "references",
    "right_on",
    "runs",
    "said",
    "sealed_machine",
    "toolchain",
    "without_blame",
]
