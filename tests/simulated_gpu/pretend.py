"""A GPU for whole processes on a machine without one: torch.cuda answers, tensors say `cuda`.

Everything computes on the machine's cores. Beside what `ratchet emulate` pretends, torch.compile
compiles (for the cores), events read the machine's clock, and memory is the process's. So a whole
turn of `ratchet optimize --device cuda` walks through the code that a GPU would take, but for
kernels, graphs of launches and the profiler's records of the device. With TRITON_INTERPRET=1
Triton's kernels run in its interpreter.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final, NoReturn

import torch
import torch.profiler
import torch.utils._triton
from torch.overrides import _pop_mode_temporarily

from ratchet.amd.architectures import ARCHITECTURES, PretendedDevice
from ratchet.amd.compile import triton_source
from ratchet.amd.emulator.pretending import EmulatedGpu
from ratchet.amd.emulator.program import pretended_device
from ratchet.base.devices import rates
from ratchet.train.workloads import fake

VARIABLE: Final = "SIMULATED_GPU"
"""The GPU's target: `sm_90`, or one of AMD's."""
FAULTS: Final = "SIMULATED_FAULTS"
"""Between commas: `old driver`, `busy` (others hold half), `slice` (of a GPU), `two kinds` of GPUs,
`no memory` for a backward pass, `lost` (the GPU, in the first of them)."""
H100: Final = PretendedDevice(
    architecture=ARCHITECTURES["sm_90"],
    name="NVIDIA H100 80GB HBM3",
    units=132,
    memory_bytes=80 << 30,
)


class SimulatedGpu(EmulatedGpu):
    """An emulated GPU for which torch.compile compiles, and whose clock runs."""

    def __init__(self, device: PretendedDevice, faults: frozenset[str]) -> None:
        super().__init__(device)
        self.faults, self._memory_bytes = faults, device.memory_bytes
        self._models = [device.name, f"{device.name}, older"]

    def _faulty(self) -> Iterator[tuple[Any, str, Any]]:
        """Return the attributes of torch.cuda that differ by faults."""
        if "old driver" in self.faults or os.environ.get("CUDA_VISIBLE_DEVICES") == "":
            yield torch.cuda, "is_available", lambda: False
            yield torch.cuda, "device_count", lambda: 0
            yield torch.cuda, "init", _refuse
        if "busy" in self.faults:
            free = self._memory_bytes // 2
            yield torch.cuda, "mem_get_info", lambda *_: (free, self._memory_bytes)
        if "no memory" in self.faults:
            yield torch.autograd, "_engine_run_backward", _run_out_of_memory
        if "lost" in self.faults:
            yield torch.autograd, "_engine_run_backward", _fall_off_the_bus
        if "two kinds" in self.faults:
            yield torch.cuda, "device_count", lambda: 2
            yield torch.cuda, "get_device_name", lambda index=0: self._models[index]

    def _changes(self) -> Iterator[tuple[Any, str, Any]]:
        yield from self._faulty()
        left = {"compile", "_engine_run_backward"}
        yield from (one for one in super()._changes() if one[1] not in left)
        compile_it = torch.compile
        yield torch, "compile", functools.partial(_compiled, self, compile_it)
        yield torch, "Event", Event
        yield torch.cuda, "Event", Event
        yield torch.cuda, "max_memory_allocated", _peak_bytes
        yield torch.cuda, "memory_allocated", _peak_bytes
        # Inductor compiles for the cores, and asks Triton for no driver.
        yield torch.utils._triton, "has_triton", lambda: False
        # Tensors without values have no GPU to be on either. It brings ops, which register from
        # here on as a GPU's.

        yield fake, "FakeTensorMode", _fakes_on_cores(fake.FakeTensorMode)
        yield torch.profiler.profile, "__init__", _on_cores(torch.profiler.profile.__init__)
        # A measurement of the ceilings must not take minutes on two cores.
        yield rates, "GEMM_SIZES", {"cpu": (256,), "cuda": (256,)}
        yield rates, "DRAM_BYTES", {"cpu": (2**24, 2**26), "cuda": (2**24, 2**26)}


def _refuse() -> NoReturn:
    raise RuntimeError(
        "The NVIDIA driver on your system is too old (found version 11040). Please update your "
        "GPU driver."
    )


def _run_out_of_memory(*_: Any, **__: Any) -> NoReturn:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


def _fall_off_the_bus(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("CUDA error: GPU has fallen off the bus\nCompile with more.")


class Event:
    """An event of the machine's clock: all work before it is done when it is recorded."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._at_s = 0.0

    def record(self, *_: Any) -> None:
        self._at_s = time.perf_counter()

    def wait(self, *_: Any) -> None:
        """Do nothing."""

    synchronize = wait

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Event) -> float:
        return 1e3 * (end._at_s - self._at_s)


def _compiled(
    gpu: SimulatedGpu, compile_it: Callable[..., Any], function: Any = None, **options: Any
) -> Any:
    """Return a function compiled for the cores: inside, tensors say that they are there."""
    if function is None:
        return functools.partial(_compiled, gpu, compile_it, **options)
    on_cores = compile_it(function, **options)

    @functools.wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        with _pop_mode_temporarily():  # type: ignore[no-untyped-call]
            return on_cores(*given, **named)

    return call


def _fakes_on_cores(
    mode: Callable[..., contextlib.AbstractContextManager[Any]],
) -> Callable[..., contextlib.AbstractContextManager[Any]]:
    """Return a mode of tensors without values inside which tensors say that they are on cores."""

    @contextlib.contextmanager
    def entered(**options: Any) -> Iterator[Any]:
        with _pop_mode_temporarily(), mode(**options) as one:  # type: ignore[no-untyped-call]
            yield one

    return entered


def _on_cores(begin: Callable[..., None]) -> Callable[..., None]:
    """Return `profile.__init__` without records of the device: each would be a failed call."""

    @functools.wraps(begin)
    def mapped(one: Any, *, activities: Iterable[Any] = (), **more: Any) -> None:
        cores = [each for each in activities if each != torch.profiler.ProfilerActivity.CUDA]
        begin(one, activities=cores, **more)

    return mapped


_begun: Final = contextlib.ExitStack()
"""Keeps what was begun: nothing ends before the process does."""


def _peak_bytes(*_: Any) -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def begin() -> None:
    """Pretend until the process ends."""
    target = os.environ.get(VARIABLE, "sm_90")
    device = H100 if target == "sm_90" else pretended_device(target)
    faults = frozenset(filter(None, os.environ.get(FAULTS, "").split(",")))
    if "slice" in faults:
        device = replace(device, name=f"{device.name} MIG 1g.10gb", units=16, memory_bytes=10 << 30)
    _begun.enter_context(SimulatedGpu(device, faults).entered())
    if os.environ.get("TRITON_INTERPRET") == "1":
        pretended = ARCHITECTURES[triton_source.PRETENDED]
        triton_source.repair_interpreter()
        triton_source.InterpreterDriver(pretended, units=1).install()
