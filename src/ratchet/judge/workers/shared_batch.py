"""A batch of calls in shared memory: built by the reference worker, run by either arm.

It has three blocks of the device's memory: tensors that a kernel may only read; tensors that it
changes, with their first values; and outputs, with every bit set, which is NaN in every float
dtype. So is what lies between inputs, and another pattern lies between outputs: they show a kernel
that reads or writes beyond them. None is
mapped before the clock runs. The first two are secret, and a candidate could write outputs that
need no inputs (zeros, a mask) into the third ahead of time.
"""

from __future__ import annotations

import functools
import math
import os
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import torch
from torch import Tensor

from ratchet.judge.abi import DTYPE_CODES
from ratchet.judge.problems.problem import Case, Problem
from ratchet.judge.sandbox.shared_memory import (
    IN_PLACE,
    INPUTS,
    NAMES,
    OUTPUTS,
    BatchLayout,
    Slot,
)
from ratchet.judge.workers.device import (
    BEYOND,
    BLANK,
    Block,
    HostBlock,
    WorkerDevice,
    bytes_of,
    filled,
    flat_bytes,
)

ALIGNMENT = 64
JITTER = 64  # Tensors start at a multiple of 64 bytes, shifted by up to this many times 64 more
SLACK_PAGES = 4096
PLACE_BYTES = 1 << 36
FREE_PLACES = range(0x100, 0x500)
"""Multiples of PLACE_BYTES at which 64-bit Linux puts nothing of its own: 16 to 80 TiB."""
LEAST_THREADED_BYTES = 256 << 10  # Below this a second thread costs more than it gives
LEAST_DRAWN = 1 << 17  # Elements, drawn in about a millisecond: the same
CODES = {getattr(torch, name): code for name, code in DTYPE_CODES.items()}
DTYPES = {code: dtype for dtype, code in CODES.items()}


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
        returns: bool = False,
        like: SharedBatch | None = None,
    ) -> None:
        """Draw the inputs of each seed; `outputs` are examples of the outputs' form.

        `cases` has the case of each call, if it differs from `case` in its values. `kept` holds
        what was drawn before, and receives what is drawn now. A batch that `returns` lies at the
        addresses that `rng` draws, so one with an equal `rng` lies there again. `like` is a batch
        of the same seeds and case, for another arm: its values lie at the same places of each
        block.
        """
        self.problem = problem
        self._memory = device.memory
        self.case = case
        self.writable_inputs = writable_inputs
        elements = len(seeds) * sum(math.prod(spec.shape) for spec in case.inputs)
        self._threaded = device.memory.seals and not problem.text and elements >= LEAST_DRAWN
        self.seeds = list(seeds)
        self.cases = cases or [case] * len(seeds)  # The case whose values each call has
        kinds = dict(zip(seeds, self.cases, strict=True))
        drawn = {} if kept is None else kept

        def draw(seed: int) -> None:
            values = problem.build_inputs(kinds[seed], seed, device.memory.device)
            drawn[seed] = [device.place(tensor) for tensor in values]

        self._rng = rng
        self._pieces: dict[int, list[memoryview]] = {}  # The contents of the machine's memory
        self.inputs: list[list[Tensor]]
        self.slots: list[list[Slot]]
        self._ends: list[int]
        if like is not None:
            self.inputs, self.slots, self._ends = like.inputs, like.slots, like._ends
            self._pieces = like._pieces
        else:
            self._each(draw, [seed for seed in kinds if seed not in drawn])
            self.inputs = [drawn[seed] for seed in seeds]
            self._ends = [0, 0, 0]
            fresh = [(one, torch.empty_like(one).stride()) for one in outputs[len(self.in_place) :]]
            self.slots = [self._place(tensors, fresh) for tensors in self.inputs]
        self._slack = [rng.randrange(SLACK_PAGES) for _ in NAMES]
        places = rng.sample(FREE_PLACES, len(NAMES)) if returns and device.memory.seals else ()
        self._bases = [PLACE_BYTES * place for place in places]
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
        """The descriptors of the three blocks, which stay this batch's."""
        return [block.descriptor for block in self._blocks]

    @property
    def inputs_can_change(self) -> bool:
        """True if a kernel could write to inputs that it may only read: then they are compared."""
        return self.writable_inputs or not self._memory.seals

    @property
    def in_place(self) -> list[int]:
        """The indices of the inputs that a kernel changes."""
        return [index for index, spec in enumerate(self.case.inputs) if spec.in_place]

    def layout(self) -> BatchLayout:
        """Return what an arm must know before the clock starts."""
        return BatchLayout(
            region_bytes=self._ends,
            slack_pages=self._slack,
            bases=self._bases,
            writable_inputs=self.writable_inputs,
            scalars=list(self.case.scalars),
            input_count=len(self.case.inputs),
            calls=self.slots,
        )

    def _place(
        self, tensors: Sequence[Tensor], fresh: Sequence[tuple[Tensor, tuple[int, ...]]]
    ) -> list[Slot]:
        slots = [
            self._slot(IN_PLACE if spec.in_place else INPUTS, tensor, tensor.stride())
            for spec, tensor in zip(self.case.inputs, tensors, strict=True)
        ]
        return slots + [self._slot(OUTPUTS, like, stride) for like, stride in fresh]

    def _slot(self, region: int, like: Tensor, stride: tuple[int, ...]) -> Slot:
        start = -(-self._ends[region] // ALIGNMENT) * ALIGNMENT
        start += ALIGNMENT * self._rng.randrange(JITTER)
        slot = Slot(region, start, CODES[like.dtype], tuple(like.shape), stride)
        self._ends[region] = start + slot.span_bytes
        return slot

    def _each(self, do: Callable[[int], None], items: Sequence[int]) -> None:
        """Call `do` on each item, on several threads: drawing values and copying each use one."""
        threads = len(os.sched_getaffinity(0)) if self._threaded and len(items) > 1 else 1

        def part(first: int) -> None:
            for item in items[first::threads]:
                do(item)

        list((_pool(threads).map if threads > 1 else map)(part, range(threads)))

    def _fill(self) -> None:
        """Write each block; large ones of the machine's memory each on a thread of its own."""
        threaded = self._memory.seals and sum(self._ends) > LEAST_THREADED_BYTES
        if not threaded:
            for region in range(len(NAMES)):
                self._fill_block(region)
            return
        pool = _pool(len(NAMES))
        parts = [pool.submit(self._fill_block, region) for region in range(len(NAMES))]
        wait(parts)  # a failure closes the blocks, and nobody may write to them then
        for part in parts:
            part.result()

    def _fill_block(self, region: int) -> None:
        block = self._blocks[region]
        values = [
            (slot, flat_bytes(tensor))
            for tensors, slots in zip(self.inputs, self.slots, strict=True)
            for tensor, slot in zip(tensors, slots, strict=False)  # outputs have no values
            if slot.region == region and region not in self._pieces
        ]
        if isinstance(block, HostBlock):
            if region not in self._pieces:
                self._pieces[region] = self._contents(region, block, values)
            block.fill(self._pieces[region])
        else:
            if region == OUTPUTS:
                block.blank()
            for slot, value in values:
                block.write(slot.offset, value)
        block.finish(fixed=region == INPUTS and not self.writable_inputs)

    def _contents(
        self, region: int, block: HostBlock, values: Sequence[tuple[Slot, Tensor]]
    ) -> list[memoryview]:
        """Return the bytes of a block, piece by piece: tensors, and what lies between them."""
        held = [(slot.offset, [bytes_of(value)]) for slot, value in values]
        if region == OUTPUTS:
            held = [
                (slot.offset, list(filled(slot.span_bytes, BLANK)))
                for slots in self.slots
                for slot in slots
                if slot.region == region
            ]
        gaps = self._gaps(region, block)
        held += [(begin, list(filled(end - begin, _beyond(region)))) for begin, end in gaps]
        held.sort(key=lambda one: one[0])
        return [piece for _, pieces in held for piece in pieces if len(piece)]

    def read(self, call: int, position: int) -> Tensor:
        """Return a private copy of one tensor of one call, as it is now."""
        slot = self.slots[call][position]
        dtype, size_bytes = DTYPES[slot.dtype], slot.span_bytes
        if not size_bytes:
            return torch.empty(tuple(slot.size), dtype=dtype, device=self._memory.device)
        flat = self._blocks[slot.region].read(slot.offset, size_bytes)
        return flat.view(dtype).as_strided(tuple(slot.size), tuple(slot.stride))

    def answers(self, call: int) -> list[Tensor]:
        """Return the new values of in-place tensors, then the outputs."""
        positions = [*self.in_place, *range(len(self.case.inputs), len(self.slots[call]))]
        return [self.read(call, position) for position in positions]

    def changed_input(self, call: int) -> int | None:
        """Return the index of the first input of this call that changed in any bit, if any."""
        for index, tensor in enumerate(self.inputs[call]):
            slot = self.slots[call][index]
            block = self._blocks[slot.region]
            if slot.region == INPUTS and not block.holds(slot.offset, flat_bytes(tensor)):
                return index
        return None

    def written(self, call: int) -> bool:
        """Return True if anything that the call may write has changed."""
        for position, slot in enumerate(self.slots[call]):
            if slot.region == INPUTS:
                continue
            blank = slot.region == OUTPUTS
            first = slot.span_bytes if blank else flat_bytes(self.inputs[call][position])
            if not self._blocks[slot.region].holds(slot.offset, first):
                return True
        return False

    def _gaps(self, region: int, block: HostBlock) -> Iterator[tuple[int, int]]:
        """Yield where the memory between a block's tensors, before and behind them, lies."""
        end = 0
        for slot in (slot for slots in self.slots for slot in slots if slot.region == region):
            if end < slot.offset:
                yield end, slot.offset
            end = slot.offset + slot.span_bytes
        if end < block.size_bytes:
            yield end, block.size_bytes

    @functools.cached_property
    def is_written_beyond(self) -> bool:
        """True if memory has changed that belongs to no tensor; asked after the last call alone."""
        return any(
            not block.is_filled(self._gaps(region, block), _beyond(region))
            for region, block in enumerate(self._blocks)
            if isinstance(block, HostBlock) and not block.is_fixed
        )

    def places(self, spots: Sequence[tuple[int, int, int]]) -> list[bytes]:
        """Return the bytes at some spots now: region, offset and size in bytes of each."""
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
        for block in self._blocks:
            block.close()
        self._blocks = []


def _beyond(region: int) -> int:
    """Return the byte that lies between a region's tensors."""
    return BEYOND if region == OUTPUTS else BLANK


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads)
