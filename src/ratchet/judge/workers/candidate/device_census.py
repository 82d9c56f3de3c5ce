"""Count a kernel's work on a GPU: the kernels that ran, their streams, and memory that is kept.

torch's profiler records one untimed batch in the candidate's own process. Like the census on a CPU,
the judge believes what counts against the candidate.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from ratchet.base.process.channel import Message
from ratchet.judge.workers.memory.device import WorkerDevice

Entry = Callable[..., object]
MOST_NAMES: Final = 200
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
    kind: str
    """As Kineto names it: kernel, gpu_memcpy, gpu_memset, cuda_runtime, ..."""
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
        with profile(activities=activities, acc_events=True) as recorded:
            self._touch()
            codes = run(counted)
            self._device.finish()
        results = recorded.profiler.kineto_results if recorded.profiler is not None else None
        self._events = [_event(one) for one in results.events()] if results is not None else []
        return codes

    def as_json(self) -> Message:
        """Return the counts, by the names of `DeviceCount`."""
        return count(self._events, self._allocated)

    def _touch(self) -> None:
        """Run a small kernel on the current stream, where the calls should run too."""
        size = 7 + secrets.randbelow(9)
        torch.full((size,), 1.0, device=self._device.memory.device).add_(1)
        self._device.finish()


def results_bytes(outputs: object, given: Sequence[object]) -> dict[int, int]:
    """Return the allocated bytes of a call's results by address; the batch keeps them all.

    Results that lie in the memory of what was given are not allocated.
    """
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
    return dict(list(found)[:MOST_NAMES])


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
