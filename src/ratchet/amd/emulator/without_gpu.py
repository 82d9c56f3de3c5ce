"""Kernels for a GPU that is not here: run in Triton's interpreter or emulated, and never timed."""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ratchet.amd.compile.hip_compiler import TOO_OLD
from ratchet.amd.emulator.build import compiled_machine
from ratchet.amd.emulator.estimates.bound import estimate, hottest, matrix_cycles, words
from ratchet.amd.emulator.estimates.counts import read_told
from ratchet.amd.emulator.hip_build import ExtensionBuilder, build_hip
from ratchet.amd.emulator.launch import NOT_EMULATED
from ratchet.amd.emulator.precompiled import precompiled
from ratchet.amd.emulator.program.settings import pretended_device
from ratchet.base.errors import KernelError, RatchetError
from ratchet.base.process import Clock
from ratchet.base.process.child import ChildFailure
from ratchet.judge.integrity.library_ops import CaseCensus
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.kernel_file import is_extension
from ratchet.judge.problems.problem import Problem
from ratchet.judge.sandbox.rocm import find_tool
from ratchet.judge.stage_result import CandidateFault, Decided, fault
from ratchet.judge.trial.machine_faults import wrong_words
from ratchet.judge.trial.processes.built_extensions import uses_extensions
from ratchet.judge.trial.processes.candidate import sealed_copy
from ratchet.judge.verdict import EmulatedCase, Evidence
from ratchet.judge.workers.candidate.model_answer import loaded_by

RIGHT = "right on every case in Triton's interpreter; its speed was not measured: there is no GPU"
INTERPRETER = "in Triton's interpreter"
NOT_INTERPRETED = ("NotImplementedError",)
"""Words of a failure that is the interpreter's, and not the kernel's."""
NO_TRITON = "triton is not installed: pip install triton==3.7.1"


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
    loader = "ratchet.amd.compile.triton_source:load_interpreted"
    return loaded_by(loader, replace(kernel, language="torch"), source=kernel.source)


def make_ready(kernel: Kernel, target: str) -> None:
    """Compile what every verdict on such a kernel uses, once: the emulator and HIP's headers."""
    with contextlib.suppress(RatchetError):  # the verdict says what is missing
        compiled_machine(target)
        with_torch = _is_extension(kernel) or uses_extensions(kernel)
        if with_torch or kernel.language == "hip":
            precompiled(target, with_torch=with_torch)


def _is_extension(kernel: Kernel) -> bool:
    return kernel.language == "hip" and is_extension(kernel.source)


def builder_for(kernel: Kernel, target: str, clock: Clock) -> ExtensionBuilder | None:
    """Return what compiles the extensions that a kernel orders; None if it orders none."""
    if not (_is_extension(kernel) or uses_extensions(kernel)):
        return None
    return ExtensionBuilder(target, clock, precompiled(target, with_torch=True))


def emulated(kernel: Kernel, target: str, clock: Clock) -> Kernel:
    """Return the kernel as one in torch whose launches are emulated."""
    in_torch, told = replace(kernel, language="torch"), pretended_device(target)
    device = {"name": told.name, "units": told.units, "memory_bytes": told.memory_bytes}
    given: dict[str, object] = {"matrix_cycles": matrix_cycles(target), "device": device}
    if kernel.language == "hip" and not _is_extension(kernel):
        assembly, host = _built(kernel, target, clock)
        given |= {"assembly": assembly, "host": base64.b64encode(host).decode()}
        return loaded_by("ratchet.amd.emulator.hip_loading:load_hip", in_torch, **given)
    given |= {"source": kernel.source, "target": target}
    extensions = "ratchet.amd.emulator.extensions"
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


def _built(kernel: Kernel, target: str, clock: Clock) -> tuple[str, bytes]:
    try:
        return build_hip(kernel, target, clock)
    except KernelError as error:
        missing = find_tool("clang") is None or TOO_OLD in str(error)
        raise fault("unmeasured" if missing else "refused", str(error)) from error
    except ChildFailure as error:
        raise fault("refused", f"the source does not compile: {error}") from error


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
            found.append(
                estimate(case.name, target, read_told(census.emulated, target, shown=not found))
            )
        except (ValueError, TypeError) as error:
            raise fault("crashed", "the candidate's process answered nonsense") from error
    return found


def right_on(
    target: str, cases: Sequence[EmulatedCase], source: str, evidence: list[Evidence]
) -> Decided:
    """Return the answer on a kernel that passed every case: at most `correct`."""
    detail = f"every launch ran as {target}'s machine code in the emulator; no GPU took part"
    evidence.append(Evidence(check="emulated", passed=True, detail=detail))
    evidence += [
        Evidence(check=f"estimated, {one.case}", passed=None, detail=words(one))
        for one in cases
        if one.kernels
    ]
    evidence += [
        Evidence(check=f"hottest lines, {kernel.name}", passed=None, detail="; ".join(lines))
        for one in cases[:1]
        for kernel in one.kernels
        if (lines := hottest(kernel, source))
    ]
    reason = (
        f"right on every case as machine code of {target}, emulated; its speed was not measured"
    )
    return Decided("correct", reason)
