"""The memory of one measured step: every allocation, its peak, and each block's share."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils import _pytree as pytree

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
    kept_ns: int = 0  # Time of an op whose output selective checkpointing keeps


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocationTrace:
    """Torch's allocations on one device during a call."""

    base_bytes: int  # Bytes of the tensors that were alive when the call began
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


# Mark where each block's forward and backward pass begin and end.

FORWARD: Final = "forward"
BACKWARD: Final = "backward"
OUTSIDE: Final = "outside"  # Names of marks; those of a block end in its place, as in `forward 3`
BEGIN_BACKWARD: Final = "begin backward"
BEGIN_UPDATE: Final = "begin update"
END: Final = "end"


@contextmanager
def block_marks(blocks: Sequence[nn.Module]) -> Iterator[None]:
    """Mark the passes of eager blocks while the context is open.

    A block's backward pass begins when the gradient of its output is there, and ends when that of
    its input is.
    """
    places = {block: place for place, block in enumerate(blocks)}

    def begins(block: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if places[block] == 0:
            _on_gradient((args, kwargs), OUTSIDE)
        _mark(f"{FORWARD} {places[block]}")

    def ends(block: nn.Module, args: tuple[object, ...], output: object) -> None:
        _on_gradient(output, f"{BACKWARD} {places[block]}")
        _mark(OUTSIDE)

    hooks = [one.register_forward_pre_hook(begins, with_kwargs=True) for one in blocks]
    hooks += [one.register_forward_hook(ends) for one in blocks]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _on_gradient(values: object, name: str) -> None:
    """Put a mark when the gradient of the first differentiable tensor is there."""
    for leaf in pytree.tree_leaves(values):
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            leaf.register_hook(lambda _: _mark(name))  # type: ignore[no-untyped-call]
            return


def _mark(name: str) -> None:
    # On a GPU the time between two marks is that of the device only if nothing is under way.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    mark(name)


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryParts:
    """Bytes alive at a step's peak, by part."""

    parameters: int  # Parameters and buffers
    gradients: int
    optimizer: int
    activations: int  # Allocated in the forward pass and alive, at the peak, for the backward pass
    rest: int  # The batch, the data, and what only passes through

    @property
    def states(self) -> int:
        """Return what the step needs for any batch."""
        return self.parameters + self.optimizer


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """A part of a step between two marks; bytes are absolute."""

    place: int | None  # The block that runs; None outside of the blocks
    backward: bool
    start_bytes: int
    peak_bytes: int
    end_bytes: int
    time_s: float
    kept_s: float  # Time of its ops whose outputs selective checkpointing keeps


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredStep:
    """One step with one choice of checkpointing, as it ran."""

    checkpointing: str
    compiled: bool
    peak_bytes: int
    parts: MemoryParts
    stretches: tuple[Stretch, ...]


def parts_at_peak(
    trace: AllocationTrace, states: tuple[int, int], gradients: Collection[int]
) -> MemoryParts:
    """Return the parts at the peak; `states` are the bytes of parameters and of the optimizer.

    `gradients` are the addresses that hold gradients when the update begins. An address is reused:
    only its last allocation before that counts.
    """
    alive, began = _alive_at_peak(trace)
    last: dict[int, int] = {}
    for event in trace.events:
        if event.mark == BEGIN_UPDATE:
            break
        if event.size_bytes > 0 and event.pointer in gradients:
            last[event.pointer] = event.at_ns
    held = kept = 0
    for event in alive:
        if last.get(event.pointer) == event.at_ns:
            held += event.size_bytes
        elif began is not None and event.at_ns < began:
            kept += event.size_bytes
    parameters, optimizer = states
    rest = trace.peak_bytes - parameters - optimizer - held - kept
    return MemoryParts(
        parameters=parameters, gradients=held, optimizer=optimizer, activations=kept, rest=rest
    )


def _alive_at_peak(trace: AllocationTrace) -> tuple[list[AllocatorEvent], int | None]:
    """Return the step's own allocations that are alive at the peak, and when backward began.

    Before the update, everything of the forward pass is kept for the backward pass; in the update
    nothing is. A peak within the forward pass counts all that is alive as activations.
    """
    alive: dict[int, AllocatorEvent] = {}
    level = peak = 0
    found: list[AllocatorEvent] = []
    began = updates = None
    at_peak = 0
    for event in trace.events:
        began = event.at_ns if event.mark == BEGIN_BACKWARD else began
        updates = event.at_ns if event.mark == BEGIN_UPDATE else updates
        if event.size_bytes > 0:
            alive[event.pointer] = event
        elif event.size_bytes < 0:
            alive.pop(event.pointer, None)
        level += event.size_bytes
        if level > peak:
            peak, found, at_peak = level, list(alive.values()), event.at_ns
    return found, None if updates is not None and at_peak > updates else began


def stretches(trace: AllocationTrace) -> Iterator[Stretch]:
    level = start = peak = trace.base_bytes
    began, kept, name = trace.events[0].at_ns, 0, OUTSIDE
    for event in trace.events:
        if event.mark and event.mark not in (BEGIN_BACKWARD, BEGIN_UPDATE):
            word, _, place = name.partition(" ")
            yield Stretch(
                place=int(place) if word in (FORWARD, BACKWARD) else None,
                backward=word == BACKWARD,
                start_bytes=start,
                peak_bytes=peak,
                end_bytes=level,
                time_s=(event.at_ns - began) / 1e9,
                kept_s=kept / 1e9,
            )
            start = peak = level
            began, kept, name = event.at_ns, 0, event.mark
            if name == END:
                return
        level += event.size_bytes
        peak = max(peak, level)
        kept += event.kept_ns
