"""Record torch's own allocations and frees during a call, in order, with marks among them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from ratchet.train.workloads.checkpointing import KEPT_OPS

MARK: Final = "ratchet:"
KEPT_NAMES: Final = frozenset(str(op).replace(".", "::", 1).partition(".")[0] for op in KEPT_OPS)
"""Names, as the profiler has them, of the ops whose outputs selective checkpointing keeps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocatorEvent:
    """An allocation (positive bytes), a free (negative bytes), a mark, or an op with a time."""

    at_ns: int
    size_bytes: int = 0
    pointer: int = 0
    mark: str = ""
    kept_ns: int = 0
    """Time of an op whose output selective checkpointing keeps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocationTrace:
    """Torch's allocations on one device during a call."""

    base_bytes: int
    """Bytes of the tensors that were alive when the call began."""
    events: tuple[AllocatorEvent, ...]
    peak_bytes: int
    """On a CPU the largest sum of the events; on a GPU torch.cuda.max_memory_allocated."""


def mark(name: str) -> None:
    """Put a mark among the events."""
    with record_function(MARK + name):
        pass


def record(call: Callable[[], object], device: torch.device) -> AllocationTrace:
    """Run `call` and return its allocations. Addresses tell what is freed from what is not."""
    gc.collect()
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    base_bytes = torch.cuda.memory_allocated(device) if on_gpu else alive_bytes()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities, profile_memory=True, acc_events=True) as profiled:
        call()
        if on_gpu:
            torch.cuda.synchronize(device)
    found = profiled.profiler
    assert found is not None and found.kineto_results is not None
    tree = found.kineto_results.experimental_event_tree()
    events = sorted(_events(tree, device.type), key=lambda one: one.at_ns)
    level = peak = 0
    for event in events:
        level += event.size_bytes
        peak = max(peak, level)
    measured = torch.cuda.max_memory_allocated(device) if on_gpu else base_bytes + peak
    return AllocationTrace(base_bytes=base_bytes, events=tuple(events), peak_bytes=measured)


def alive_bytes() -> int:
    """Return the bytes of all tensors on the CPU that Python can reach, each storage once."""
    sizes: dict[int, int] = {}
    for value in gc.get_objects():
        # type(), since isinstance asks lazy objects of other packages what they are.
        if issubclass(type(value), Tensor):
            for tensor in (value, value.grad if value.is_leaf else None):
                _add(tensor, sizes)
    return sum(sizes.values())


def _add(tensor: Tensor | None, sizes: dict[int, int]) -> None:
    if tensor is None or tensor.layout is not torch.strided:
        return
    try:
        storage = tensor.untyped_storage()
        if storage.device.type == "cpu" and storage.nbytes():
            sizes[storage.data_ptr()] = storage.nbytes()
    except (RuntimeError, NotImplementedError):
        return  # a subclass without a storage: a fake or a wrapper, whose own tensors are listed


def _events(tree: Any, device_type: str) -> Iterator[AllocatorEvent]:
    left = list(tree)
    while left:
        node = left.pop()
        left.extend(node.children)
        if node.tag == torch._C._profiler._EventType.Allocation:
            fields = node.extra_fields
            if fields.device.type == device_type:
                yield AllocatorEvent(
                    at_ns=node.start_time_ns, size_bytes=fields.alloc_size, pointer=fields.ptr
                )
        elif node.name.startswith(MARK):
            yield AllocatorEvent(at_ns=node.start_time_ns, mark=node.name.removeprefix(MARK))
        elif node.name in KEPT_NAMES:
            yield AllocatorEvent(at_ns=node.start_time_ns, kept_ns=node.duration_time_ns)
