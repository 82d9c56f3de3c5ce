"""Count the work that a Python kernel leaves to others: operations of torch and numpy, launches.

The census runs inside the candidate's process, which could falsify it. So the judge believes what
counts against the candidate, and otherwise samples its threads from outside. torch's profiler
records the operations, in every thread and under every mode.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
from torch._C._autograd import DeviceType
from torch._C._profiler import _ExperimentalConfig, _ProfilerEvent, _TensorMetadata
from torch.autograd.profiler import profile, record_function
from torch.profiler import ProfilerActivity
from torch.profiler import profile as record_device

from ratchet.base.process.channel import Message
from ratchet.judge.workers.candidate.results import EMULATED, WANTS_FORMS
from ratchet.judge.workers.device import WorkerDevice

Entry = Callable[..., object]
MOST_NAMES: Final = 300
BUILT_IN: Final = ("aten", "prims", "quantized", "mkldnn", "onednn", "_quantized", "inductor")
MAYBE_COPIES: Final = ("aten::to", "aten::contiguous")
CROSSINGS: Final = ("numpy", "__array__", "__dlpack__", "tolist", "__reduce_ex__")
"""Methods of a tensor by which its values reach other libraries, or Python."""
ADDRESSED: Final = ("ctypes.cdata", "ctypes.string_at", "ctypes.wstring_at", "ctypes.memoryview_at")
"""Audit events of reads of memory by its address."""
OWN_MEMORY: Final = "/proc/self/mem"
"""The file that is a process's memory (proc(5)): no other file of a sandbox is called mem."""
SHARED_MEMORY: Final = "memfd:"  # The beginning of the name of a file that is a batch's memory
UNHEARD: Final = ("memmove", "cast")  # Functions of ctypes that read memory without an audit event
OF_MEMORY: Final = frozenset(
    f"{name}{size}"
    for size in ("", "64", "v", "v2")
    for name in (
        *("memcpy", "memmove", "mempcpy", "memccpy", "bcopy", "read", "pread", "write", "pwrite"),
        *("process_vm_read", "mmap", "mremap", "fork", "vfork", "snprintf", "sscanf"),
    )
)
"""Functions of the C library that ctypes may find, to read memory by its address, or to fork. A
kernel that finds one has no other use for it, whenever it calls it."""
FORKS: Final = ("os.fork", "os.forkpty")
"""Audit events of a copy of this process, whose work no census here counts."""
STORES: Final = {"create_masked_store": 3, "create_atomic_rmw": 4, "create_atomic_cas": None}
"""Methods of Triton's interpreter that write to memory, and which argument is the mask."""


_hooked: list[bool] = []
_listening: list[Callable[[str], None]] = []
"""Functions called on audit events; a hook stays as long as its process."""
_found: list[str] = []  # Functions of OF_MEMORY that ctypes has found since `listen`


def listen() -> None:
    """Hear from now on how Python reads memory by its address; call it before a source is loaded.

    What a source imports from ctypes by then is heard too.
    """
    if _hooked:
        return

    def noted(name: str) -> Callable[..., object]:
        original = getattr(ctypes, name)

        def call(*given: object) -> object:
            _tell(f"ctypes.{name}")
            return original(*given)

        return call

    for name in UNHEARD:
        setattr(ctypes, name, noted(name))
    sys.addaudithook(_heard)
    _hooked.append(True)


def _tell(event: str) -> None:
    if _listening:
        _listening[-1](event)


def _heard(event: str, given: tuple[object, ...]) -> None:
    if event in ADDRESSED or event in FORKS:
        _tell(event)
    elif event == "ctypes.dlsym" and given[1] in OF_MEMORY:
        _found.append(f"ctypes.{given[1]}")
    elif event == "open" and isinstance(given[0], (str, bytes, os.PathLike)) and _listening:
        name = os.path.basename(os.fsdecode(os.path.realpath(given[0])))
        if name == "mem" or name.startswith(SHARED_MEMORY):
            _tell(OWN_MEMORY)


class Census:
    """Counts over the calls of one batch."""

    def __init__(self) -> None:
        self._entry = f"ratchet entry {secrets.token_hex(8)}"
        self._launch = f"ratchet launch {secrets.token_hex(8)}"
        self._ops: dict[str, list[int]] = {}
        self._launches: dict[str, list[int]] = {}
        self._emulated: dict[str, Message] = {}
        self._running = ""
        self._marked = 0

    def take(self, run: Callable[[Entry], list[int]], entry: Entry) -> list[int]:
        """Call `run` with an entry whose calls are counted; return what `run` returns."""

        def counted(*given: object) -> object:
            with record_function(self._entry):
                return entry(*given)

        setattr(counted, WANTS_FORMS, getattr(entry, WANTS_FORMS, False))
        config = _ExperimentalConfig(profile_all_threads=True)
        with self._crossings(), self._interpreter(), self._emulator():
            recorded = profile(use_kineto=True, record_shapes=True, experimental_config=config)
            with recorded:
                codes = run(counted)
        assert recorded.kineto_results is not None
        self._count(recorded.kineto_results.experimental_event_tree())
        return codes

    def as_json(self) -> Message:
        """Return calls and elements by operation; calls, programs and stored elements by kernel."""
        return {
            "ops": dict(list(self._ops.items())[:MOST_NAMES]),
            "launches": dict(list(self._launches.items())[:MOST_NAMES]),
            "emulated": dict(list(self._emulated.items())[:MOST_NAMES]),
        }

    def _count(self, roots: list[_ProfilerEvent]) -> None:
        entries = [event for event in roots if event.name == self._entry]
        main = {event.start_tid for event in entries}
        for event in roots:
            if event.name == self._entry or event.start_tid not in main:
                self._visit(event)
        launches = sum(count for count, _, _ in self._launches.values())
        if self._marked != launches:  # the candidate forged the mark that hides what is below it
            self._add("marks that were forged", 0)

    def _visit(self, event: _ProfilerEvent) -> None:
        """Count the outermost operations, and not those that they call themselves."""
        if event.name == self._launch:
            self._marked += 1
            return
        space, found, _ = event.name.partition("::")
        if event.name in MAYBE_COPIES and not event.children:
            return  # nothing was copied
        if found and (space in BUILT_IN or not event.children):
            self._add(event.name[:100], _elements(getattr(event.typed[1], "inputs", ())))
            return
        for child in event.children:
            self._visit(child)

    def _add(self, name: str, elements: int) -> None:
        count = self._ops.setdefault(name, [0, 0])
        count[0] += 1
        count[1] += elements

    @contextmanager
    def _crossings(self) -> Iterator[None]:
        """Count values that leave torch, or come back, outside of a launch."""
        originals = {name: getattr(torch.Tensor, name) for name in CROSSINGS}
        back = torch.from_numpy

        def noted(name: str) -> Callable[..., object]:
            def cross(tensor: torch.Tensor, *given: object, **named: object) -> object:
                if not self._running:
                    self._add(f"Tensor.{name}", tensor.numel())
                return originals[name](tensor, *given, **named)

            return cross

        def from_numpy(array: np.ndarray) -> torch.Tensor:
            if not self._running:
                self._add("torch.from_numpy", array.size)
            return back(array)

        with (
            _replaced(torch.Tensor, {name: noted(name) for name in originals}),
            _replaced(torch, {"from_numpy": from_numpy}),
        ):
            yield

    @contextmanager
    def _interpreter(self) -> Iterator[None]:
        """Count what Triton's interpreter launches and stores, if it is loaded."""
        interpreter = sys.modules.get("triton.runtime.interpreter")
        if interpreter is None:
            yield
            return
        executor, builder = interpreter.GridExecutor, interpreter.InterpreterBuilder
        call = executor.__call__
        stores = {name: getattr(builder, name) for name in STORES}

        def launch(grid: Any, *given: object, **named: object) -> object:
            count = self._launches.setdefault(str(grid.fn.__name__)[:100], [0, 0, 0])
            count[0] += 1
            before, self._running = self._running, grid.fn.__name__[:100]
            try:
                with record_function(self._launch):
                    result = call(grid, *given, **named)
            finally:
                self._running = before
            count[1] += math.prod(interpreter.interpreter_builder.grid_dim)
            return result

        def store(name: str) -> Callable[..., object]:
            def write(built: object, *given: Any) -> object:
                if self._running:
                    place = STORES[name]
                    written = given[0] if place is None else given[place - 1]
                    held = np.asarray(written.data)
                    size = held.size if place is None else int(np.count_nonzero(held))
                    self._launches[self._running][2] += size
                return stores[name](built, *given)

            return write

        with (
            _replaced(executor, {"__call__": launch}),
            _replaced(builder, {name: store(name) for name in stores}),
        ):
            yield

    @contextmanager
    def _emulator(self) -> Iterator[None]:
        """Count what the emulator of machine code launches and stores, if it is loaded."""
        if not EMULATED.is_loaded:
            yield
            return

        def counted(launch: Callable[[], Any]) -> Any:
            before, self._running = self._running, "emulated"
            try:
                with record_function(self._launch):
                    done = launch()
            finally:
                self._running = before
            count = self._launches.setdefault(done.name[:100], [0, 0, 0])
            for place, more in enumerate((1, done.programs, done.stored_elements)):
                count[place] += more
            add_launch(self._emulated, done)
            return done

        with _replaced(EMULATED, {"count": counted}), self._addresses():
            yield

    @contextmanager
    def _addresses(self) -> Iterator[None]:
        """Count Python's reads of memory by its address, outside of a launch.

        Kernels that run for real are sampled from outside instead.
        """

        def addressed(event: str) -> None:
            if not self._running:
                self._add(event, 0)

        listen()
        _listening.append(addressed)
        try:
            yield
        finally:
            _listening.pop()
            for name in _found:
                self._add(name, 0)


@contextmanager
def _replaced(owner: object, new: Mapping[str, object]) -> Iterator[None]:
    before = {name: getattr(owner, name) for name in new}
    for name, value in new.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


def add_launch(told: dict[str, Message], done: Any, *, key: str = "", shown: bool = True) -> None:
    """Add the exact counts of an emulated launch to those of its kernel, or of another key."""
    counts = done.counts
    sums = told.setdefault(key or done.name[:100], {"by_mnemonic": {}})
    for name, more in counts.by_mnemonic.items():
        sums["by_mnemonic"][name] = sums["by_mnemonic"].get(name, 0) + more
    added = {"launches": 1, "programs": done.programs, "waves": done.waves}
    added["lanes"] = sum(counts.lanes.values())
    for name in ("bytes", "touched_bytes", "lines_64", "lds_bytes", "lds_conflicts"):
        added[name] = getattr(counts, name)
    for name, more in added.items():
        sums[name] = sums.get(name, 0) + more
    times = (sums.get("predicted_s", 0.0), done.predicted_s)
    sums["predicted_s"] = None if None in times else sum(times)
    if shown and "shown" not in sums:
        sums["shown"] = done.shown()
    places = sums.setdefault("by_place", {})
    for place, one in counts.by_place.items():
        there = places.setdefault(place, {"by_mnemonic": {}})
        for name, more in one.by_mnemonic.items():
            there["by_mnemonic"][name] = there["by_mnemonic"].get(name, 0) + more
        for name in ("lanes", "lines_64", "lds_conflicts"):
            there[name] = there.get(name, 0) + getattr(one, name)


def _elements(inputs: Iterable[object]) -> int:
    """Return the elements that an operation works on: its inputs, broadcast if they can be."""
    shapes = [tuple(one.sizes) for one in _tensors(inputs)]
    if not shapes:
        return 0
    largest: int = max(math.prod(shape) for shape in shapes)
    try:
        return max(largest, int(math.prod(np.broadcast_shapes(*shapes))))
    except ValueError:
        return largest


def _tensors(inputs: Iterable[object]) -> Iterator[_TensorMetadata]:
    for one in inputs:
        if isinstance(one, (list, tuple)):
            yield from _tensors(one)
        elif isinstance(one, _TensorMetadata):
            yield one


# Count a kernel's work on a GPU: the kernels that ran, their streams, and memory that is kept.
#
# torch's profiler records one untimed batch in the candidate's own process. Like the census on a
# CPU, the judge believes what counts against the candidate.
MOST_KERNELS: Final = 200
NAME_LENGTH: Final = 160
WORK: Final = ("kernel", "concurrent_kernel", "gpu_memcpy", "gpu_memset")
"""Kineto's names of a device's activities (libkineto's ActivityType.cpp)."""
COPIES: Final = {"Memcpy ": "gpu_memcpy", "Memset ": "gpu_memset"}
"""Prefixes of the names of copies (libkineto's CuptiActivity.cpp and RoctracerActivity.cpp)."""
BLOCK_BYTES: Final = 512
"""torch allocates memory on a GPU in multiples of so many bytes (c10's kMinBlockSize)."""
GRAPH: Final = re.compile(r"(cuda|hip)GraphLaunch|cuGraphLaunch")
LAUNCH: Final = re.compile(
    r"(cuda|hip)(Ext)?(Module)?Launch(Cooperative)?Kernel\w*|cuLaunchKernel\w*|hipExtModuleLaunch\w*"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceEvent:
    """One event of a profile: a kernel or copy on the device, or a call that started one."""

    name: str
    kind: str  # As Kineto names it: kernel, gpu_memcpy, gpu_memset, cuda_runtime, ...
    stream: int = 0
    start_ns: int = 0
    duration_ns: int = 0


class DeviceCensus:
    """Counts over the calls of one batch."""

    def __init__(self, device: WorkerDevice) -> None:
        self._device = device
        self._allocated: list[int] = []
        self._events: list[DeviceEvent] = []

    def warm(self) -> None:
        """Start the profiler once: its first start on a GPU takes seconds."""
        self.take(lambda _: [], lambda: ())

    def take(self, run: Callable[[Entry], list[int]], entry: Entry) -> list[int]:
        """Call `run` with an entry whose calls are counted; return what `run` returns."""

        held: dict[int, int] = {}

        def counted(*given: object) -> object:
            outputs = entry(*given)
            held.update(results_bytes(outputs, given))
            self._allocated.append(self._device.allocated_bytes() - sum(held.values()))
            return outputs

        on_gpu = self._device.memory.device.type == "cuda"
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
        self._touch()  # loads the marker's kernel
        # Without `acc_events` torch 2.11 warns of cycles, although there is one.
        with record_device(activities=activities, acc_events=True) as recorded:
            self._touch()
            codes = run(counted)
            self._device.finish()
        results = recorded.profiler.kineto_results if recorded.profiler is not None else None
        self._events = [_event(one) for one in results.events()] if results is not None else []
        return codes

    def as_json(self) -> Message:
        return count(self._events, self._allocated)

    def _touch(self) -> None:
        """Run a small kernel on the current stream, where the calls should run too."""
        size = 7 + secrets.randbelow(9)
        torch.full((size,), 1.0, device=self._device.memory.device).add_(1)
        self._device.finish()


def results_bytes(outputs: object, given: Sequence[object]) -> dict[int, int]:
    """Return the allocated bytes of a call's results by address; the batch keeps them all."""
    results = outputs if isinstance(outputs, tuple | list) else (outputs,)
    places = {one.untyped_storage().data_ptr() for one in given if isinstance(one, torch.Tensor)}
    storages = [one.untyped_storage() for one in results if isinstance(one, torch.Tensor)]
    return {
        one.data_ptr(): -(-one.nbytes() // BLOCK_BYTES) * BLOCK_BYTES
        for one in storages
        if one.data_ptr() not in places
    }


def count(events: Sequence[DeviceEvent], allocated: Sequence[int]) -> Message:
    """Return the counts of a profile; the device's first work in it is the marker's.

    `allocated` are the bytes after each call, without its results. Growth from the third
    call on is a cache.
    """
    work = sorted((one for one in events if one.kind in WORK), key=lambda one: one.start_ns)
    current = work[0].stream if work else 0
    marker = min(2, len(work))  # a fill, then an addition
    kernels: dict[str, list[int]] = {}
    elsewhere: dict[str, list[int]] = {}
    for one in work[marker:]:
        _add(kernels if one.kind not in WORK[2:] else {}, one)
        if one.stream != current:
            _add(elsewhere, one)
    growth = [after - before for before, after in pairwise(allocated[1:])]
    return {
        "kernels": _largest(kernels),
        "elsewhere": _largest(elsewhere),
        "streams": len({one.stream for one in work[marker:]}),
        "graphs": sum(1 for one in events if GRAPH.fullmatch(one.name)),
        "launches": max(0, sum(1 for one in events if LAUNCH.fullmatch(one.name)) - marker),
        "kept_bytes": max(0, min(growth, default=0)),
        "calls": len(allocated),
    }


def _add(counts: dict[str, list[int]], event: DeviceEvent) -> None:
    kept = counts.setdefault(event.name[:NAME_LENGTH], [0, 0])
    kept[0] += 1
    kept[1] += event.duration_ns


def _largest(counts: dict[str, list[int]]) -> dict[str, list[int]]:
    found: Iterable[tuple[str, list[int]]] = sorted(counts.items(), key=lambda one: -one[1][1])
    return dict(list(found)[:MOST_KERNELS])


def _event(event: Any) -> DeviceEvent:
    on_device = event.device_type() == DeviceType.CUDA
    kind = _kind(event)
    return DeviceEvent(
        name=event.name(),
        # A host's mark that is mirrored onto the device is no work.
        kind=kind if on_device or kind not in WORK else "",
        stream=event.device_resource_id() if on_device else 0,
        start_ns=event.start_ns(),
        duration_ns=event.duration_ns(),
    )


def _kind(event: Any) -> str:
    """Return Kineto's name of the event's kind, which torch reports since 2.13."""
    if hasattr(event, "activity_type"):
        return str(event.activity_type())
    if event.device_type() != DeviceType.CUDA:
        return ""
    if event.is_user_annotation():
        return "gpu_user_annotation"
    name = event.name()
    return next((kind for start, kind in COPIES.items() if name.startswith(start)), "kernel")
