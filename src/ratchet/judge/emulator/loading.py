"""Load a Triton source in the sandbox so that its launches are emulated, on tensors in memory."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import re
import struct
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ratchet.base.errors import KernelError
from ratchet.judge.emulator.decode import DecodedKernel, decode
from ratchet.judge.emulator.launch import Emulator, LaunchCounts, LaunchMemory, LaunchValue
from ratchet.judge.workers.candidate.architectures import ARCHITECTURES
from ratchet.judge.workers.candidate.fake_driver import CompiledTexts, FakeDriver
from ratchet.judge.workers.candidate.triton_source import load_source
from ratchet.problems.on_cores import on_cores

EMULATOR = "RATCHET_EMULATOR"
"""The same as in `with_torch`, which this module cannot import."""
MOST_TOLD = 4096
"""The last storages whose addresses are remembered."""


UNWRITTEN = (
    *(("", name) for name in ("empty", "empty_like", "empty_strided", "empty_permuted")),
    *(("Tensor", name) for name in ("new_empty", "new_empty_strided")),
)
"""Functions of torch that return unwritten memory: an attribute of torch or "", and the name."""
EMULATED_HIP: Final = "6.4.0"
"""What `torch.version.hip` says to a launcher: public code chooses warps and blocks by it."""
ELEMENT_BYTES = {"8": 1, "16": 2, "32": 4, "64": 8}


@dataclass(frozen=True, kw_only=True, slots=True)
class EmulatedLaunch:
    """One launch that was executed."""

    name: str
    programs: int
    waves: int
    stored_elements: int
    """An upper bound, counted in the smallest type that the kernel has pointers to."""
    counts: LaunchCounts
    kernel: DecodedKernel
    workgroup_waves: int
    lds_bytes: int
    """LDS bytes of a workgroup."""

    def shown(self) -> dict[str, Any]:
        """Return what a page shows besides the counts: assembly by line, resources, a timeline."""
        return {
            "assembly": assembly(self.kernel, self.counts),
            "timeline": timeline(self.kernel, self.counts),
            "vgprs": self.kernel.vgprs,
            "workgroup_waves": self.workgroup_waves,
            "workgroup_lds_bytes": self.lds_bytes,
        }


class _ToldAddresses:
    """Storages whose address the candidate's source asked for, which a launch may access."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._storages: dict[int, Any] = {}

    def install(self) -> None:
        """Note every `tensor.data_ptr()` of that source."""
        import torch

        plain = torch.Tensor.data_ptr

        def noted(tensor: Any) -> int:
            if sys._getframe(1).f_code.co_filename == self._path:
                storage = tensor.untyped_storage()
                self._storages.pop(storage.data_ptr(), None)
                self._storages[storage.data_ptr()] = storage
                if len(self._storages) > MOST_TOLD:
                    del self._storages[next(iter(self._storages))]
            return plain(tensor)

        torch.Tensor.data_ptr = noted  # type: ignore[assignment, method-assign]

    def memories(self) -> list[LaunchMemory]:
        """Return the memory of these storages."""
        return [LaunchMemory(at, storage.nbytes()) for at, storage in self._storages.items()]


def poison_new_memory() -> None:
    """Set every bit of what `torch.empty` and its kin return: NaN, or -1 as an integer.

    A kernel that reads unwritten memory then gives wrong answers, not right ones by luck.
    """
    import torch

    def poisoned(make: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(make)
        def fresh(*given: Any, **named: Any) -> Any:
            tensor = make(*given, **named)
            if tensor.device.type == "cpu" and tensor.dtype != torch.bool:
                storage = tensor.untyped_storage()
                ctypes.memset(storage.data_ptr(), 0xFF, storage.nbytes())
            return tensor

        return fresh

    for place, name in UNWRITTEN:
        owner: Any = getattr(torch, place) if place else torch
        setattr(owner, name, poisoned(getattr(owner, name)))


class EmulatorDriver(FakeDriver):
    """A driver through which Triton compiles for a GPU that is not here and emulates launches."""

    def __init__(
        self,
        target: str,
        library: Path,
        path: Path,
        matrix_cycles: Mapping[str, int] | None = None,
    ) -> None:
        """`path` is the file of the candidate's source; `matrix_cycles` as in `Emulator`."""
        super().__init__(ARCHITECTURES[target], units=1, compiled=CompiledTexts())
        self.emulator = Emulator(library, matrix_cycles)
        self.told = _ToldAddresses(path)

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        """Return the launcher of a compiled kernel."""
        return EmulatedLauncher(self, source, metadata)

    def benchmark(
        self, call: Callable[[], Any], *_: Any, quantiles: Any = None, **__: Any
    ) -> float | list[float]:
        """Return the same time for every configuration, without running it."""
        return 1.0 if quantiles is None else [1.0] * len(quantiles)

    def get_active_torch_device(self) -> Any:
        """Return the device of the tensors."""
        import torch

        return torch.device("cpu")


class EmulatedLauncher:
    """Emulates a launch."""

    sides: tuple[int, int] | None = None
    """A block's threads along x and y, if it has several dimensions."""

    def __init__(self, driver: EmulatorDriver, source: Any, metadata: Any) -> None:
        self._driver = driver
        self._kinds = [str(kind) for kind in source.signature.values()]
        self._threads = int(metadata.num_warps) * driver.architecture.wavefront_size
        self._shared = int(metadata.shared)
        sizes = [
            ELEMENT_BYTES.get("".join(re.findall(r"\d+$", kind)), 1)
            for kind in self._kinds
            if kind.startswith("*")
        ]
        self._element_bytes = min(sizes, default=1)
        text = driver.compiled.of(metadata.hash).get("amdgcn", "")
        self._kernel = functools.cache(lambda: decode(text))
        if int(getattr(metadata, "global_scratch_size", 0) or 0):
            raise KernelError("a kernel with scratch memory of Triton's own is not emulated")

    def __call__(self, *given: Any) -> None:
        """Take grid (x, y, z), stream, function, two metadata, two hooks, arguments."""
        self.run(*given)

    def run(self, *given: Any) -> EmulatedLaunch:
        """Execute the launch. A census replaces this method while it counts."""
        kernel: DecodedKernel = self._kernel()
        values, memories = [], self._driver.told.memories()
        for value, kind in zip(given[9:], self._kinds, strict=False):
            if kind == "constexpr":
                continue
            if hasattr(value, "untyped_storage"):
                storage = value.untyped_storage()
                memories.append(LaunchMemory(storage.data_ptr(), storage.nbytes()))
                values.append(LaunchValue(kind, value.data_ptr()))
            elif isinstance(value, (bool, int, float, bytes)):
                values.append(LaunchValue(kind, value))
            elif value is None:
                values.append(LaunchValue(kind, 0))
            else:
                raise KernelError(f"an argument of type {type(value).__name__} is not emulated")
        grid = [int(size) for size in given[:3]]
        counts = self._driver.emulator.run(
            kernel,
            grid=grid,
            threads=self._threads,
            shared_bytes=self._shared,
            sides=self.sides,
            values=values,
            memories=memories,
        )
        return EmulatedLaunch(
            name=kernel.name,
            programs=math.prod(grid),
            waves=math.prod(grid) * -(-self._threads // kernel.lanes),
            stored_elements=counts.stored_bytes // self._element_bytes,
            counts=counts,
            kernel=kernel,
            workgroup_waves=-(-self._threads // kernel.lanes),
            lds_bytes=max(kernel.lds_bytes, self._shared),
        )


def load_emulated(
    source: str,
    entry: str,
    target: str,
    library: str | None = None,
    matrix_cycles: Mapping[str, int] | None = None,
) -> Callable[..., Any]:
    """Return the entry of a Triton source whose kernels run as `target`'s machine code.

    Its launcher meets the emulated GPU: what it puts on `cuda` lies in main memory, and
    `torch.version.hip` names a version.

    `library` is the compiled emulator; in a sandbox the judge hands it over.
    """
    os.environ["TRITON_DISABLE_LINE_INFO"] = "0"  # a fault names its line
    path = Path(tempfile.mkdtemp(prefix="triton-")) / "kernel.py"
    os.environ.setdefault("TRITON_CACHE_DIR", str(path.parent))
    driver = EmulatorDriver(target, Path(library or os.environ[EMULATOR]), path, matrix_cycles)
    driver.told.install()
    poison_new_memory()
    install(driver)
    with on_cores("cuda"):
        found = load_source(source, entry, path)
    if isinstance(found, type):
        return found

    @functools.wraps(found)
    def on_emulated(*given: Any, **named: Any) -> Any:
        with on_cores("cuda"):
            return found(*given, **named)

    return on_emulated


def install(driver: EmulatorDriver) -> None:
    """Make Triton compile and launch through the driver, in this whole process."""
    import torch
    import triton
    import triton.testing

    torch.version.hip = torch.version.hip or EMULATED_HIP
    triton.knobs.compilation.listener = driver.compiled
    triton.runtime.driver.set_active(driver)
    triton.testing.do_bench = driver.benchmark
    triton.testing.do_bench_cudagraph = driver.benchmark
    triton.compiler.compiler.max_shared_mem.cache_clear()


MOST_INSTRUCTIONS: Final = 2000
"""Most instructions of a kernel; the most executed are kept."""
SLOTS: Final = 240
"""Slots of the waves' cycles; each shows the line with most of its cycles."""
MOST_WAVES: Final = 16
MOST_BARRIERS: Final = 200
RUN: Final = struct.Struct("<3I")


def assembly(kernel: DecodedKernel, counts: LaunchCounts) -> dict[str, list[tuple[str, int]]]:
    """Return the executed instructions and their counts, by source line."""
    executed = [at for at, count in enumerate(counts.executed) if count]
    if len(executed) > MOST_INSTRUCTIONS:
        hottest = sorted(executed, key=lambda at: -counts.executed[at])
        executed = sorted(hottest[:MOST_INSTRUCTIONS])
    found: dict[str, list[tuple[str, int]]] = {}
    for at in executed:
        line = found.setdefault(kernel.places[at], [])
        line.append((kernel.texts[at][:160], counts.executed[at]))
    return found


def timeline(kernel: DecodedKernel, counts: LaunchCounts) -> dict[str, Any]:
    """Return the line that each wave of the first workgroup ran, in slots of counted cycles.

    Waves leave a barrier together.
    """
    waves = [list(RUN.iter_unpack(one)) for one in counts.runs[:MOST_WAVES]]
    longest: dict[int, int] = {}
    for runs in waves:
        own: dict[int, int] = {}
        for epoch, _, cycles in runs:
            own[epoch] = own.get(epoch, 0) + cycles
        for epoch, cycles in own.items():
            longest[epoch] = max(longest.get(epoch, 0), cycles)
    begins: dict[int, int] = {}
    total = 0
    for epoch in sorted(longest):
        begins[epoch] = total
        total += longest[epoch]
    places = list(dict.fromkeys(kernel.places))
    slot = max(1, -(-total // SLOTS))
    return {
        "cycles": total,
        "slot": slot,
        "barriers": sorted(begins.values())[1 : MOST_BARRIERS + 1],
        "places": places,
        "waves": [_slots(runs, begins, slot) for runs in waves],
    }


def _slots(
    runs: list[tuple[Any, ...]], begins: dict[int, int], slot: int
) -> list[tuple[int, int, int]]:
    """Return runs of slots of one wave: the number of the line, the first slot and one past it."""
    most: dict[int, dict[int, int]] = {}
    at, before = 0, -1
    for epoch, line, cycles in runs:
        if epoch != before:
            at, before = begins[epoch], epoch
        end = at + cycles
        for number in range(at // slot, -(-end // slot)):
            inside = min(end, (number + 1) * slot) - max(at, number * slot)
            lines = most.setdefault(number, {})
            lines[line] = lines.get(line, 0) + inside
        at = end
    found: list[tuple[int, int, int]] = []
    for number in sorted(most):
        lines = most[number]
        line = max(lines, key=lambda one: lines[one])
        if found and found[-1][0] == line and found[-1][2] == number:
            found[-1] = (line, found[-1][1], number + 1)
        else:
            found.append((line, number, number + 1))
    return found
