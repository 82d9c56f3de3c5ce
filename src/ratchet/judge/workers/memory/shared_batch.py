"""A batch of calls in shared memory: built by the reference worker, run by either arm.

Three blocks of the device's memory: what a kernel may only read; tensors that it changes, with
their first values; and outputs, filled with ones in every bit, which is NaN in every float dtype.
None is mapped before the clock runs: the first two are secret, and what need not be known to be
written (zeros, a mask) would be written into the third before.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ratchet.judge.workers.memory.blocks import Block, flat_bytes, span
from ratchet.judge.workers.memory.device import WorkerDevice
from ratchet.problems.dtypes import DTYPE_CODES
from ratchet.problems.problem import Case, Problem

ALIGNMENT = 64
JITTER = 64
"""Tensors start at a multiple of 64 bytes, shifted by up to this many times 64 more."""
SLACK_PAGES = 4096
LEAST_THREADED_BYTES = 256 << 10
"""Below this a second thread costs more than it gives."""
INPUTS, IN_PLACE, OUTPUTS = 0, 1, 2
NAMES = ("inputs", "in-place", "outputs")


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """The place of one tensor of one call."""

    region: int
    offset: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def span_bytes(self) -> int:
        """Bytes from the first to the last element."""
        return span(self.size, self.stride) * self.dtype.itemsize

    def as_json(self) -> list[Any]:
        """The slot as a candidate's worker takes it."""
        code = DTYPE_CODES[str(self.dtype).removeprefix("torch.")]
        return [self.region, self.offset, code, list(self.size), list(self.stride)]


class SharedBatch:
    """Calls of one case with fresh values at fresh places, and what their outputs should be."""

    def __init__(
        self,
        problem: Problem,
        case: Case,
        seeds: Sequence[int],
        outputs: Sequence[Tensor],
        *,
        writable_inputs: bool,
        cases: Sequence[Case] = (),
        rng: random.Random,
        device: WorkerDevice,
        kept: dict[int, list[Tensor]] | None = None,
    ) -> None:
        """Draw the inputs of each seed; `outputs` are examples of the outputs' form.

        `cases` are those of the calls where they differ from `case`, in their values alone.
        `kept` holds what was drawn already, and gets what is drawn now.
        """
        self.problem = problem
        self._memory = device.memory
        self.case = case
        self.writable_inputs = writable_inputs
        self._threaded = device.memory.seals and not problem.text
        self.seeds = list(seeds)
        self.cases = cases or [case] * len(seeds)
        """Whose values each call has."""
        kinds = dict(zip(seeds, self.cases, strict=True))
        drawn = {} if kept is None else kept

        def draw(seed: int) -> None:
            values = problem.build_inputs(kinds[seed], seed, device.memory.device)
            drawn[seed] = [device.place(tensor) for tensor in values]

        self._each(draw, [seed for seed in kinds if seed not in drawn])
        self.inputs = [drawn[seed] for seed in seeds]
        self._ends = [0, 0, 0]
        self._rng = rng
        self.slots = [self._place(tensors, outputs) for tensors in self.inputs]
        self._slack = [rng.randrange(SLACK_PAGES) for _ in NAMES]
        self._blocks: list[Block] = []
        try:
            for name, end in zip(NAMES, self._ends, strict=True):
                self._blocks.append(self._memory.block(name, end))
            self._fill()
            device.finish()
        except BaseException:
            self.release()
            raise

    @property
    def descriptors(self) -> list[int]:
        """Return what stands for the three memories in another process; they stay this batch's."""
        return [block.descriptor for block in self._blocks]

    @property
    def inputs_can_change(self) -> bool:
        """True if a kernel could write what it may only read, so that it must be compared."""
        return self.writable_inputs or not self._memory.seals

    @property
    def in_place(self) -> list[int]:
        """The inputs that a kernel changes, by number."""
        return [index for index, spec in enumerate(self.case.inputs) if spec.in_place]

    def layout(self) -> dict[str, Any]:
        """Return what an arm must know before the clock starts: places, but no values."""
        return {
            "region_bytes": self._ends,
            "slack_pages": self._slack,
            "writable_inputs": self.writable_inputs,
            "scalars": list(self.case.scalars),
            "input_count": len(self.case.inputs),
            "calls": [[slot.as_json() for slot in slots] for slots in self.slots],
        }

    def _place(self, tensors: Sequence[Tensor], outputs: Sequence[Tensor]) -> list[Slot]:
        slots = [
            self._slot(IN_PLACE if spec.in_place else INPUTS, tensor, tuple(tensor.stride()))
            for spec, tensor in zip(self.case.inputs, tensors, strict=True)
        ]
        fresh = outputs[len(self.in_place) :]
        return slots + [self._slot(OUTPUTS, o, tuple(torch.empty_like(o).stride())) for o in fresh]

    def _slot(self, region: int, like: Tensor, stride: tuple[int, ...]) -> Slot:
        start = -(-self._ends[region] // ALIGNMENT) * ALIGNMENT
        start += ALIGNMENT * self._rng.randrange(JITTER)
        slot = Slot(
            region=region, offset=start, dtype=like.dtype, size=tuple(like.shape), stride=stride
        )
        self._ends[region] = start + slot.span_bytes
        return slot

    def _each(self, do: Callable[[int], None], items: Sequence[int]) -> None:
        """On several threads: a generator of values has one alone, and so has a copy."""
        threads = len(os.sched_getaffinity(0)) if self._threaded else 1

        def part(first: int) -> None:
            for item in items[first::threads]:
                do(item)

        list((_pool(threads).map if threads > 1 else map)(part, range(threads)))

    def _fill(self) -> None:
        """Write each block, on threads of their own where they are the machine's memory."""
        threaded = self._memory.seals and sum(self._ends) > LEAST_THREADED_BYTES
        if not threaded:
            for region in range(len(NAMES)):
                self._fill_block(region)
            return
        pool = _pool(len(NAMES))
        parts = [pool.submit(self._fill_block, region) for region in range(len(NAMES))]
        wait(parts)  # whoever fails closes the blocks, which nobody may write to then
        for part in parts:
            part.result()

    def _fill_block(self, region: int) -> None:
        block = self._blocks[region]
        if region == OUTPUTS:
            block.blank()
        for tensors, slots in zip(self.inputs, self.slots, strict=True):
            for tensor, slot in zip(tensors, slots, strict=False):  # outputs have no values
                if slot.region == region:
                    block.write(slot.offset, flat_bytes(tensor))
        block.finish(fixed=region == INPUTS and not self.writable_inputs)

    def read(self, call: int, position: int) -> Tensor:
        """A private copy of one tensor of one call as it now stands in shared memory."""
        slot = self.slots[call][position]
        if not slot.span_bytes:
            return torch.empty(slot.size, dtype=slot.dtype, device=self._memory.device)
        flat = self._blocks[slot.region].read(slot.offset, slot.span_bytes)
        return flat.view(slot.dtype).as_strided(slot.size, slot.stride)

    def answers(self, call: int) -> list[Tensor]:
        """New values of in-place tensors, then outputs."""
        positions = [*self.in_place, *range(len(self.case.inputs), len(self.slots[call]))]
        return [self.read(call, position) for position in positions]

    def changed_input(self, call: int) -> int | None:
        """The first input of this call that is no longer, bit for bit, what it was."""
        for index, tensor in enumerate(self.inputs[call]):
            slot = self.slots[call][index]
            block = self._blocks[slot.region]
            if slot.region == INPUTS and not block.holds(slot.offset, flat_bytes(tensor)):
                return index
        return None

    def written(self, call: int) -> bool:
        """Return True if anything that the call may write differs from what it was at first."""
        for position, slot in enumerate(self.slots[call]):
            if slot.region == INPUTS:
                continue
            blank = slot.region == OUTPUTS
            first = slot.span_bytes if blank else flat_bytes(self.inputs[call][position])
            if not self._blocks[slot.region].holds(slot.offset, first):
                return True
        return False

    def places(self, spots: Sequence[tuple[int, int, int]]) -> list[bytes]:
        """Return what stands at some places now: region, offset and size in bytes of each."""
        found: dict[int, bytes] = {}
        for region, block in enumerate(self._blocks):
            places = [(offset, size) for at, offset, size in spots if at == region]
            found[region] = block.places(places) if places else b""
        told, ends = [], [0] * len(self._blocks)
        for region, _, size in spots:
            told.append(found[region][ends[region] : ends[region] + size])
            ends[region] += size
        return told

    def release(self) -> None:
        """Close the memories."""
        for block in self._blocks:
            block.close()
        self._blocks = []


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads)
