"""FLOPs and bytes of products: matrix multiplies, convolutions, attention, experts, recurrent nets.

A multiplication and an addition count as one FLOP each.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ratchet.trace.answers.work.call import (
    EQUAL_LENGTHS,
    FULL_MASK,
    ONCE,
    PAGES,
    SHAPES,
    TILES,
    Argument,
    Call,
    Counted,
    NotRecorded,
    Rule,
    Shape,
    need,
    parse_shapes,
)


def _read(call: Call) -> int:
    return sum(one.size_bytes for one in call.tensors)


def _with_output(call: Call, flops: int, elements: int) -> Counted:
    """Count all inputs once, and an output in the main input's type."""
    return Counted(flops, _read(call) + elements * call.main.width)


def _product(call: Call, m: int, n: int, k: int) -> Counted:
    """Count one product, whose output is in the main input's type."""
    return replace(_with_output(call, 2 * m * n * k, m * n), product=(m, n, k))


# Matrix multiplies.


def matmul(call: Call) -> Counted:
    """Count [.., m, k] x [.., k, n]; with `out=`, the output is an argument more."""
    adds = call.base.startswith(("addmm", "baddbmm", "_addmm", "addmv", "addbmm"))
    shapes = [one.shape for one in call.tensors[adds:]]
    need(len(shapes) >= 2 and min(map(len, shapes[:2])) >= 2)
    left, right = shapes[:2]
    need(left[-1] == right[-2])
    out = prod(left[:-2]) * left[-2] * right[-1]
    flops = 2 * out * left[-1]
    product = (left[-2], right[-1], left[-1]) if len(left) == 2 else None
    if any(one.elements == out for one in call.tensors[adds + 2 :]) and not adds:
        return Counted(flops, _read(call), product=product)
    return replace(_with_output(call, flops, out), product=product)


def vector_product(call: Call) -> Counted:
    """Count a matrix with a vector, or two vectors."""
    adds = call.base == "addmv"
    pair = [one.shape for one in call.tensors[adds:]][:2]
    need(len(pair) == 2 and len(pair[1]) == 1 and pair[0][-1:] == pair[1])
    return _with_output(call, 2 * prod(pair[0]), prod(pair[0][:-1]))


def _with_weight(call: Call, shared: int) -> tuple[Shape, Shape]:
    """Return the shapes of a tensor and of the weight that share a size: its `shared` one."""
    left, weight = (one.shape for one in call.at_least(2)[:2])
    need(len(weight) == 2 and left[-1:] == (weight[shared],))
    return left, weight


def linear(call: Call) -> Counted:
    """Count x [.., k] with a weight [n, k]."""
    left, weight = _with_weight(call, 1)
    return _product(call, prod(left[:-1]), *weight)


def linear_input_gradient(call: Call) -> Counted:
    """Count grad [.., n] with a weight [n, k]."""
    left, (n, k) = _with_weight(call, 0)
    return _product(call, prod(left[:-1]), k, n)


def linear_weight_gradient(call: Call) -> Counted:
    """Count grad [.., n] with x [.., k] over all rows."""
    grad, x = (one.shape for one in call.at_least(2)[:2])
    need(bool(grad and x) and prod(grad[:-1]) == prod(x[:-1]))
    return _product(call, grad[-1], x[-1], prod(grad[:-1]))


def linear_cross_entropy(call: Call) -> Counted:
    """Count the logits of x [n, h] with a weight [v, h]; nothing of them need be stored."""
    left, weight = _with_weight(call, 1)
    return Counted(2 * prod(left) * weight[0], _read(call))


def linear_cross_entropy_gradients(call: Call) -> Counted:
    """Count the logits and the gradients of x and of the weight, three products of one size."""
    forward = linear_cross_entropy(call)
    written = sum(one.size_bytes for one in call.tensors[:2])
    return Counted(3 * (forward.flops or 0), forward.size_bytes + written)


def foreign_gemm(call: Call) -> Counted:
    """Count a registered op's product: two matrices that share a size, in either layout.

    An output among the arguments, recognised by its sizes, is not counted again.
    """
    wide = [one for one in call.tensors if len(one.shape) >= 2 and one.elements > 1]
    for first in range(len(wide) - 1):
        for second in range(first + 1, len(wide)):
            a, b = wide[first].shape, wide[second].shape
            if len(b) != 2:
                continue
            rows = prod(a[:-1])
            columns = b[0] if b[1] == a[-1] else b[1] if b[0] == a[-1] else 0
            if not columns:
                continue
            others = [one for i, one in enumerate(wide) if i not in (first, second)]
            written = any(one.shape[-1] == columns and one.elements == rows * columns
                          for one in others)  # fmt: skip
            found = _product(call, rows, columns, a[-1])
            return replace(found, size_bytes=_read(call), bytes_from=ONCE) if written else found
    raise NotRecorded


def triton_template(call: Call) -> Counted:
    """Count Inductor's template of a product: its arguments are the matrices and the output."""
    found = Counted(None, 0)
    if sum(len(one.shape) >= 2 for one in call.tensors) >= 3:
        with contextlib.suppress(NotRecorded):
            found = foreign_gemm(call)
    return replace(found, size_bytes=_read(call), bytes_from=ONCE)


def experts(call: Call) -> Counted:
    """Count a mixture of experts: hidden [t, h], w1 [e, 2i or i, h], w2 [e, h, i], ids [t, k].

    Each token passes both layers of its k experts; the weights of no more experts than are chosen
    need be read.
    """
    stacks = [one for one in call.tensors if len(one.shape) == 3 and one.elements > 1]
    flat = [one for one in call.tensors if len(one.shape) == 2]
    pair = next(
        (
            (one, two)
            for one in stacks
            for two in stacks
            if one is not two
            and one.shape[0] == two.shape[0]
            and one.shape[2] == two.shape[1]
            and one.shape[1] in (two.shape[2], 2 * two.shape[2])
        ),
        None,
    )
    if pair is None:
        raise NotRecorded
    first, second = pair
    hidden = next((one for one in flat if one.shape[1] == first.shape[2]), None)
    chosen = [
        one
        for one in flat
        if hidden is not None and one.shape[0] == hidden.shape[0] and 0 < one.shape[1] <= 64
    ]
    if hidden is None or not chosen:
        raise NotRecorded
    tokens, per_token = hidden.shape[0], min(one.shape[1] for one in chosen)
    each = prod(first.shape[1:]) + prod(second.shape[1:])
    used = min(first.shape[0], tokens * per_token)
    size = 2 * hidden.size_bytes + used * each * first.width
    return Counted(2 * tokens * per_token * each, size)


_OGS = re.compile(
    r"^_matmul_ogs_\w+?_\w+?x\w+?x(?P<weight>\w+?)_(?P<m>[1-9]\d{0,5})x(?P<n>[1-9]\d{0,5})x\d+x1(?P<gated>_swiglu)?$"
)
"""Names of triton_kernels' product over ragged experts: types, then the tile, then the split."""
_WEIGHT_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "mxfp8": 33 / 32, "mxfp4": 17 / 32}


def hidden_experts(call: Call, launched: Sequence[tuple[str, str]]) -> Counted:
    """Count experts whose weights are no arguments: hidden [t, h], router [t, e].

    triton_kernels launches one block for each tile of the outputs. The second layer's outputs are
    known, so its grid tells the blocks of rows; they tell how many experts each token has, and
    divide the first layer's grid into its tiles of columns. The last tile may be almost empty.
    """
    flat = [one for one in call.tensors if len(one.shape) == 2]
    layers = {bool(found["gated"]): (found, grid) for name, grid in launched
              if (found := _OGS.match(name))}  # fmt: skip
    need(len(flat) >= 2 and len(layers) == 2)
    (tokens, hidden), experts = flat[0].shape, flat[1].shape[1]
    (up, up_grid), (down, down_grid) = layers[True], layers[False]
    blocks = _blocks(down_grid) // -(-hidden // int(down["n"])) if hidden else 0
    each = _chosen(blocks, tokens, experts, int(down["m"])) if blocks else 0
    need(each > 0 and _blocks(up_grid) % blocks == _blocks(down_grid) % blocks == 0)
    inner = (_blocks(up_grid) // blocks - 1) * int(up["n"]) // 2
    weights = 3 * hidden * inner
    used = min(experts, tokens * each) * weights * _WEIGHT_BYTES.get(up["weight"], 0.5)
    size = 2 * flat[0].size_bytes + int(used)
    return Counted(2 * tokens * each * weights, size, TILES, TILES)


def _blocks(grid: str) -> int:
    sizes = [one for one in parse_shapes(grid) if isinstance(one, int) and one > 0]
    return prod(sizes) if sizes else 0


def _chosen(blocks: int, tokens: int, experts: int, rows: int) -> int:
    """Return how many experts each token has, if so many blocks of rows tell; 0 if not.

    With more rows than experts, triton_kernels reserves one block for each expert but the first,
    and one for every full `rows` of what is left.
    """
    for each in range(1, min(experts, 64) + 1):
        all_rows = tokens * each
        needed = experts - 1 - (experts - all_rows - 1) // rows if all_rows > experts else all_rows
        if needed == blocks:
            return each
    return 0


def recurrent(call: Call) -> Counted:
    """Count a recurrent net's products: every weight matrix with every step's input."""
    steps = call.main
    need(len(steps.shape) == 3 and bool(call.lists and call.lists[0]))
    weights = sum(prod(shape) for shape in call.lists[0] if len(shape) == 2)
    size = weights * steps.width + _read(call)
    return Counted(2 * prod(steps.shape[:2]) * weights, size)


# Convolutions.


def convolution(call: Call) -> Counted:
    """Count a forward convolution; without its stride, only the bytes of its inputs are known."""
    shapes = [one.shape for one in call.tensors]
    need(len(shapes) >= 2 and 3 <= len(shapes[0]) == len(shapes[1]))
    inputs, weight = shapes[:2]
    transposed = "transpose" in call.base
    out_size = _convolved(call, inputs, weight, transposed)
    if out_size is None:
        return Counted(None, _read(call))
    if transposed:  # weight [in, out / groups, ...]
        groups = _groups(call, inputs[1])
        out = inputs[0] * weight[1] * groups * prod(out_size)
        return _with_output(call, 2 * prod(inputs) * prod(weight[1:]), out)
    out = inputs[0] * weight[0] * prod(out_size)
    return _with_output(call, 2 * out * prod(weight[1:]), out)


def _groups(call: Call, channels: int) -> int:
    numbers = [n for n in call.concrete if isinstance(n, int) and not isinstance(n, bool)]
    found = next((n for n in numbers if n > 0), 1)
    return found if channels % found == 0 else 1


def _convolved(call: Call, inputs: Shape, weight: Shape, transposed: bool) -> list[int] | None:
    found = [entry for entry in call.number_lists if len(entry) == len(inputs) - 2]
    if len(found) < 3 + transposed:
        return None
    if transposed:
        padding, extra, stride, dilation = found[:4]
        out = [
            (size - 1) * s - 2 * p + d * (k - 1) + more + 1
            for size, k, p, more, s, d in zip(
                inputs[2:], weight[2:], padding, extra, stride, dilation, strict=True
            )
        ]
    else:
        # cuDNN and MIOpen take padding first; the general form takes stride first.
        padding, stride, dilation = (
            found[:3] if min(found[1]) >= 1 else (found[1], found[0], found[2])
        )
        out = [
            (size + 2 * p - d * (k - 1) - 1) // s + 1
            for size, k, p, s, d in zip(
                inputs[2:], weight[2:], padding, stride, dilation, strict=True
            )
            if s > 0
        ]
    return out if len(out) == len(inputs) - 2 and min(out) >= 1 else None


def convolution_backward(call: Call) -> Counted:
    """Count the gradients that the output mask asks for; both if it was not recorded."""
    grad, inputs, weight = call.at_least(3)[:3]
    need(min(len(one.shape) for one in (grad, inputs, weight)) >= 3)
    mask = call.value(-1)
    wanted = [bool(one) for one in mask[:2]] if isinstance(mask, list) and len(mask) == 3 else []
    wanted = wanted or [True, True]
    base = inputs if call.value(7) is True else grad  # transposed
    one = 2 * base.elements * prod(weight.shape[1:])
    written = sum(t.elements for t, is_wanted in zip((inputs, weight), wanted, strict=True)
                  if is_wanted)  # fmt: skip
    return _with_output(call, sum(wanted) * one, written)


# Attention.

HEADS_FIRST = re.compile(r"cudnn|for_cpu|^_scaled_dot_product|^attention")
"""Attention ops whose tensors are (batch, heads, tokens, width)."""
_CAUSAL_AT = {
    "_scaled_dot_product_flash_attention_for_cpu": 4,
    "_scaled_dot_product_flash_attention_for_cpu_backward": 7,
    "_scaled_dot_product_flash_attention": 4,
    "_scaled_dot_product_cudnn_attention": 6,
    "_flash_attention_forward": 8,
    "_flash_attention_backward": 11,
    "_efficient_attention_forward": 9,  # The kind of mask: 0 is none, 1 and 2 are causal
    "_efficient_attention_backward": 14,
    "attention": 3,
    "attention_backward": 6,
}
"""Place of `is_causal` among the arguments."""


_CACHE = 4  # Keys this many times as large as the queries are a cache, most of it not in use


def attention(call: Call) -> Counted:
    """Count the two products of the forward, or the five of the backward, between q and k."""
    backward = "backward" in call.base or "bwd" in call.base
    tensors = [one for one in call.tensors if one.floating or one.width == 1]
    wide = [one for one in tensors if len(one.shape) in (3, 4) and one.elements > 1]
    wide = wide[1:] if backward else wide
    need(len(wide) >= 3)
    query, key, value = wide[:3]
    need(len(query.shape) <= len(key.shape) and query.shape[-1] == key.shape[-1])
    written = sum(t.size_bytes for t in (query, key, value)) if backward else 0
    output = query.elements // query.shape[-1] * value.shape[-1]
    if not backward and not any(one.elements == output for one in wide[3:]):
        written = output * query.width
    size = _read(call) + written
    lengths = _lengths(call)
    if lengths or len(query.shape) == 3:
        return _ragged(call, query, key, value, lengths, backward)
    # Sage's scales are of [batch, heads, blocks].
    scaled = "sage" in call.base and any(
        len(one.shape) == 3 and one.shape[:2] == query.shape[:2] for one in call.tensors
    )
    heads, tokens = (1, 2) if scaled or HEADS_FIRST.search(call.base) else (2, 1)
    pairs = _pairs(query.shape[tokens], key.shape[tokens], _causal(call))
    each = query.shape[0] * query.shape[heads] * pairs
    flops = (2 if not backward else 5) * each * (query.shape[-1] + value.shape[-1])
    return Counted(flops, size, SHAPES if _causal(call) is not None else FULL_MASK)


def _pairs(queries: int, keys: int, causal: bool | None) -> int:
    """Return how many queries meet how many keys; a query sees the keys up to its own place."""
    if not causal:
        return queries * keys
    seen = min(queries, keys)
    return seen * (seen + 1) // 2 + max(queries - keys, 0) * keys


def _causal(call: Call) -> bool | None:
    value = call.value(_CAUSAL_AT.get(call.base, len(call.concrete)))
    return bool(value) if isinstance(value, int) else None


def _lengths(call: Call) -> int:
    """Return the number of sequences by the table of their ends; 0 without one."""
    tables = [one for one in call.tensors if len(one.shape) == 1 and not one.floating]
    return max(tables[0].elements - 1, 0) if tables and tables[0].width >= 4 else 0


def _ragged(
    call: Call, query: Argument, key: Argument, value: Argument, sequences: int, backward: bool
) -> Counted:
    """Count packed sequences: q [tokens, heads, width].

    The sum of squares is least for equal lengths, and a causal mask leaves half. Of keys in pages
    those count whose pages are listed; without a list, how far the queries look is not known.
    """
    tokens, heads = (query.shape[-3], query.shape[-2])
    tables = [one for one in call.tensors if len(one.shape) == 1 and not one.floating]
    caches = [one for one in (key, value) if one.elements > _CACHE * query.elements]
    used = sum(one.size_bytes for one in (key, value) if one not in caches)
    # The ends of the queries, the ends of the pages, and the pages themselves.
    listed = tables[2].elements if len(tables) > 2 and tables[0].shape == tables[1].shape else 0
    used += sum(listed * prod(one.shape[1:]) * one.width for one in caches)
    size = 2 * query.size_bytes + used
    if backward:
        size = 2 * size + query.size_bytes
    if not sequences or tokens < sequences or (caches and not listed):
        return Counted(None, size, bytes_from=PAGES if caches and not listed else SHAPES)
    pairs = tokens * tokens // sequences // 2
    flops = (2 if not backward else 5) * heads * pairs * (query.shape[-1] + value.shape[-1])
    return Counted(flops, size, EQUAL_LENGTHS)


MATMULS: dict[str, Rule] = {
    **dict.fromkeys(
        ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_grouped_mm", "_addmm_activation",
         "_int_mm", "addbmm", "_scaled_grouped_mm"),
        matmul,
    ),
    **dict.fromkeys(("mv", "addmv", "dot", "vdot"), vector_product),
}  # fmt: skip
CONVOLUTIONS: dict[str, Rule] = {
    **dict.fromkeys(
        ("cudnn_convolution", "miopen_convolution", "convolution_overrideable",
         "_slow_conv2d_forward", "mkldnn_convolution", "slow_conv3d_forward",
         "_conv_depthwise2d", "conv_depthwise3d", "miopen_depthwise_convolution",
         "cudnn_convolution_transpose", "miopen_convolution_transpose",
         "cudnn_convolution_relu", "miopen_convolution_relu"),
        convolution,
    ),
    "convolution_backward": convolution_backward,
}  # fmt: skip
ATTENTION: dict[str, Rule] = dict.fromkeys(
    ("_flash_attention_forward", "_efficient_attention_forward",
     "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_for_cpu",
     "_flash_attention_backward", "_efficient_attention_backward",
     "_scaled_dot_product_cudnn_attention_backward",
     "_scaled_dot_product_flash_attention_for_cpu_backward", "_cudnn_attention_forward",
     "_cudnn_attention_backward"),
    attention,
)  # fmt: skip
RECURRENT: dict[str, Rule] = dict.fromkeys(("_cudnn_rnn", "miopen_rnn"), recurrent)
RATCHET: dict[str, Rule] = {
    "linear": linear,
    "linear_dgrad": linear_input_gradient,
    "linear_wgrad": linear_weight_gradient,
    "attention": attention,
    "attention_backward": attention,
    "linear_cross_entropy": linear_cross_entropy,
    "linear_cross_entropy_gradients": linear_cross_entropy_gradients,
}
"""Ratchet's own products; the judge's library has their schemas."""
