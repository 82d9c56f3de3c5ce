"""Read a file of torch.cuda.memory._dump_snapshot: the peak, by category and by stack.

Format: the docstring of torch.cuda.memory._snapshot (torch 2.11 to 2.13). The snapshot holds what
is allocated at its end and the last events before it. Played backwards, they give every moment
that the recorded history covers.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ratchet.base import Json
from ratchet.base.errors import PlanError
from ratchet.base.files import why_not_file

SUFFIXES: Final = (".pickle", ".pkl")
CATEGORIES: Final = (
    ("optimizer", ("/torch/optim/",)),
    ("backward", ("/torch/autograd/graph.py", "_engine_run_backward", "/torch/_tensor.py")),
    ("activations", ("/torch/nn/", "/torch/_inductor/", "torchinductor_", "/torch/_functorch/")),
)
"""A category and what the file or the function of one of an allocation's frames contains. The first
that applies counts; gradients and what backward passes through are one category."""
OTHERS: Final = ("/torch/", "<frozen", "??", "/python3")
"""Parts of file names in frames that are not the user's own."""
LARGEST: Final = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveBlock:
    """Allocations of one stack that are alive at the peak."""

    size_bytes: int
    count: int
    category: str
    stack: tuple[str, ...]
    """file:line function, innermost first, the user's own frames if there are any."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AllocatorSnapshot:
    """The fullest moment in a snapshot's file."""

    device: int
    peak_bytes: int
    reserved_bytes: int  # Bytes that the allocator had from the device when the snapshot was taken
    by_category: Mapping[str, int]
    largest: tuple[LiveBlock, ...]
    failed_bytes: int | None
    """The size of the last allocation that ran out of memory; None if none did."""


def is_snapshot(target: str) -> bool:
    """Return True if a command's argument is a snapshot's file."""
    return target.endswith(SUFFIXES)


def read_snapshot(path: Path) -> AllocatorSnapshot:
    """Read the device with the highest peak; PlanError for a file that is no snapshot.

    Nothing in the file is executed: a pickle that names a class or a function is refused.
    """
    document = _load(path)
    try:
        segments, traces = document["segments"], document["device_traces"]
        most = max((int(one.get("device", 0)) for one in segments), default=0)
        devices = range(max(len(traces), 1 + most))
        found = [_read_device(segments, traces, device) for device in devices]
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        why = "a part of it is missing or of another form"
        raise PlanError(f"{path} is not a memory snapshot ({why}): {_REMEDY}") from error
    if not found or not max(one.peak_bytes for one in found):
        raise PlanError(f"{path} holds no allocation: {_REMEDY}")
    return max(found, key=lambda one: one.peak_bytes)


_REMEDY: Final = (
    "call torch.cuda.memory._record_memory_history() before the step and "
    "torch.cuda.memory._dump_snapshot(PATH) after it"
)


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _load(path: Path) -> Json:
    if why := why_not_file(path):
        raise PlanError(f"snapshot {str(path)!r} {why}: {_REMEDY}")
    try:
        with path.open("rb") as file:
            return _PlainUnpickler(file).load()
    # Damaged bytes make an unpickler raise almost anything.
    except Exception as error:
        why = str(error) if isinstance(error, pickle.UnpicklingError) else "it is no pickle"
        raise PlanError(f"{path} is not a memory snapshot ({why}): {_REMEDY}") from error


def _read_device(
    segments: Sequence[Mapping[str, Json]], traces: Sequence[Json], device: int
) -> AllocatorSnapshot:
    own = [one for one in segments if int(one.get("device", 0)) == device]
    entries = traces[device] if device < len(traces) else []
    alive = _alive_at_peak(own, entries)
    categories: Counter[str] = Counter()
    stacks: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for one in alive:
        category = _category(one.frames)
        categories[category] += one.size_bytes
        stacks.setdefault((category, _stack(one.frames)), []).append(one.size_bytes)
    blocks = [
        LiveBlock(size_bytes=sum(sizes), count=len(sizes), category=category, stack=stack)
        for (category, stack), sizes in stacks.items()
    ]
    failed = [int(entry["size"]) for entry in entries if entry["action"] == "oom"]
    return AllocatorSnapshot(
        device=device,
        peak_bytes=sum(categories.values()),
        reserved_bytes=sum(int(segment["total_size"]) for segment in own),
        by_category=dict(categories.most_common()),
        largest=tuple(sorted(blocks, key=lambda one: -one.size_bytes)[:LARGEST]),
        failed_bytes=failed[-1] if failed else None,
    )


class _Held:
    """An allocation; playing backwards, its stack is known only where it was made."""

    def __init__(self, size_bytes: int, frames: Sequence[Json] = ()) -> None:
        self.size_bytes = size_bytes
        self.frames = frames


def _alive_at_peak(
    segments: Sequence[Mapping[str, Json]], entries: Sequence[Mapping[str, Json]]
) -> list[_Held]:
    """Return what is allocated at the fullest moment, playing the events backwards."""
    alive = _alive_at_end(segments)
    level = peak = sum(one.size_bytes for one in alive.values())
    best = list(alive.values())
    for entry in reversed(entries):
        if entry["action"] == "free_requested":
            one = alive[int(entry["addr"])] = _Held(int(entry["size"]))
            level += one.size_bytes
        elif entry["action"] == "alloc" and (gone := alive.pop(int(entry["addr"]), None)):
            gone.frames = entry.get("frames", ())
            level -= gone.size_bytes
        if level > peak:
            peak, best = level, list(alive.values())
    return best


def _alive_at_end(segments: Sequence[Mapping[str, Json]]) -> dict[int, _Held]:
    alive = {}
    for segment in segments:
        address = int(segment["address"])
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                here = int(block.get("address", address))
                alive[here] = _Held(int(block["size"]), block.get("frames", ()))
            address += int(block["size"])
    return alive


def _category(frames: Sequence[Json]) -> str:
    texts = [f"{one['filename']} {one['name']}" for one in frames]
    for category, words in CATEGORIES:
        if any(word in text for text in texts for word in words):
            return category
    return "rest"


def _stack(frames: Sequence[Json]) -> tuple[str, ...]:
    shown = [one for one in frames if not any(word in one["filename"] for word in OTHERS)]
    return tuple(f"{one['filename']}:{one['line']} {one['name']}" for one in (shown or frames)[:4])
