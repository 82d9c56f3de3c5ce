"""Bytes of the ops that are bound by them, and their FLOPs.

Each addition, multiplication, division, comparison or function of an element counts as one FLOP.
The bytes are compulsory ones: every input is read once and every output written once, whatever an
implementation reads again. An expanded input counts as if it were whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from math import prod

from ratchet.trace.answers.work.call import (
    NOT_KNOWN,
    ONCE,
    Argument,
    Call,
    Counted,
    NotRecorded,
    Rule,
    Shape,
    need,
)


def _sum(tensors: Iterable[Argument]) -> int:
    return sum(one.size_bytes for one in tensors)


def _broadcast(shapes: Iterable[Shape]) -> Shape:
    out: list[int] = []
    for shape in shapes:
        out = [1] * (len(shape) - len(out)) + out
        for place in range(1, len(shape) + 1):
            out[-place] = shape[-place] if out[-place] == 1 else out[-place]
    return tuple(out)


def _largest(call: Call) -> Argument:
    return max(call.at_least(1), key=lambda one: one.elements)


# Element-wise.


def elementwise(call: Call, *, inputs: int, flops: int = 1, truth: bool = False) -> Counted:
    """Count an op on as many tensors at most; one tensor more is `out=`, which is only written."""
    given = call.at_least(1)
    read = given[:inputs]
    if call.in_place:
        return Counted(flops * given[0].elements, _sum(read) + given[0].size_bytes)
    if len(given) > inputs:
        return Counted(flops * given[-1].elements, _sum(read) + given[-1].size_bytes)
    elements = prod(_broadcast(one.shape for one in read))
    return Counted(flops * elements, _sum(read) + elements * (1 if truth else _promoted(read)))


def _promoted(tensors: list[Argument]) -> int:
    """Return the width of the result: single numbers count only among themselves, ints below."""
    found = [one for one in tensors if one.shape] or tensors
    found = [one for one in found if one.floating] or found
    return max(one.width for one in found)


def written(call: Call) -> Counted:
    """Count what only writes its first tensor."""
    return Counted(0, call.at_least(1)[0].size_bytes)


def counted_up(call: Call) -> Counted:
    """Count `arange` by its beginning, end and step."""
    begin, end, step = (call.whole(place) for place in range(3))
    need(step != 0)
    width = call.tensors[-1].width if call.tensors else 8
    return Counted(0, max(-(-(end - begin) // step), 0) * width)


def copied(call: Call) -> Counted:
    """Count a read of the second tensor and a write of the first."""
    return Counted(0, _sum(call.at_least(2)[:2]))


def read_once(call: Call, *, flops: int = 1) -> Counted:
    """Count the inputs alone: what is written is as small as a number."""
    return Counted(flops * call.main.elements, _sum(call.tensors))


def like_input(call: Call, *, flops: int = 1, copies: int = 1) -> Counted:
    """Count the inputs, and outputs of the first one's size."""
    first = call.at_least(1)[0]
    return Counted(flops * first.elements, _sum(call.tensors) + copies * first.size_bytes)


def each_once(call: Call, *, flops: int | None = None) -> Counted:
    """Count each argument once: registered ops have their outputs among them."""
    size = _sum(call.tensors)
    return Counted(
        None if flops is None else flops * _largest(call).elements, size, bytes_from=ONCE
    )


def triton(call: Call) -> Counted:
    """Count each argument of one of Inductor's kernels once.

    Where it looks rows up, no table counts for more than the kernel's own elements.
    """
    numbers = [n for n in call.concrete if type(n) is int and n > 0]
    most = prod(numbers) if numbers else 0
    looks_up = any(word in call.name for word in ("embedding", "index", "gather", "nll_loss"))
    size = sum(
        min(one.elements, most) * one.width if looks_up and most else one.size_bytes
        for one in call.at_least(1)
    )
    return Counted(None, size, NOT_KNOWN, ONCE)


# Reductions.


def reduction(call: Call, *, flops: int = 1) -> Counted:
    """Count the input and the output, as far as the reduced dimensions were recorded."""
    first = call.at_least(1)[0]
    if not first.shape:
        return read_once(call, flops=flops)
    kept = _kept(call, first.shape)
    return Counted(flops * first.elements, first.size_bytes + kept * first.width)


def _kept(call: Call, shape: Shape) -> int:
    lists = call.number_lists
    if not lists:
        # `argmax`, `all` and their like take one dimension as a number.
        number = call.value(1)
        lists = [[number]] if type(number) is int and len(call.concrete) > 2 else []
    reduced = {n % len(shape) for n in lists[0] if -len(shape) <= n < len(shape)} if lists else ()
    return prod(n for place, n in enumerate(shape) if place not in reduced) if reduced else 1


# Normalization and softmax.


def norm(call: Call, *, flops: int, residual: bool = False) -> Counted:
    """Count the inputs and an output of the largest one's size; a second for a residual's sum."""
    largest, copies = _largest(call), 1 + residual
    return Counted(flops * largest.elements, _sum(call.tensors) + copies * largest.size_bytes)


def norm_backward(call: Call, *, flops: int) -> Counted:
    """Count the inputs, and of the gradients those that the output mask asks for."""
    largest = _largest(call)
    mask = call.value(-1)
    wanted = mask if isinstance(mask, list) and mask else [True]
    weights = [one for one in call.tensors if len(one.shape) == 1 and one.elements > 1]
    size = _sum(call.tensors) + bool(wanted[0]) * largest.size_bytes
    size += sum(bool(one) for one in wanted[1:]) * (weights[0].size_bytes if weights else 0)
    return Counted(flops * largest.elements, size)


def foreign_norm(call: Call, *, flops: int) -> Counted:
    """Count a registered norm: in place, with its output among the arguments, or returned."""
    largest = _largest(call)
    same = [one for one in call.tensors if one.elements == largest.elements]
    in_place = "fused_add" in call.base and len(same) == 2
    added = _sum(same) if in_place else largest.size_bytes if len(same) == 1 else 0
    return Counted(flops * largest.elements, _sum(call.tensors) + added, bytes_from=ONCE)


def softmax(call: Call) -> Counted:
    """Count the input and the output: a maximum, subtraction, exponential, sum and division."""
    first = call.at_least(1)[0]
    width = 4 if call.value(2) is True and first.width == 2 else first.width  # half to float
    return Counted(5 * first.elements, first.size_bytes + first.elements * width)


def softmax_backward(call: Call) -> Counted:
    """Count gradient and output, and the input's gradient."""
    gradient, output = call.at_least(2)[:2]
    return Counted(4 * gradient.elements, gradient.size_bytes + 2 * output.size_bytes)


# Lookups: only what is looked up counts.


def rows_of_table(call: Call) -> Counted:
    """Count `index_select` and `embedding`: the indices, and each row read and written."""
    table, places = call.at_least(2)[:2]
    number = call.value(1)
    along = number if type(number) is int and call.base == "index_select" else 0
    need(-len(table.shape) <= along < len(table.shape) and table.shape[along] > 0)
    found = table.elements // table.shape[along] * places.elements
    return Counted(0, places.size_bytes + 2 * found * table.width)


def gradient_of_table(call: Call) -> Counted:
    """Count `embedding_dense_backward`: gradient and indices, and the table's gradient."""
    grad, places = call.at_least(2)[:2]
    need(bool(grad.shape))
    out = call.whole(2) * grad.shape[-1]
    return Counted(grad.elements, grad.size_bytes + places.size_bytes + out * grad.width)


def gathered(call: Call) -> Counted:
    """Count `gather`: as many elements read and written as places; the index may be expanded."""
    table, places = call.at_least(2)[:2]
    return Counted(0, 2 * places.elements * table.width)


def scattered(call: Call) -> Counted:
    """Count `scatter` and `index_add`: index and source, and the elements that they reach."""
    table, source = call.at_least(2)[0], call.tensors[-1]
    added = "add" in call.base or "reduce" in call.base
    size = _sum(call.tensors[1:]) + (1 + added) * source.elements * table.width
    whole = 0 if call.in_place else 2 * table.size_bytes  # A copy of the table comes first
    return Counted(source.elements if added else 0, size + whole)


def cache_rows(call: Call) -> Counted:
    """Count the keys and values that are put into a cache: each read and written once."""
    source, caches = call.at_least(4)[:2], call.tensors[2:4]
    size = _sum(source) + sum(s.elements * c.width for s, c in zip(source, caches, strict=True))
    return Counted(0, size)


def rotary(call: Call) -> Counted:
    """Count rotary embedding in place: queries and keys read and written, a table's row a token."""
    wide = [one for one in call.tensors if one.floating and len(one.shape) >= 2]
    places = next((one for one in call.tensors if not one.floating), None)
    if places is None or len(wide) < 2:
        raise NotRecorded
    turned, table = wide[:-1], wide[-1]
    rows = min(places.elements, table.shape[0]) * table.shape[-1] * table.width
    elements = sum(one.elements for one in turned)
    return Counted(3 * elements, 2 * _sum(turned) + rows + places.size_bytes)


def joined(call: Call) -> Counted:
    """Count `cat` and `stack`: every tensor of the list read, and written into one."""
    elements = sum(prod(shape) for shape in call.lists[0]) if call.lists else 0
    need(elements * call.list_width > 0)
    return Counted(0, 2 * elements * call.list_width)


# Pooling and resampling.


def pooled(call: Call) -> Counted:
    """Count the input and the output of a pool, with the places of its maxima."""
    first = call.at_least(1)[0]
    need(len(first.shape) >= 3 and len(call.number_lists) >= 3)
    dims = len(call.number_lists[0])
    size, stride, padding = call.number_lists[:3]
    stride = stride or size
    need(len(size) == len(stride) == len(padding) and min(stride, default=0) >= 1)
    spread = call.number_lists[3] if len(call.number_lists) > 3 else [1] * dims
    out = prod(first.shape[:-dims]) * prod(
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(first.shape[-dims:], size, stride, padding, spread, strict=False)
    )
    places = 8 if "with_indices" in call.base else 0
    return Counted(prod(size) * out, first.size_bytes + out * (first.width + places))


def pooled_backward(call: Call) -> Counted:
    """Count all inputs but the pool's own, and the gradient of that one."""
    return Counted(call.at_least(2)[0].elements, _sum(call.tensors))


def resampled(call: Call) -> Counted:
    """Count input and output of an upsampling or an adaptive pool, by the wanted size."""
    first, size = call.at_least(1)[0], call.number_lists[0] if call.number_lists else []
    need(0 < len(size) < len(first.shape))
    out = prod(first.shape[: -len(size)]) * prod(size)
    return Counted(out, first.size_bytes + out * first.width)


def chosen_best(call: Call) -> Counted:
    """Count `topk` and `sort`: the input, and values with their places."""
    first = call.at_least(1)[0]
    need(bool(first.shape))
    number = call.value(1)
    share = number if call.base == "topk" and type(number) is int else first.shape[-1]
    out = first.elements // max(first.shape[-1], 1) * share
    return Counted(first.elements, first.size_bytes + out * (first.width + 8))


_UNARY = (
    "abs neg exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh "
    "tanh asinh acosh atanh erf erfc erfinv sigmoid silu gelu relu relu6 hardtanh hardswish "
    "hardsigmoid leaky_relu elu selu celu mish softplus logit reciprocal sign floor ceil round "
    "trunc frac bitwise_not nan_to_num square positive conj_physical angle hardshrink softshrink "
    "log_sigmoid_forward threshold tril triu flip roll digamma lgamma i0 "
    "channel_shuffle pixel_shuffle pixel_unshuffle im2col col2im cumsum cumprod sgn"
)
_BINARY = (
    "add sub rsub mul div true_divide floor_divide remainder fmod pow atan2 maximum minimum fmax "
    "fmin bitwise_and bitwise_or bitwise_xor __and__ __or__ __xor__ bitwise_left_shift "
    "bitwise_right_shift hypot copysign xlogy masked_fill polar complex gelu_backward "
    "silu_backward sigmoid_backward tanh_backward threshold_backward hardtanh_backward "
    "leaky_relu_backward elu_backward hardswish_backward hardsigmoid_backward mish_backward "
    "softplus_backward native_dropout_backward _masked_scale _weight_norm_interface prelu "
    "_prelu_kernel logit_backward"
)
_TERNARY = (
    "addcmul addcdiv lerp where clamp clamp_min clamp_max log_sigmoid_backward "
    "binary_cross_entropy_backward mse_loss_backward smooth_l1_loss_backward huber_loss_backward "
    "binary_cross_entropy_with_logits _prelu_kernel_backward"
)
_TRUTH = "eq ne lt gt le ge logical_and logical_or logical_xor isnan isinf isfinite logical_not"
_LOSSES = "mse_loss smooth_l1_loss huber_loss binary_cross_entropy l1_loss kl_div"
_REDUCTIONS = (
    "sum mean prod max min amax amin argmax argmin any all nansum nanmean count_nonzero "
    "logsumexp median mode trace nonzero masked_select _local_scalar_dense equal _unique2 "
    "histc bincount aminmax"
)
_WRITTEN = "fill zero normal uniform bernoulli random exponential geometric cauchy log_normal eye"
_NORMS = {
    "native_layer_norm": 7, "_fused_rms_norm": 4, "native_group_norm": 7, "native_batch_norm": 7,
    "cudnn_batch_norm": 7, "miopen_batch_norm": 7, "_native_batch_norm_legit": 7,
    "batch_norm_elemt": 4, "_batch_norm_with_update": 7,
}  # fmt: skip
"""FLOPs an element: mean (1), variance (3), scaling (1), weight and bias (2); RMS has no mean."""
_NORMS_BACKWARD = {
    "native_layer_norm_backward": 13, "_fused_rms_norm_backward": 9,
    "native_group_norm_backward": 13, "native_batch_norm_backward": 13,
    "cudnn_batch_norm_backward": 13, "miopen_batch_norm_backward": 13,
    "batch_norm_backward_elemt": 7, "batch_norm_backward": 13,
}  # fmt: skip
NORMALIZATION: dict[str, Rule] = {
    **{name: partial(norm, flops=flops) for name, flops in _NORMS.items()},
    **{name: partial(norm_backward, flops=flops) for name, flops in _NORMS_BACKWARD.items()},
    "batch_norm_stats": partial(read_once, flops=4),
    "batch_norm_backward_reduce": partial(read_once, flops=5),
}
SOFTMAX: dict[str, Rule] = {
    "_softmax": softmax,
    "_log_softmax": softmax,
    "_safe_softmax": softmax,
    "_softmax_backward_data": softmax_backward,
    "_log_softmax_backward_data": softmax_backward,
}
ELEMENTWISE: dict[str, Rule] = {
    **dict.fromkeys(_UNARY.split(), partial(elementwise, inputs=1)),
    **dict.fromkeys(_BINARY.split(), partial(elementwise, inputs=2)),
    **dict.fromkeys(_TERNARY.split(), partial(elementwise, inputs=3)),
    **dict.fromkeys(_TRUTH.split(), partial(elementwise, inputs=2, truth=True)),
    **dict.fromkeys(_WRITTEN.split(), written),
    "arange": counted_up,
    "native_dropout": partial(elementwise, inputs=1, flops=2),
    "glu": partial(elementwise, inputs=1),
    "_fused_dropout": partial(elementwise, inputs=1, flops=2),
}
REDUCTIONS: dict[str, Rule] = {
    **dict.fromkeys(_REDUCTIONS.split(), reduction),
    **dict.fromkeys(("std", "var", "var_mean", "std_mean"), partial(reduction, flops=4)),
    **dict.fromkeys(("norm", "linalg_vector_norm"), partial(reduction, flops=2)),
    **dict.fromkeys(_LOSSES.split(), partial(read_once, flops=2)),
    "nll_loss_forward": gathered,
    "nll_loss2d_forward": gathered,
    "nll_loss_backward": partial(like_input, flops=0, copies=0),
    "topk": chosen_best,
    "sort": chosen_best,
    **SOFTMAX,
}
OTHERS: dict[str, Rule] = {
    "index_select": rows_of_table,
    "embedding": rows_of_table,
    "embedding_dense_backward": gradient_of_table,
    "gather": gathered,
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy"),
                    scattered),
    "max_pool2d_with_indices": pooled,
    "max_pool3d_with_indices": pooled,
    "avg_pool2d": pooled,
    "avg_pool3d": pooled,
    "max_pool2d_with_indices_backward": pooled_backward,
    "max_pool3d_with_indices_backward": pooled_backward,
    "avg_pool2d_backward": pooled_backward,
    "_adaptive_avg_pool2d": resampled,
    **dict.fromkeys(
        ("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_bilinear2d",
         "upsample_bicubic2d", "upsample_trilinear3d", "upsample_linear1d",
         "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_bilinear2d_aa",
         "_upsample_bicubic2d_aa"),
        resampled,
    ),
}  # fmt: skip
COPIES: dict[str, Rule] = {"copy": copied, "cat": joined, "stack": joined}
RATCHET: dict[str, Rule] = {
    **{f"{name}_norm": partial(norm, flops=flops) for name, flops in (("rms", 4), ("layer", 7))},
    **{f"{name}_norm_backward": partial(norm, flops=flops)
       for name, flops in (("rms", 9), ("layer", 13))},
    **{f"add_{name}_norm": partial(norm, flops=flops, residual=True)
       for name, flops in (("rms", 5), ("layer", 8))},
    **{f"add_{name}_norm_backward": partial(norm, flops=flops)
       for name, flops in (("rms", 10), ("layer", 14))},
    "rope": partial(like_input, flops=3),
    "rope_backward": partial(like_input, flops=3),
    "gated_activation": partial(like_input, flops=2),
    "gated_activation_backward": partial(like_input, flops=5, copies=2),
}  # fmt: skip
"""Ratchet's own ops beside its products; the judge's library has their schemas."""
