"""Emulate a sample of the launches of a Triton kernel's call at full size, without the GPU.

A sandboxed process compiles the kernel, executes some workgroups of each launch and scales their
counts up to all of them: a lower bound on the time, the clock's predicted time, and resources.
"""

from __future__ import annotations

import base64
import math
from dataclasses import asdict, dataclass
from typing import Annotated, Final

import msgspec

from ratchet.amd.architectures import ARCHITECTURES, occupancy
from ratchet.amd.compile.process import ProfileProcess
from ratchet.amd.emulator.estimates import estimate, read_told, total_time
from ratchet.amd.emulator.hip_build import compiled_machine
from ratchet.amd.emulator.program import pretended_device
from ratchet.base import Json
from ratchet.base.errors import JudgeError, KernelError
from ratchet.base.process import Clock
from ratchet.base.process.channel import Message
from ratchet.base.process.child import ChildFailure
from ratchet.base.process.memory import free_bytes
from ratchet.base.serialise import Count
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.case import Case
from ratchet.judge.problems.free_memory import GIB
from ratchet.judge.problems.problem import Problem
from ratchet.judge.trial.sources import runnable
from ratchet.judge.verdict import PredictedTime

SAMPLE_WORKER: Final = "ratchet.amd.emulator.tune_worker"
SAMPLE: Final = 16  # about how many workgroups of a launch are emulated
LIMIT: Final = 300_000_000  # wave instructions of one launch's sample
EACH_LIMIT_S: Final = 60.0
UNPLAYED: Final = "its workgroups wait for each other"
MOST_BYTES: Final = 4 << 30  # of a call's inputs, which lie in this machine's memory


class _Launched(msgspec.Struct, frozen=True, kw_only=True):
    told: dict[str, Json]
    ran: Count
    vgprs: Count
    workgroup_waves: Annotated[int, msgspec.Meta(ge=1, le=64)]
    lds_bytes: Count


class _Ran(msgspec.Struct, frozen=True):
    launches: list[_Launched]


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledCall:
    """A call of a kernel with its bound and its predicted time, or why it has none."""

    bound_s: float | None = None
    predicted: PredictedTime | None = None
    limit: str = ""  # the unit with most of the bound
    workgroups: int = 0  # of all launches
    emulated_workgroups: int = 0
    vgprs: int | None = None
    lds_bytes: int | None = None
    waves: int | None = None  # that a SIMD holds
    dropped: str = ""


class Sampler:
    """A process that samples calls on one target, one after another; it starts when asked."""

    def __init__(self, target: str, clock: Clock) -> None:
        device = pretended_device(target)
        self._target = target
        self._process = ProfileProcess(clock, worker=SAMPLE_WORKER)
        self.device: Final = device.name
        told = {"name": device.name, "units": device.units, "memory_bytes": device.memory_bytes}
        self._message: Message = {
            "target": target,
            "device": told,
            "machine": base64.b64encode(compiled_machine(target).read_bytes()).decode(),
            "limit": LIMIT,
            "sample": SAMPLE,
        }

    def close(self) -> None:
        self._process.close()

    def kernels(self, kernel: Kernel) -> Message:
        """Return the file's Triton kernels as its process lists them.

        Raises KernelError, JudgeError or ChildFailure if the file cannot be loaded.
        """
        asked = {"do": "list", "source": kernel.source, "entry": kernel.entry}
        return self._process.ask(self._message | asked)

    def call(self, kernel: Kernel, problem: Problem, case: Case) -> SampledCall:
        """Return a kernel's call on a problem's case; never raises for what the kernel does."""
        needed = 4 * sum(math.prod(one.shape) for one in case.inputs)  # drawn in float32
        if needed > (most := min(MOST_BYTES, free_bytes() // 3)):
            held = f"this machine has room for {most / GIB:.1f} GiB"
            return SampledCall(dropped=f"its inputs take {needed / GIB:.1f} GiB, and {held}")
        form, made = problem.model, runnable(kernel, problem, case=case)
        asked = {
            "do": "run",
            "source": made.source,
            "entry": made.entry,
            "case": asdict(case),
            "model": None if form is None else asdict(form),
            "text": "" if form is None else problem.text,  # it draws its inputs
        }
        try:
            reply = self._process.ask(self._message | asked, EACH_LIMIT_S)
            return _read(msgspec.convert(reply, _Ran).launches, self._target)
        except ChildFailure as error:
            return SampledCall(dropped=f"its process {error}")
        except (JudgeError, KernelError, ValueError, TypeError) as error:
            return SampledCall(dropped=str(error).removeprefix("the entry raised "))


def _read(launches: list[_Launched], target: str) -> SampledCall:
    """Return the bound of a call's launches; raises KernelError without one."""
    if not launches:
        raise KernelError("the entry launches no kernel")
    cases = [estimate("", target, read_told(one.told, target, shown=False)) for one in launches]
    if any(not one.bounds for one in cases):
        why = next((one.no_estimate for one in cases if one.no_estimate), "no device is known")
        raise KernelError(f"no bound: {why}")
    bounds = [one.bounds[0] for one in cases]
    units = {
        unit: math.fsum(getattr(one, f"{unit}_s") for one in bounds)
        for unit in ("memory", "matrix", "vector", "lds")
    }
    heaviest = launches[max(range(len(cases)), key=lambda at: bounds[at].time_s)]
    held = occupancy(
        ARCHITECTURES[target],
        vgprs=heaviest.vgprs,
        lds_bytes=heaviest.lds_bytes,
        workgroup_waves=heaviest.workgroup_waves,
    )
    return SampledCall(
        bound_s=math.fsum(one.time_s for one in bounds),
        predicted=total_time([one.predicted for one in cases]),
        limit=max(units, key=lambda unit: units[unit]),
        workgroups=sum(kernel.programs for one in cases for kernel in one.kernels),
        emulated_workgroups=sum(one.ran for one in launches),
        vgprs=heaviest.vgprs,
        lds_bytes=heaviest.lds_bytes,
        waves=held.waves_per_simd,
    )
