"""Linear + cross-entropy without whole logits: `ratchet::linear_cross_entropy`.

    loss = mean over tokens that are not ignored of cross_entropy(x W^T + bias, target)

x [N, H] and weight [V, H] are bf16 or fp32, bias [V] is either or None, target [N] is int64. The
loss is an fp32 scalar; over zero tokens it is NaN, as in torch. If a gradient is needed, the
forward computes dx, dW and dbias by chunks (arXiv:2410.10989), and the backward multiplies them by
the loss's gradient. Arithmetic is fp32 if x and weight both are. Two kernels answer the problem:
one entirely in C++, which declines fp32 on AMX and AVX512-BF16, and `cross_entropy_rows` between
torch's own matrix products. Activate the faster one. If both are active, the first runs on all
inputs that it takes.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ratchet.base.errors import KernelError
from ratchet.judge.kernels import registry
from ratchet.judge.kernels.custom_op import define, features_last, on_meta, or_none
from ratchet.judge.kernels.library.sources import FUSED, LibraryKernel, OpExample, Variant
from ratchet.judge.problems.suites.shipped.linear import (
    ENTRY,
    IGNORE_INDEX,
    ROWS_AT_ONCE,
    ROWS_ENTRY,
    linear_cross_entropy_problems,
    loss_of,
)

# Linear + cross-entropy by chunks of tokens with torch's own matrix products.
#
# `in_torch` needs no kernel and runs on every device. `run` is the second implementation of
# `ratchet::linear_cross_entropy`: torch.mm(out=) into persistent buffers, and the kernel
# `cross_entropy_rows` for the rows of logits. It keeps fp32 arithmetic if x and weight are fp32,
# and is the faster one if the vendor's GEMM is faster (arXiv:2410.10989).

FEWEST_ROWS: Final = 128
SMALLEST_BYTES: Final = 1 << 20
_KEPT: Final = 4
_storages: Final[dict[int, torch.UntypedStorage]] = {}


class _Buffers(threading.local):
    """Return the calling thread's scratch for a purpose; it grows and is kept."""

    def __init__(self) -> None:
        self.kept: dict[str, Tensor] = {}

    def take(self, purpose: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        kept = self.kept.get(purpose)
        if kept is None or kept.shape != shape or kept.dtype != dtype:
            with torch.inference_mode(False):  # an inference tensor would not be writable later
                kept = self.kept[purpose] = torch.empty(shape, dtype=dtype)
        return kept


_buffers: Final = _Buffers()


def in_torch(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, scalars: tuple[float, float]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return loss, dx, dweight and dbias in plain torch: dlogits = softmax - target, by chunks.

    A chunk's logits take about the memory of x (arXiv:2410.10989, section 3.2), or 128 rows. The
    weight's gradient is summed in fp32; without a bias, dbias is empty.
    """
    dtype = torch.bfloat16 if torch.bfloat16 in (x.dtype, weight.dtype) else weight.dtype
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    (tokens, hidden), classes = x.shape, weight.shape[0]
    rows = max(FEWEST_ROWS, math.ceil(tokens / math.ceil(classes / hidden)))
    counted = (target != int(scalars[0])).sum()
    dx, dweight = torch.empty_like(x), torch.zeros_like(weight, dtype=wide)
    dbias = torch.zeros(0 if bias is None else classes, dtype=wide, device=x.device)
    total = torch.zeros((), dtype=wide, device=x.device)
    with torch.autocast(x.device.type, enabled=False):
        words = weight.to(dtype)
        added = None if bias is None else bias.to(dtype)
        for start in range(0, tokens, rows):
            part = slice(start, start + rows)
            chunk = x[part].to(dtype)
            logits = torch.nn.functional.linear(chunk, words, added).to(wide)
            total += _take_loss(logits, target[part], scalars)
            dlogits = logits.div_(counted)
            if bias is not None:
                dbias += dlogits.sum(0)
            narrow = dlogits.to(dtype)
            dx[part] = narrow @ words
            if dtype == wide:
                dweight.addmm_(narrow.t(), chunk)
            else:
                dweight += narrow.t() @ chunk
    dbias = dbias if bias is None else dbias.to(bias.dtype)
    return (total / counted).float(), dx, dweight.to(weight.dtype), dbias


def _take_loss(logits: Tensor, target: Tensor, scalars: tuple[float, float]) -> Tensor:
    """Return the sum of the counted rows' losses; `logits` becomes its gradient, in place."""
    smoothing = scalars[1]
    counts = target != int(scalars[0])
    word = target.where(counts, torch.zeros_like(target))[:, None]
    logits -= torch.logsumexp(logits, 1, keepdim=True)
    own = logits.gather(1, word)[:, 0] * (smoothing - 1.0)
    losses = own - smoothing * logits.mean(1) if smoothing else own
    logits.exp_().sub_(smoothing / logits.shape[1])
    logits.scatter_add_(1, word, torch.full_like(losses, smoothing - 1.0)[:, None])
    logits *= counts[:, None]
    return losses.where(counts, torch.zeros_like(losses)).sum()


def run(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    scalars: tuple[float, float],
    outputs: Sequence[Tensor],
) -> bool:
    """Fill `outputs`: the loss, or also dx, dweight and dbias, which is empty without a bias.

    x [N, H], weight [V, H], bias [V] or None, target [N] int64; the scalars are ignore_index and
    label_smoothing. Return False if the rows' kernel is inactive or declines these inputs.
    Arithmetic is bf16 if x or weight is bf16, else fp32. dweight and dbias are summed over chunks
    in fp32.
    """
    if not registry.is_active(ROWS_ENTRY) or x.shape[0] == 0:
        return False
    loss, *gradients = outputs
    dtype = torch.bfloat16 if torch.bfloat16 in (x.dtype, weight.dtype) else torch.float32
    half = _cast("weight", weight, dtype)
    counted = int((target != int(scalars[0])).sum())
    share = 1.0 / max(counted, 1) if gradients else 0.0
    losses = torch.empty(x.shape[0], dtype=torch.float32)
    for start in range(0, x.shape[0], ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        chunk, own = x[rows].to(dtype), losses[rows]
        logits = _logits(chunk, half, bias)
        found = registry.call(ROWS_ENTRY, (logits, target[rows]), (*scalars, share), (own,))
        if found is None:
            return False
        if found[0] is not own:
            own.copy_(found[0])
        if gradients:
            _add_gradients(logits, chunk, half, rows, gradients, last=rows.stop >= x.shape[0])
    loss.copy_(losses.sum(dtype=torch.float64) / counted)
    return True


def _cast(purpose: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if tensor.dtype == dtype:
        return tensor
    return _buffers.take(purpose, tuple(tensor.shape), dtype).copy_(tensor)


def _logits(chunk: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    logits = _buffers.take("logits", (chunk.shape[0], weight.shape[0]), chunk.dtype)
    if bias is None:
        return torch.mm(chunk, weight.t(), out=logits)
    return torch.addmm(bias.to(chunk.dtype), chunk, weight.t(), out=logits)


def _add_gradients(
    dlogits: Tensor,
    chunk: Tensor,
    weight: Tensor,
    rows: slice,
    gradients: Sequence[Tensor],
    *,
    last: bool,
) -> None:
    all_dx, dweight, dbias = gradients
    dx = all_dx[rows]
    if dx.dtype == chunk.dtype:
        torch.mm(dlogits, weight, out=dx)
    else:
        dx.copy_(dlogits @ weight)
    first = rows.start == 0
    _add_dweight(dlogits, chunk, dweight, first=first, last=last)
    if dbias.numel():
        _add_dbias(dlogits, dbias, first=first, last=last)


def _add_dweight(
    dlogits: Tensor, chunk: Tensor, dweight: Tensor, *, first: bool, last: bool
) -> None:
    if first and last and dweight.dtype == chunk.dtype:
        torch.mm(dlogits.t(), chunk, out=dweight)
        return
    shape = (dweight.shape[0], dweight.shape[1])
    total = dweight
    if dweight.dtype != torch.float32:
        total = _buffers.take("dweight", shape, torch.float32)
    if chunk.dtype == torch.float32:
        torch.addmm(total, dlogits.t(), chunk, beta=0 if first else 1, out=total)
    else:  # torch's bf16 product rounds to bf16; the sum over chunks does not
        part = torch.mm(dlogits.t(), chunk, out=_buffers.take("part", shape, chunk.dtype))
        total.copy_(part) if first else total.add_(part)
    if last and total is not dweight:
        dweight.copy_(total)


def _add_dbias(dlogits: Tensor, dbias: Tensor, *, first: bool, last: bool) -> None:
    total = _buffers.take("dbias", tuple(dbias.shape), torch.float32)
    part = dlogits.sum(0, dtype=torch.float32)
    total.copy_(part) if first else total.add_(part)
    if last:
        dbias.copy_(total)


def reused_empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return torch.empty on the CPU; from `SMALLEST_BYTES` on, it reuses memory.

    A fresh 64 MB output costs about three times as much as writing it, for page faults and zeroing.
    A storage is reused only if the reference here is the last one: then no tensor, view, graph
    or exported array can see it. At most a few sizes are kept.
    """
    size_bytes = math.prod(shape) * dtype.itemsize
    if size_bytes < SMALLEST_BYTES:
        return torch.empty(tuple(shape), dtype=dtype)
    storage = _storages.pop(size_bytes, None)
    if storage is None or _holders(storage) > 1 or storage.nbytes() != size_bytes:
        storage = torch.empty(size_bytes, dtype=torch.uint8).untyped_storage()
    _storages[size_bytes] = storage
    while len(_storages) > _KEPT:
        _storages.pop(next(iter(_storages)))
    size = torch.Size(shape)
    strides = torch.empty(size, device="meta").stride()
    return torch.empty(0, dtype=dtype).set_(storage, 0, size, strides)


def release_reused() -> None:
    _storages.clear()


def _holders(storage: torch.UntypedStorage) -> int:
    count: int = torch._C._storage_Use_Count(storage._cdata)
    return count


CHUNK_TOKENS = 512
"""Tokens per chunk of the C++ kernel: 32 MB of bf16 probabilities at a vocabulary of 32,000."""

Four = tuple[Tensor, Tensor, Tensor, Tensor]


def _computed(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    scalars: tuple[float, float],
    outputs: Sequence[Tensor],
) -> Sequence[Tensor] | None:
    """Return the active kernel's loss and gradients; None if no kernel takes the inputs."""
    _check(x, weight, target)
    x, weight, target = features_last(x), features_last(weight), target.contiguous()
    if not x.is_cpu or registry.is_active(ENTRY) or not registry.is_active(ROWS_ENTRY):
        found = registry.call(ENTRY, (x, weight, or_none(bias), target), scalars, outputs)
        if found is not None:
            return found
    done = x.is_cpu and run(x, weight, bias, target, scalars, outputs)
    return outputs if done else None


def _check(x: Tensor, weight: Tensor, target: Tensor) -> None:
    if x.dim() != 2 or target.dim() != 1 or target.shape[0] != x.shape[0]:
        raise KernelError(
            f"linear_cross_entropy got x {list(x.shape)} and target {list(target.shape)}: "
            "flatten them to [N, H] and [N]"
        )
    if weight.dim() != 2 or weight.shape[1] != x.shape[1]:
        raise KernelError(
            f"linear_cross_entropy got weight {list(weight.shape)} for x {list(x.shape)}: "
            "give weight as [V, H]"
        )


def _loss(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    ignore_index: int = IGNORE_INDEX,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Compute the loss alone, as the C++ kernels can."""
    scalars = (float(ignore_index), label_smoothing)
    if x.is_cpu:
        loss = torch.empty((), dtype=torch.float32)
        if _computed(x, weight, bias, target, scalars, (loss,)) is not None:
            return loss
    _check(x, weight, target)
    added = x.new_empty(0) if bias is None else bias
    with torch.autocast(x.device.type, enabled=False):
        return loss_of(x, weight, added, target, scalars).float()


def _gradients(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    ignore_index: int,
    label_smoothing: float,
) -> Four:
    given = (x, weight, bias, target)
    scalars = (float(ignore_index), label_smoothing)
    forms = _gradients_fake(*map(on_meta, given))
    if x.is_cpu and (registry.is_active(ROWS_ENTRY) or registry.is_active(ENTRY)):
        loss, dx, dbias = (torch.empty_like(forms[i], device="cpu") for i in (0, 1, 3))
        forms = loss, dx, reused_empty(weight.shape, weight.dtype), dbias
    found = _computed(*given, scalars, forms)
    if found is None:
        found = registry.filled(forms, in_torch(x, weight, bias, target, scalars))
    loss, dx, dweight, dbias = found
    return loss, dx, dweight, dbias


def _gradients_fake(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *scalars: float
) -> Four:
    loss, none = (x.new_empty(size, dtype=torch.float32) for size in ((), (0,)))
    dbias = none if bias is None else bias.new_empty(bias.shape)
    return loss, x.new_empty(x.shape), weight.new_empty(weight.shape), dbias


class _Differentiable(torch.autograd.Function):
    """The loss, whose forward computes the gradients and whose backward returns them."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, *rest: object
    ) -> Tensor:
        below = torch.ops.ratchet.linear_cross_entropy_gradients
        loss, dx, dweight, dbias = below(x, weight, bias, target, *rest)
        ctx.has_bias, ctx.rest = bias is not None, rest
        ctx.gradients = dx, dweight, dbias
        ctx.save_for_backward(x, weight, bias, target)
        assert isinstance(loss, Tensor)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        x, weight, bias, target = ctx.saved_tensors
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:  # a second backward (retain_graph): the first returned its tensors
            below = torch.ops.ratchet.linear_cross_entropy_gradients
            gradients = below(x, weight, bias, target, *ctx.rest)[1:]
        # Where a graph is traced, nobody knows that the multiplication can be skipped.
        if type(grad) is not Tensor or torch.compiler.is_compiling() or float(grad) != 1.0:
            gradients = tuple((each * grad).to(each.dtype) for each in gradients)
        dx, dweight, dbias = gradients
        wanted = ctx.needs_input_grad
        return (
            dx if wanted[0] else None,
            dweight if wanted[1] else None,
            dbias if ctx.has_bias and wanted[2] else None,
            *(None,) * (1 + len(ctx.rest)),
        )


def _autograd(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    ignore_index: int = IGNORE_INDEX,
    label_smoothing: float = 0.0,
) -> Tensor:
    leaves = (x, weight) if bias is None else (x, weight, bias)
    if torch.is_grad_enabled() and any(leaf.requires_grad for leaf in leaves):
        apply: Any = _Differentiable.apply
        loss = apply(x, weight, bias, target, ignore_index, label_smoothing)
        assert isinstance(loss, Tensor)
        return loss
    with torch._C._AutoDispatchBelowAutograd():
        found = torch.ops.ratchet.linear_cross_entropy(
            x, weight, bias, target, ignore_index, label_smoothing
        )
    assert isinstance(found, Tensor)
    return found


define(
    "linear_cross_entropy",
    "(Tensor x, Tensor weight, Tensor? bias, Tensor target, int ignore_index=-100, "
    "float label_smoothing=0.0) -> Tensor",
    run=_loss,
    fake=lambda *given: given[0].new_empty((), dtype=torch.float32),
)
torch.library.impl("ratchet::linear_cross_entropy", "Autograd", _autograd)
define(
    "linear_cross_entropy_gradients",
    "(Tensor x, Tensor weight, Tensor? bias, Tensor target, int ignore_index, "
    "float label_smoothing) -> (Tensor, Tensor, Tensor, Tensor)",
    run=_gradients,
    fake=_gradients_fake,
)

LINEAR_CROSS_ENTROPY = LibraryKernel(
    name=ENTRY,
    module=__name__,
    problems=linear_cross_entropy_problems,
    summary="linear + cross-entropy and its gradients by chunks of tokens, without whole logits",
    source_of_idea="Liger-Kernel, arXiv:2410.10989; online softmax, arXiv:1805.02867",
    variants=(
        Variant(
            language="cpp",
            file="linear_cross_entropy",
            entries=(ENTRY,),
            schedule=(("chunk", str(CHUNK_TOKENS)),),
        ),
        Variant(language="cpp", file="linear_cross_entropy_rows", entries=(ROWS_ENTRY,)),
        Variant(language="triton", file="linear_cross_entropy", entries=(ENTRY,)),
        Variant(language="triton", file="cross_entropy_rows", entries=(ROWS_ENTRY,)),
    ),
    acts_on=("loss", "matmul", *FUSED),
    examples={
        "linear_cross_entropy": OpExample(
            arguments="x(24, 64, dtype=torch.bfloat16), x(200, 64, dtype=torch.bfloat16), None, "
            "torch.arange(24, device=DEVICE)",
            expected="F.cross_entropy(F.linear(*a[:3]).float(), a[3])",
            tolerance=3e-2,
        ),
    },
    alternatives=(ENTRY, ROWS_ENTRY),
    on_cores=(ROWS_ENTRY,),
)
