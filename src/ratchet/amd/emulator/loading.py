"""Load a Triton source in the sandbox so that its launches are emulated, on tensors in memory."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ratchet.amd.architectures import PretendedDevice
from ratchet.amd.compile.fake_driver import FakeDriver, assembly_number
from ratchet.amd.compile.torch_cuda import asked
from ratchet.amd.emulator.clock import LaunchClock
from ratchet.amd.emulator.decode import DecodedKernel
from ratchet.amd.emulator.launch import (
    INSTRUCTION_LIMIT,
    NOT_EMULATED,
    Emulator,
    FailedLaunch,
    KernelLaunch,
    LaunchCounts,
    LaunchMemory,
    LaunchValue,
    assembly,
    sampling_step,
    source_line,
    timeline,
)
from ratchet.amd.emulator.linking import PlacedVariables, linked_kernel
from ratchet.amd.emulator.pretending import GPU, MARK, EmulatedGpu
from ratchet.base.errors import KernelError
from ratchet.base.process.memory import free_bytes
from ratchet.judge.kernels.source_files import load_source, split_files
from ratchet.judge.problems.free_memory import GIB
from ratchet.judge.workers.candidate.results import EMULATED

if TYPE_CHECKING:
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef

EMULATOR = "RATCHET_EMULATOR"  # the same as in `with_torch`, which this module cannot import


UNWRITTEN = (
    *(("", name) for name in ("empty", "empty_like", "empty_strided", "empty_permuted")),
    *(("Tensor", name) for name in ("new_empty", "new_empty_strided")),
)
"""Functions of torch that return unwritten memory: an attribute of torch or "", and the name."""
LARGE_BYTES: Final = 1 << 30  # tensors above it are compared with the free memory
TIMED: Final = "triton.testing.do_bench, which returned nan: nothing is timed here"
INLINE: Final = re.compile(r' asm (?:[a-z]+ )*"((?:[^"\\]|\\.)*)", "([^"]*)"')
"""Inline assembly in LLVM's language, and the constraints of its operands."""
KERNEL: Final = re.compile(r"define amdgpu_kernel void @([\w.$]+)")
NOT_OF_AMD: Final = re.compile(r"(?:^|,)=?&?[bcdfhlq](?:,|$)")
"""Constraints of PTX: predicates, and registers of 16 and 64 bits or for floats."""
ELEMENT_BYTES = {"8": 1, "16": 2, "32": 4, "64": 8}


@dataclass(frozen=True, kw_only=True, slots=True)
class EmulatedLaunch:
    name: str
    programs: int
    waves: int
    stored_elements: int
    """An upper bound, counted in the smallest type that the kernel has pointers to."""
    counts: LaunchCounts
    kernel: DecodedKernel
    workgroup_waves: int
    lds_bytes: int  # LDS bytes of a workgroup
    file: str = ""  # the file of the kernel's source, if known
    step: int = 1  # every so many workgroups were executed
    memory_bytes: int = 0  # of all tensors that it was given
    predicted_s: float | None = None  # by the clock, if there is one

    def shown(self) -> dict[str, object]:
        """Return what a page shows besides the counts: assembly by line, resources, a timeline."""
        return {
            "assembly": assembly(self.kernel, self.counts),
            "timeline": timeline(self.kernel, self.counts),
            "vgprs": self.kernel.vgprs,
            "workgroup_waves": self.workgroup_waves,
            "workgroup_lds_bytes": self.lds_bytes,
        }


class _ToldAddresses:
    """Storages whose address a program's source asked for, which a launch may access."""

    def __init__(self, is_own: Callable[[str], bool]) -> None:
        """Note every `tensor.data_ptr()` from now on that is called in a file of the program's.

        `is_own` says of a file's path whether it is one.
        """
        import torch
        from torch.multiprocessing.reductions import StorageWeakRef

        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        plain = torch.Tensor.data_ptr

        def noted(tensor: torch.Tensor) -> int:
            if is_own(sys._getframe(1).f_code.co_filename):
                storage = tensor.untyped_storage()
                self._storages[storage.data_ptr()] = (StorageWeakRef(storage), storage.nbytes())  # type: ignore[no-untyped-call]
            return plain(tensor)

        torch.Tensor.data_ptr = noted  # type: ignore[assignment, method-assign]

    def memories(self) -> list[LaunchMemory]:
        """Return the memory of those storages that are still there."""
        for at in [at for at, (storage, _) in self._storages.items() if storage.expired()]:  # type: ignore[no-untyped-call]
            del self._storages[at]
        return [LaunchMemory(at, size) for at, (_, size) in self._storages.items()]


def poison_new_memory() -> None:
    """Set every bit of what `torch.empty` and its kin return: NaN, or -1 as an integer.

    A kernel that reads unwritten memory then gives wrong answers, not right ones by luck. What
    does not fit into this machine's free memory is an OutOfMemoryError.
    """
    import torch

    def poisoned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        @functools.wraps(make)
        def fresh(*given: object, **named: object) -> torch.Tensor:
            tensor = make(*given, **named)
            with torch._C.DisableTorchFunction():  # a mode may say that it is on `cuda`
                if tensor.device.type != "cpu" or tensor.dtype == torch.bool:
                    return tensor
                storage = tensor.untyped_storage()
                if storage.nbytes() > LARGE_BYTES and storage.nbytes() > (free := free_bytes()):
                    raise torch.OutOfMemoryError(
                        f"a tensor of {storage.nbytes() / GIB:.1f} GiB does not fit: emulated "
                        f"memory is this machine's, and {free / GIB:.1f} GiB of it are free"
                    )
                ctypes.memset(storage.data_ptr(), 0xFF, storage.nbytes())
            return tensor

        return fresh

    for place, name in UNWRITTEN:
        owner = getattr(torch, place) if place else torch
        setattr(owner, name, poisoned(getattr(owner, name)))


class EmulatorDriver(FakeDriver):
    """A driver through which Triton compiles for a GPU that is not here and emulates launches."""

    limit = INSTRUCTION_LIMIT  # the most wave instructions of one launch
    sample = 0  # about how many workgroups of a launch are executed; 0 is all
    clock: LaunchClock | None = None  # predicts each launch's time, if there is one
    has_prices = False
    """True if autotuners choose by `price_s`; else they keep the first configuration that works."""

    def __init__(
        self,
        device: PretendedDevice,
        library: Path,
        is_own: Callable[[str], bool],
        *,
        predicts: bool = False,
    ) -> None:
        """`is_own` says which files are the program's: their `data_ptr()` make memory known."""
        super().__init__(device.architecture, units=device.units)
        self.emulator = Emulator(library)
        if predicts:
            self.clock = LaunchClock(self.emulator)
        self.told = _ToldAddresses(is_own)
        self._tried_s: list[float] | None = None
        self.has_working = False
        """A configuration worked since the last launch, which an autotuner ends with."""

    def add(self, launch: EmulatedLaunch) -> None:
        """Take a launch that was executed."""

    def fail(self, launch: FailedLaunch) -> None:
        """Take a launch that was not."""

    def price_s(self, launch: EmulatedLaunch) -> float:
        return 0.0

    def launcher_cls(self, source: Any, metadata: Any) -> TritonLauncher:
        return TritonLauncher(self, source, metadata)

    @property
    def is_trying(self) -> bool:
        """True while an autotuner tries a configuration."""
        return self._tried_s is not None

    def take(self, launch: EmulatedLaunch) -> None:
        """Add a launch, or its price if an autotuner tries it."""
        if self._tried_s is not None and self.has_prices:
            self._tried_s.append(self.price_s(launch))
        else:
            self.add(launch)

    def time(self, call: Callable[[], object]) -> float:
        """Return a configuration's "time": its bound, or 1 for the first that works."""
        if "Autotuner" not in getattr(call, "__qualname__", ""):  # a program that times itself
            call()
            asked[TIMED] += 1
            return math.nan
        if self.has_working and not self.has_prices:
            return math.inf
        self.tuning, self._tried_s = not self.has_prices, []
        try:
            call()
        except KernelError:  # this configuration is not emulated; another may be
            return math.inf
        finally:
            tried, self._tried_s, self.tuning = self._tried_s, None, False
        self.has_working = True
        return sum(tried) if self.has_prices else 1.0

    def install(self) -> None:
        """Make Triton compile and launch through the driver, in this whole process."""
        from triton.backends.amd.compiler import HIPBackend

        os.environ["TRITON_DISABLE_LINE_INFO"] = "0"  # a fault names its line
        super().install()
        for name in ("make_amdgcn", "make_hsaco"):
            setattr(HIPBackend, name, staticmethod(_checked(self, getattr(HIPBackend, name))))

    def get_active_torch_device(self) -> torch.device:
        return GPU


EMULATED.is_loaded = True


@dataclass(kw_only=True, eq=False)
class EmulatedLauncher:
    driver: Any  # it has an `emulator`, and the memory that programs were `told` of
    kernel: Callable[[], DecodedKernel]
    kinds: Sequence[object]  # the types of the arguments
    threads: int
    shared_bytes: int
    element_bytes: int
    sides: tuple[int, int] | None = None
    """A block's threads along x and y, if it has several dimensions."""
    file: str = ""
    limit: int = INSTRUCTION_LIMIT
    sample: int = 0  # about how many workgroups are executed; 0 is all
    variables: PlacedVariables | None = None  # of the kernel's code, if no driver has them
    clock: LaunchClock | None = None

    def run(self, *given: Any) -> EmulatedLaunch:
        """Execute a launch, as a census counts it if one is taken.

        Takes the grid (x, y, z), stream, function, two metadata, two hooks, and the arguments.
        """
        launch: EmulatedLaunch = EMULATED.run(lambda: self._execute(*given))
        return launch

    def _execute(self, *given: Any) -> EmulatedLaunch:
        kernel = self.kernel()
        values: list[LaunchValue] = []
        memories = self.driver.told.memories()
        if self.variables is not None:
            memories += self.variables.memories
        for place, (kind, value) in enumerate(launch_values(self.kinds, given[9:])):
            base = getattr(value, "base", value)  # of a tensor that claims another type
            if hasattr(base, "untyped_storage"):
                storage = base.untyped_storage()
                if getattr(storage, MARK, False) and storage.nbytes():
                    raise ValueError(
                        f"Pointer argument (at {place}) cannot be accessed from Triton "
                        "(cpu tensor?)"
                    )
                memories.append(LaunchMemory(storage.data_ptr(), storage.nbytes()))
            if value is None or isinstance(value, (bool, int, float, bytes)):
                values.append((kind, 0 if value is None else value))
            elif hasattr(value, "data_ptr"):
                values.append((kind, value.data_ptr()))
            else:
                raise KernelError(f"an argument of type {type(value).__name__} is not emulated")
        x, y, z = (int(size) for size in given[:3])
        launch = KernelLaunch(
            kernel=kernel,
            grid=(x, y, z),
            threads=self.threads,
            shared_bytes=self.shared_bytes,
            values=values,
            memories=memories,
            sides=self.sides,
        )
        step = sampling_step(launch.grid, self.sample)
        counts = self.driver.emulator.run(launch, limit=self.limit, step=step)
        ran = -(-launch.workgroups // step)
        return EmulatedLaunch(
            name=kernel.name,
            programs=launch.workgroups,
            waves=launch.workgroups * launch.waves,
            stored_elements=counts.stored_bytes // self.element_bytes,
            counts=counts,
            kernel=kernel,
            workgroup_waves=launch.waves,
            lds_bytes=launch.lds_bytes,
            file=self.file,
            step=step,
            memory_bytes=sum({one.address: one.size for one in memories}.values()),
            predicted_s=self.clock.predicted_s(launch, counts, ran) if self.clock else None,
        )


class TritonLauncher(EmulatedLauncher):
    """Emulates the launches of a kernel that Triton compiled."""

    def __init__(self, driver: EmulatorDriver, source: Any, metadata: Any) -> None:
        self._name = str(metadata.name)
        function = getattr(getattr(source, "fn", None), "fn", None)
        kinds = list(source.signature.values())
        sizes = [
            ELEMENT_BYTES.get("".join(re.findall(r"\d+$", str(kind))), 1)
            for kind in kinds
            if str(kind).startswith("*")
        ]
        text = driver.texts_of(metadata.hash).get("amdgcn", "")
        super().__init__(
            driver=driver,
            kernel=functools.cache(lambda: self._linked(text)),
            kinds=kinds,
            threads=int(metadata.num_warps) * driver.architecture.wavefront_size,
            shared_bytes=int(metadata.shared),
            element_bytes=min(sizes, default=1),
            file=str(getattr(getattr(function, "__code__", None), "co_filename", "")),
            limit=driver.limit,
            sample=driver.sample,
        )
        self._has_scratch = bool(int(getattr(metadata, "global_scratch_size", 0) or 0))
        driver.utils.registers = assembly_number(text, "vgpr_count")  # programs ask for `n_regs`

    def _linked(self, text: str) -> DecodedKernel:
        kernel, self.variables = linked_kernel(text, self._name)
        return kernel

    def __call__(self, *given: Any) -> None:
        """Take grid (x, y, z), stream, function, two metadata, two hooks, arguments."""
        if math.prod(int(size) for size in given[:3]) == 0:  # as Triton's own launcher
            return
        is_known = False
        try:
            if self._has_scratch:
                raise KernelError("a kernel with scratch memory of Triton's own is not emulated")
            self.kernel()
            is_known = True
            if len(given[9:]) != len(self.kinds):
                raise KernelError(
                    f"the launch of {self._name} has {len(given[9:])} arguments and not "
                    f"{len(self.kinds)}: Triton passes the constexpr ones too"
                )
            if not self.driver.tuning:
                self.clock = None if self.driver.is_trying else self.driver.clock
                self.driver.has_working = self.driver.has_working and self.driver.is_trying
                self.driver.take(self.run(*given))
        except (KernelError, ValueError) as error:
            told = with_source_line(str(error), self.file)
            if not self.driver.is_trying:
                refused = not is_known or any(words in told for words in NOT_EMULATED)
                self.driver.fail(
                    FailedLaunch(
                        kernel=self._name, reason=told, kind="refused" if refused else "fault"
                    )
                )
            raise type(error)(told) from error


def with_source_line(message: str, file: str) -> str:
    """Return a fault's message with the text of its line, if that is one of `file`."""
    found = re.search(r" at ([^ :]+:\d+)", message)
    text = source_line(found[1], file) if found else ""
    return f"{message}: `{text}`" if text else message


def launch_values(kinds: Sequence[object], given: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Return a launch's arguments with their types: tuples flattened, descriptors taken apart.

    A host-side tensor descriptor is a pointer, sizes and strides, two flags (one in Triton 3.6),
    then sizes and strides again (Triton's `make_tensordesc_arg` for AMD).
    """
    for kind, value in zip(kinds, given, strict=False):
        if isinstance(kind, tuple):
            yield from launch_values(kind, value)
        elif str(kind).startswith("tensordesc"):
            element = str(kind).partition("<")[2].partition("[")[0]
            yield f"*{element}", value.base
            for size in (*value.shape, *value.strides):
                yield "i64", int(size)
            yield "i1", value.padding == "nan"
            if hasattr(value, "round_f32_to_tf32"):
                yield "i1", bool(value.round_f32_to_tf32)
            for size in value.shape:
                yield "i32", int(size)
            for size in value.strides:
                yield "i64", int(size)
        elif kind != "constexpr":
            yield str(kind), value


def load_emulated(
    source: str,
    entry: str,
    target: str,
    library: str | None = None,
    device: Mapping[str, object] | None = None,
) -> Callable[..., object]:
    """Return the entry of a Triton source whose kernels run as `target`'s machine code.

    It runs in the environment of `EmulatedGpu`. `library` is the compiled emulator; in a sandbox
    the judge hands it over. `device` is what `PretendedDevice.of` takes.
    """
    source, carried = split_files(source)
    path = carried.write(Path(tempfile.mkdtemp(prefix="triton-"))) / "kernel.py"
    os.environ.setdefault("TRITON_CACHE_DIR", str(path.parent))
    told = PretendedDevice.of(target, device or {})
    machine = Path(library or os.environ[EMULATOR])
    own = f"{path.parent}{os.sep}"  # files beside the source are the kernel's too
    driver = EmulatorDriver(told, machine, lambda file: file.startswith(own), predicts=True)
    poison_new_memory()
    driver.install()
    gpu = EmulatedGpu(told)
    with gpu.entered(), contextlib.chdir(path.parent):  # a source may read the files beside it
        found = load_source(source, entry, path)
    if not isinstance(found, type):
        return _entering(gpu, found)
    for name in ("__init__", "__call__"):  # a model's constructor and call name the GPU too
        setattr(found, name, _entering(gpu, getattr(found, name)))
    return found


def _entering(gpu: EmulatedGpu, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def on_emulated(*given: object, **named: object) -> Any:
        with gpu.entered():
            return function(*given, **named)

    return on_emulated


def _checked(driver: EmulatorDriver, step: Callable[..., Any]) -> Callable[..., Any]:
    """Return a step of Triton's compiling that names inline assembly which is not AMD's.

    LLVM ends the process where an operand is in a kind of register that AMD GPUs do not have.
    """

    @functools.wraps(step)
    def checked(text: Any, metadata: Any, options: Any) -> Any:
        other = [code for code, kinds in INLINE.findall(str(text)) if NOT_OF_AMD.search(kinds)]
        reason: RuntimeError | None = None
        try:
            if not other:
                return step(text, metadata, options)
        except RuntimeError as error:
            other = re.findall(r";+#ASMSTART\n\s*(.*)\n", str(text))
            if not other:
                raise
            reason = error
        first = other[0].partition("\\0A")[0].strip()
        told = f"the inline assembly `{first}` is not that of {options.arch}"
        defined = KERNEL.search(str(text))
        name = metadata.get("name") or (defined[1] if defined else "")
        driver.fail(FailedLaunch(kernel=name, reason=told, kind="fault"))
        raise KernelError(f"{told}: PTX does not compile for AMD GPUs") from reason

    return checked
