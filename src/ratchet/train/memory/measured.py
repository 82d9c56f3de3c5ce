"""The memory of one measured step: its peak, what was alive then, and each block's share."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ratchet.train.memory.events import AllocationTrace, AllocatorEvent
from ratchet.train.memory.marks import (
    BACKWARD,
    BEGIN_BACKWARD,
    BEGIN_UPDATE,
    END,
    FORWARD,
    OUTSIDE,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryParts:
    """Bytes alive at a step's peak, by part."""

    parameters: int
    """Parameters and buffers."""
    gradients: int
    optimizer: int
    activations: int
    """Allocated in the forward pass and alive, at the peak, for the backward pass."""
    rest: int
    """The batch, the data, and what only passes through."""

    @property
    def states(self) -> int:
        """Return what the step needs for any batch."""
        return self.parameters + self.optimizer


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """A part of a step between two marks; bytes are absolute."""

    place: int | None
    """The block that runs; None outside of the blocks."""
    backward: bool
    start_bytes: int
    peak_bytes: int
    end_bytes: int
    time_s: float
    kept_s: float
    """Time of its ops whose outputs selective checkpointing keeps."""


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
    owners = _gradient_allocations(trace, gradients)
    held = kept = 0
    for event in alive:
        if (event.pointer, event.at_ns) in owners:
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


def _gradient_allocations(
    trace: AllocationTrace, gradients: Collection[int]
) -> set[tuple[int, int]]:
    last: dict[int, int] = {}
    for event in trace.events:
        if event.mark == BEGIN_UPDATE:
            break
        if event.size_bytes > 0 and event.pointer in gradients:
            last[event.pointer] = event.at_ns
    return set(last.items())


def stretches(trace: AllocationTrace) -> Iterator[Stretch]:
    """Cut the trace at its marks."""
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
