"""The static profile: what a kernel compiles to for GPUs that are not here."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from ratchet.amd.architectures import Architecture, find_architectures
from ratchet.amd.compile.process import (
    CompiledKernel,
    Launch,
    Profile,
    ProfileProcess,
    entry_error,
    hip_interface,
    read_profile,
)
from ratchet.amd.emulator.program import NO_TRITON
from ratchet.amd.profile import kernel_facts
from ratchet.amd.profile.dot_work import DotCounter, DotWork
from ratchet.amd.profile.sampled import UNPLAYED, Sampler
from ratchet.base import Json
from ratchet.base.devices import catalogue
from ratchet.base.devices.catalogue import CatalogueDevice
from ratchet.base.devices.matrix import simds_per_cu
from ratchet.base.errors import JudgeError, KernelError, RatchetError
from ratchet.base.process import Clock
from ratchet.base.process.channel import Message
from ratchet.base.process.child import ChildFailure
from ratchet.base.show import model as m
from ratchet.judge.court.show import static_tables
from ratchet.judge.kernels.kernel import TARGETS, Kernel, Language
from ratchet.judge.problems.problem import LARGEST_FIRST, Case, Problem
from ratchet.judge.sandbox.isolation import isolation_name
from ratchet.judge.trial.sources import runnable

# Inspect what a kernel compiles to, for GPUs that this machine does not have.
#
# The candidate runs in its sandbox under a driver that only records launches. Triton's own backend
# compiles each of them there, and the judge reads the assembly text that comes back.

# Estimate a lower bound on the time of a kernel's launches on each AMD device of the catalogue.
#
# The bound of one launch is the larger of two times. One is its matrix work over the rate of the
# compiled instructions, on as many SIMDs as the launch has waves for. The other is the bytes of
# its tensors, each moved once, over the memory's bandwidth on paper. Launches follow one another,
# so their times add up.

FORMULA: Final = (
    "sum over launches of max(dot_flops / (min(waves, SIMDs) * flops_per_SIMD_per_cycle * clock), "
    "tensor_bytes / memory_bandwidth)"
)
ASSUMES: Final = (
    "an estimate and no measurement: highest clock and bandwidth on paper, every SIMD with work "
    "busy with matrix instructions, each tensor passed moved once from or to cold memory, no cost "
    "of launching"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchWork:
    dot_flops: float | None  # None if unknown
    flops_per_simd_per_cycle: float | None
    """The rate of the compiled matrix instructions; None without any, if the dots run on the
    vector units."""
    waves: int
    tensor_bytes: int


def bounds(gfx: str, launches: Sequence[LaunchWork]) -> list[dict[str, object]]:
    """Return the bound on each device in seconds, and which of its two parts is larger."""
    return [one for device in catalogue.load().of_target(gfx) if (one := _bound(device, launches))]


def _bound(device: CatalogueDevice, launches: Sequence[LaunchWork]) -> dict[str, object] | None:
    units, clock_ghz = device.number("compute_units"), device.number("max_engine_clock")
    bandwidth = device.memory_bytes_per_s()
    arch = device.get("arch")
    if units is None or clock_ghz is None or bandwidth is None or arch is None or not launches:
        return None
    simds = units / device.logical_devices * simds_per_cu(arch.value.lower().split()[0])
    memory = [one.tensor_bytes / bandwidth for one in launches]
    vector = (device.peak_flops_per_s("vector_fp32") or 0.0) / (simds * clock_ghz * 1e9)
    matrix = [_matrix_time_s(one, simds, clock_ghz * 1e9, vector) for one in launches]
    both = [max(pair) for pair in zip(memory, matrix, strict=True)]
    return {
        "device": device.name,
        "time_s": sum(both),
        "matrix_s": sum(matrix),
        "memory_s": sum(memory),
        "limit": "matrix" if sum(matrix) > sum(memory) else "memory",
        "estimate": True,
        "formula": FORMULA,
    }


def _matrix_time_s(launch: LaunchWork, simds: float, clock_hz: float, vector_rate: float) -> float:
    """Return the matrix time of a launch; 0 if it has no known dots."""
    rate = launch.flops_per_simd_per_cycle or vector_rate
    if not launch.dot_flops or not rate:
        return 0.0
    return launch.dot_flops / (min(float(launch.waves), simds) * rate * clock_hz)


TRITON_PACKAGES = ("triton", "pytorch-triton-rocm", "triton-rocm", "pytorch-triton")
"""Names of the package `triton`, by its builder."""
DOT_TIME_LIMIT_S = 8.0
Document = dict[str, Json]  # a profile as a JSON object (docs/how-to/inspect.md)
ACTIONS = {"triton": "python", "torch": "python", "hip": "hip"}
LOADED = """\
import tempfile
from pathlib import Path
from ratchet.judge.kernels.source_files import load_source

folder = Path(tempfile.mkdtemp(prefix="kernel-"))
{entry} = load_source({source!r}, {entry!r}, folder / "kernel_{target}.py")
"""
"""Triton looks up its kernels' text in a file; each target gets a new one."""


def inspect_kernel(
    kernel: Kernel,
    problem: Problem,
    targets: Sequence[str] = TARGETS,
    *,
    case: str | None = None,
    time_limit_s: float = 180.0,
    predicts: bool = False,
) -> Document:
    """Return a kernel's static profile for each target, as JSON; see docs/how-to/inspect.md.

    The launches are those of `case`, by default the largest timed case of the problem's largest
    tier. With `predicts`, a sample of them is emulated for the predicted time. A failure on one
    target is in its `error`. A problem with a fault has no targets and a `reason`. Raises
    KernelError if nothing can be compiled: for an unknown target or case, a language without GPU
    code, or a missing compiler.
    """
    architectures = find_architectures(targets)
    action = find_action(kernel.language)
    if problem.fault:
        return _document_of(kernel, action, None) | {
            "targets": {},
            "reason": f"the problem cannot be judged: {problem.fault}",
        }
    chosen = find_case(problem, case)
    clock = Clock.of(time_limit_s)
    counter = DotCounter(DOT_TIME_LIMIT_S)
    with contextlib.closing(ProfileProcess(clock)) as process:
        found = {
            one.name: _target(process, _message(kernel, problem, action, one, chosen), one, counter)
            for one in architectures
        }
    if predicts and action == "python":
        for one in architectures:
            if found[one.name]["bounds"] and one.backend == "hip":
                _predict(found[one.name], kernel, problem, one.name, chosen, clock)
    has_tiers = action == "python" and problem.model is None
    document = _document_of(kernel, action, chosen if action == "python" else None) | {
        "tier": chosen.tier if has_tiers else None,
        "targets": found,
    }
    if not any(one["kernels"] or one["error"] for one in found.values()):
        document["reason"] = "the kernel launches nothing: its entry started no Triton kernel"
    return document


def _predict(
    found: Document, kernel: Kernel, problem: Problem, target: str, case: Case, clock: Clock
) -> None:
    """Add the predicted time to the bound on its device, or why there is none."""
    with contextlib.closing(Sampler(target, clock)) as sampler:
        call = sampler.call(kernel, problem, case)
    time = call.predicted
    for bound in found["bounds"]:
        if time is not None and bound["device"] == time.device:
            bound["predicted"] = asdict(time)
    if time is None:
        found["no_prediction"] = call.dropped or UNPLAYED


def find_action(language: Language) -> str:
    """Return the worker's action that compiles a language; raises KernelError without one."""
    action = ACTIONS.get(language)
    if action is None:
        raise KernelError(
            f"kernels in {language} have no GPU code to inspect: give a triton or hip kernel"
        )
    if action == "python" and importlib.util.find_spec("triton") is None:
        raise KernelError(NO_TRITON)
    return action


def _document_of(kernel: Kernel, action: str, case: Case | None) -> Document:
    return {
        "kernel": kernel.name,
        "kernel_hash": kernel.hash,
        "language": kernel.language,
        "case": case.name if case else None,
        "tier": None,
        "compiler": _compiler(action),
        "isolation": isolation_name(),
        "assumes": ASSUMES,
    }


def all_compiled(document: Document) -> bool:
    targets = document["targets"].values()
    return bool(targets) and all(one["kernels"] and not one["error"] for one in targets)


def profile_in_verdict(
    kernel: Kernel, problem: Problem, targets: Sequence[str], clock: Clock
) -> Document:
    """Return the profile within the rest of a verdict's time, or why there is none."""
    try:
        return inspect_kernel(kernel, problem, targets, time_limit_s=clock.left_s)
    except (RatchetError, OSError) as error:
        return {"error": str(error)}


def find_case(problem: Problem, name: str | None = None) -> Case:
    """Return the case of that name, by default the largest timed case of the largest tier."""
    if name is not None:
        found = next((one for one in problem.cases if one.name == name), None)
        if found is None:
            known = ", ".join(one.name for one in problem.cases)
            raise KernelError(f"problem {problem.name!r} has no case {name!r}: it has {known}")
        return found
    if not problem.cases:
        raise KernelError(f"problem {problem.name!r} has no case: give one")
    timed = [one for one in problem.cases if one.timed] or list(problem.cases)
    tier = next(tier for tier in LARGEST_FIRST if any(one.tier == tier for one in timed))
    return max((one for one in timed if one.tier == tier), key=_elements)


def _elements(case: Case) -> int:
    return sum(math.prod(spec.shape) for spec in case.inputs)


def _compiler(action: str) -> str:
    if action == "hip":
        return "clang or hipcc"
    for name in TRITON_PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return f"triton {importlib.metadata.version(name)}"
    return "triton"


def _target(
    process: ProfileProcess, message: Message, architecture: Architecture, counter: DotCounter
) -> Document:
    """Return one target's part of the document; never raises for what the candidate did."""
    nothing: Document = {"kernels": [], "bounds": [], "skipped_configs": 0}
    try:
        profile = read_profile(process.ask(message))
    except ChildFailure as error:
        return nothing | {"error": f"the kernel's process {error}"}
    except (JudgeError, KernelError) as error:
        return nothing | {"error": str(error)}
    return _read(profile, architecture, counter)


def _message(
    kernel: Kernel, problem: Problem, action: str, architecture: Architecture, case: Case
) -> Message:
    """Return the worker's order; a kernel in Python becomes f(*tensors, scalars), from a file."""
    if action == "python":
        names = {"entry": kernel.entry, "source": kernel.source, "target": architecture.name}
        loaded = replace(kernel, language="torch", source=LOADED.format(**names))
        kernel = runnable(loaded, problem)
    model = problem.model
    return {
        "do": action,
        "kernel": kernel.as_json(),
        "case": asdict(case),
        "model": None if model is None else asdict(model),
        "text": "" if model is None else problem.text,  # it draws its inputs
        "elements": _elements(case),
        "target": architecture.name,
        "units": catalogue.compute_units(architecture.name),
        "interface": hip_interface() if action == "hip" else "",
    }


def _read(profile: Profile, architecture: Architecture, counter: DotCounter) -> Document:
    kernels, works, unread = [], [], []
    for key, kernel in profile.kernels.items():
        launches = [one for one in profile.launches if one.kernel == key]
        read = kernel_facts.amd_facts if architecture.backend == "hip" else kernel_facts.cuda_facts
        facts = read(kernel, architecture)
        if facts is None:
            unread.append(kernel.name)
            continue
        kept = [one for one in launches if not one.tuning]
        ttir = kernel.texts.get("ttir", "")
        dots = [counter.count(ttir, one.grid, one.arguments) for one in kept]
        kernels.append(_document(kernel, launches, kept, dots) | facts.document)
        cycles = sum(one.cycles * count for one, count in facts.hot_matrix)
        flops = sum(one.flops * count for one, count in facts.hot_matrix)
        works += [
            LaunchWork(
                dot_flops=None if work is None else work.flops,
                flops_per_simd_per_cycle=flops / cycles if cycles else None,
                waves=launch.programs * facts.waves_per_workgroup,
                tensor_bytes=launch.tensor_bytes,
            )
            for launch, work in zip(kept, dots, strict=True)
        ]
    error = None if profile.error is None else entry_error(profile.error)
    if unread:
        error = error or f"the assembly of {', '.join(unread)[:200]} could not be read"
    return {
        "kernels": kernels,
        "bounds": bounds(architecture.name, works),
        "skipped_configs": profile.skipped_configs,
        "error": error,
    }


def _document(
    kernel: CompiledKernel,
    launches: Sequence[Launch],
    kept: Sequence[Launch],
    dots: Sequence[DotWork | None],
) -> Document:
    """Return the facts from the launches, without the machine code."""
    first = next(iter([*kept, *launches]), None)
    return {
        "name": kernel.name,
        "launches": len(kept),
        "tuned": any(one.tuning for one in launches),
        "grid": first.grid if first else None,
        "programs": first.programs if first else None,
        "num_warps": kernel.num_warps,
        "num_stages": kernel.num_stages,
        "constants": kernel.constants,
        "signature": kernel.signature,
        "tensor_bytes": sum(one.tensor_bytes for one in kept),
        "dot_flops": None if None in dots else sum(one.flops for one in dots if one),
        "dot_flops_exact": all(one is not None and one.exact for one in dots),
    }


def inspection_report(document: Mapping[str, Json]) -> m.ResultReport:
    """Describe the result of `ratchet inspect`; `document` is what `inspect_kernel` returns."""
    tier = f" (tier {document['tier']})" if document.get("tier") else ""
    case = f", launched as on case {document['case']}{tier}" if document.get("case") else ""
    said = f"{document['kernel']} ({document['language']}){case}; {document['compiler']}"
    reason = document.get("reason")
    return m.ResultReport(
        headline=said,
        header=(m.Words(str(reason)),) if reason else (),
        sections=tuple(static_tables(document)),
    )
