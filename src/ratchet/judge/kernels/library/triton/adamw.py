"""AdamW's update and the global norm in Triton, each in one launch over all parameters.

An update reads gradient, moments and weight once, and writes moments, weight, its rounded copy and
the cleared gradient in the same pass (arXiv:1711.05101, algorithm 2, in the order of
torch.optim.AdamW). Programs find their tensor in a table of addresses. The norm is summed in a
fixed order: two runs give the same bits.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, type-arg, untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

FIELDS = 5
"""Tensors per parameter: gradient, both moments, weight, copy."""
ALIGNMENT = 16
"""Alignment of addresses (bytes) and sizes (elements) with which a lane moves 128 bits at once."""
UPDATE_BLOCK = 2048
NORM_BLOCK = 4096
NORM_PASSES = 8
"""Blocks that one program of the norm sums."""


@triton.jit
def _owner(first_block, block, count):
    """Return the last tensor whose first block is at most `block`, by bisection."""
    low = 0
    high = count
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(first_block + middle) <= block:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def _pointer(table, place, TYPE: tl.constexpr, ALIGNMENT: tl.constexpr):
    return tl.multiple_of(tl.load(table + place).to(tl.pointer_type(TYPE)), ALIGNMENT)


@triton.jit
def _size(sizes, owner, ALIGNMENT: tl.constexpr):
    return tl.multiple_of(tl.load(sizes + owner), ALIGNMENT)


@triton.jit
def adamw_kernel(
    addresses,
    sizes,
    first_block,
    count,
    lr_decay,
    step_size,
    rest1,
    beta2,
    rest2,
    root,
    eps,
    coefficient,
    GRAD: tl.constexpr,
    WEIGHT: tl.constexpr,
    COPY: tl.constexpr,
    ZERO: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    block = tl.program_id(0)
    owner = _owner(first_block, block, count)
    start = (block - tl.load(first_block + owner)).to(tl.int64) * BLOCK
    at = tl.arange(0, BLOCK)
    kept = at < _size(sizes, owner, ALIGNMENT) - start
    row = owner * 5
    grad = _pointer(addresses, row, GRAD, ALIGNMENT) + start
    moment = _pointer(addresses, row + 1, tl.float32, ALIGNMENT) + start
    square = _pointer(addresses, row + 2, tl.float32, ALIGNMENT) + start
    weight = _pointer(addresses, row + 3, WEIGHT, ALIGNMENT) + start
    scaled = tl.load(grad + at, kept, 0.0).to(tl.float32) * coefficient
    first = tl.load(moment + at, kept, 0.0)
    first += rest1 * (scaled - first)
    second = tl.load(square + at, kept, 0.0) * beta2 + rest2 * scaled * scaled
    value = tl.load(weight + at, kept, 0.0).to(tl.float32)
    value = value * lr_decay - step_size * (first / (tl.sqrt_rn(second) / root + eps))
    tl.store(moment + at, first, kept)
    tl.store(square + at, second, kept)
    tl.store(weight + at, value.to(WEIGHT), kept)
    if COPY is not None:
        copy = _pointer(addresses, row + 4, COPY, ALIGNMENT) + start
        tl.store(copy + at, value.to(COPY), kept)
    if ZERO:
        tl.store(grad + at, tl.zeros((BLOCK,), GRAD), kept)


@triton.jit
def square_sum_kernel(
    addresses,
    sizes,
    first_block,
    count,
    partial,
    GRAD: tl.constexpr,
    ALIGNMENT: tl.constexpr,
    BLOCK: tl.constexpr,
    PASSES: tl.constexpr,
):
    """partial[program] = the sum of the squares of PASSES blocks of one tensor."""
    block = tl.program_id(0)
    owner = _owner(first_block, block, count)
    start = (block - tl.load(first_block + owner)).to(tl.int64) * (BLOCK * PASSES)
    at = tl.arange(0, BLOCK)
    left = _size(sizes, owner, ALIGNMENT) - start
    grad = _pointer(addresses, owner, GRAD, ALIGNMENT) + start
    sums = tl.zeros((BLOCK,), tl.float32)
    for offset in range(0, BLOCK * PASSES, BLOCK):
        value = tl.load(grad + offset + at, at < left - offset, 0.0).to(tl.float32)
        sums += value * value
    tl.store(partial + block, tl.sum(sums, 0))


@triton.jit
def total_kernel(partial, out, count, BLOCK: tl.constexpr):
    """out[0] = the sum of partial [count], in one program."""
    at = tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, count, BLOCK):
        sums += tl.load(partial + start + at, at < count - start, 0.0)
    tl.store(out, tl.sum(sums, 0))


TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


class _Table:
    """Addresses and sizes of one launch's tensors, on their device."""

    def __init__(self, members: Sequence[Sequence[Tensor]], block: int) -> None:
        sizes = [member[0].numel() for member in members]
        blocks = [triton.cdiv(size, block) for size in sizes]
        firsts = [sum(blocks[:index]) for index in range(len(blocks))]
        pointers = [tensor.data_ptr() for member in members for tensor in member]
        self.programs = sum(blocks)
        # One copy to the device for all three.
        rows = torch.tensor([*firsts, *sizes, *pointers], dtype=torch.int64)
        rows = rows.to(members[0][0].device, non_blocking=True)
        count = len(members)
        self.first_block, self.sizes, self.addresses = rows.split([count, count, len(pointers)])
        self.count = count


def _alignment(member: Sequence[Tensor]) -> int:
    numbers = [member[0].numel(), *(tensor.data_ptr() for tensor in member)]
    return ALIGNMENT if all(number % ALIGNMENT == 0 for number in numbers) else 1


def adamw_step(*tensors_and_scalars) -> tuple[Tensor, ...]:
    """Update [grad, exp_avg, exp_avg_sq, weight, copy] in place, five for each parameter.

    A copy may be empty. scalars: lr, beta1, beta2, eps, weight_decay, step, coefficient, zero.
    """
    *tensors, scalars = tensors_and_scalars
    groups: dict[tuple, list[Sequence[Tensor]]] = {}
    for first in range(0, len(tensors), FIELDS):
        member = tensors[first : first + FIELDS]
        _check(member)
        if member[0].numel():
            kinds = [TYPES[one.dtype] if one.numel() else None for one in member]
            key = kinds[0], kinds[3], kinds[4], _alignment(member)
            groups.setdefault(key, []).append(member)
    for (grad, weight, copy, alignment), members in groups.items():
        _update(members, grad, weight, copy, alignment, scalars)
    return tuple(tensors)


def _update(members, grad, weight, copy, alignment, scalars: Sequence[float]) -> None:
    lr, beta1, beta2, eps, decay, step, coefficient, zero = scalars
    table = _Table(members, UPDATE_BLOCK)
    adamw_kernel[(table.programs,)](
        table.addresses,
        table.sizes,
        table.first_block,
        table.count,
        1 - lr * decay,
        lr / (1 - beta1**step),
        1 - beta1,
        beta2,
        1 - beta2,
        (1 - beta2**step) ** 0.5,
        eps,
        coefficient,
        GRAD=grad,
        WEIGHT=weight,
        COPY=copy,
        ZERO=bool(zero),
        ALIGNMENT=alignment,
        BLOCK=UPDATE_BLOCK,
        num_warps=4,
    )


def _check(member: Sequence[Tensor]) -> None:
    """Require that all tensors of a parameter are dense and share one layout."""
    present = [tensor for tensor in member if tensor.numel()]
    if any(not one.is_contiguous() or one.shape != present[0].shape for one in present):
        shown = ", ".join(f"{list(one.shape)} by {list(one.stride())}" for one in present)
        raise ValueError(
            f"a parameter's tensors have layouts {shown}: give contiguous ones of one shape"
        )


def gradient_square_sum(*tensors_and_scalars) -> tuple[Tensor]:
    """The sum of the squares of all elements, [1] in fp32: the squared global norm."""
    *gradients, _ = tensors_and_scalars
    groups: dict[tuple, list[Sequence[Tensor]]] = {}
    for one in gradients:
        if one.numel():
            member = [one.contiguous()]
            groups.setdefault((TYPES[one.dtype], _alignment(member)), []).append(member)
    tables = [_Table(members, NORM_BLOCK * NORM_PASSES) for members in groups.values()]
    programs = sum(table.programs for table in tables)
    device = gradients[0].device
    partial = torch.empty(programs, dtype=torch.float32, device=device)
    out = torch.empty(1, dtype=torch.float32, device=device)
    done = 0
    for (grad, alignment), table in zip(groups, tables, strict=True):
        square_sum_kernel[(table.programs,)](
            table.addresses,
            table.sizes,
            table.first_block,
            table.count,
            partial[done:],
            GRAD=grad,
            ALIGNMENT=alignment,
            BLOCK=NORM_BLOCK,
            PASSES=NORM_PASSES,
            num_warps=4,
        )
        done += table.programs
    total_kernel[(1,)](partial, out, programs, BLOCK=4096, num_warps=8)
    return (out,)
