"""Bytes and FLOPs of optimizer ops on lists of tensors, whose shapes torch leaves out when long."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ratchet.trace.answers.work.call import GRADIENTS, SHAPES, Call, Counted, Shape, need

# aten/src/ATen/native/cuda/MultiTensorApply.cuh
KERNEL = re.compile(r"multi_tensor_apply")
CHUNK = 65_536  # Elements of a block
BLOCKS = 320  # Blocks of a launch at most
TENSORS = (110, 64, 48, 36, 30)  # Tensors of a launch at most, by the number of lists


@dataclass(frozen=True)
class Gradients:
    """The shapes of the gradients of one backward pass, in the order of the parameters."""

    shapes: tuple[Shape, ...] = ()

    def elements(self, lists: int, launches: int) -> int:
        """Return the elements of an update that made so many launches; 0 if none fits.

        An update takes all parameters, or the matrices or the rest of them (weight decay).
        """
        matrices = [shape for shape in self.shapes if len(shape) >= 2]
        rest = [shape for shape in self.shapes if len(shape) < 2]
        for shapes in (self.shapes, matrices, rest):
            sizes = [prod(shape) for shape in shapes]
            if sizes and launches_of(sizes, lists) == launches:
                return sum(sizes)
        return 0


def gradients(shapes: Sequence[Shape]) -> Gradients:
    """Find one pass in the gradients of all passes of a trace, in the order of time.

    The passes repeat one another. A backward accumulates the last parameter first. If nothing
    repeats, all are of one pass.
    """
    # The failure function of Knuth, Morris and Pratt gives the shortest period.
    border = [0] * len(shapes)
    known = 0
    for place in range(1, len(shapes)):
        while known and shapes[place] != shapes[known]:
            known = border[known - 1]
        known += shapes[place] == shapes[known]
        border[place] = known
    period = len(shapes) - (border[-1] if border else 0)
    if period and len(shapes) % period:
        period = len(shapes)
    return Gradients(tuple(reversed(shapes[:period])))


def launches_of(sizes: Sequence[int], lists: int) -> int:
    """Return how often torch launches a kernel for tensors of these sizes.

    A launch is full with `BLOCKS` blocks, or with the most tensors that fit. A tensor that a launch
    splits counts to both.
    """
    most = TENSORS[min(lists, len(TENSORS)) - 1]
    launches = tensors = blocks = 0
    for size in sizes:
        chunks = -(-size // CHUNK)
        tensors += chunks > 0
        for chunk in range(chunks):
            blocks += 1
            last = chunk == chunks - 1
            if blocks == BLOCKS or (tensors == most and last):
                launches += 1
                blocks, tensors = 0, 0 if last else 1
    return launches + (blocks > 0)


_READS_ALONE = ("_norm", "_max")
_FUSED = {
    # Lists that are read, that are written, and FLOPs an element. AdamW: decay 1, first moment 3,
    # second moment 4, root, epsilon and division 3, step 2.
    "_fused_adamw": (4, 3, 13),
    "_fused_adam": (4, 3, 13),
    "_fused_sgd": (3, 2, 5),
    "_fused_adagrad": (3, 2, 6),
}


def update(call: Call, found: Gradients, launches: int) -> Counted:
    """Count one update of lists; of those that torch left out, by the gradients' shapes."""
    count, width = len(call.lists), call.list_width
    need(count > 0)
    how, known = SHAPES, [sum(map(prod, one)) for one in call.lists]
    if not known[0]:
        elements = found.elements(count, launches)
        how, known = GRADIENTS, [elements] * count
    need(known[0] * width > 0)
    if call.base in _FUSED:
        reads, writes, flops = _FUSED[call.base]
        size = (reads + writes) * known[0] * width
        return Counted(flops * known[0], size, how, how)
    if call.base.endswith(("_zero", "_copy")):
        return Counted(0, count * known[0] * width, how, how)
    # Adam squares the gradient: both factors of `addcmul` are one list, which is read once.
    read = sum(one or known[0] for one in known[: 2 if "addcmul" in call.base else None])
    writes = 0 if call.base.endswith(_READS_ALONE) else known[0]
    return Counted(count * known[0], (read + writes) * width, how, how)
