"""Attention without dropout, with no mask or a causal one, and rotary positions.

Key-value heads repeated for the call (`repeat_kv`: expand and reshape, or repeat_interleave) are
passed once. A mask that depends on no input of the graph is computed; the causal triangle and the
all-true mask are recognised. Declined: dropout, any other mask, a causal mask when the numbers of
queries and keys differ, values with another head dimension.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.fx import Node

from ratchet.train.graph.nodes import (
    Declined,
    as_node,
    bind,
    calls,
    is_causal_mask,
    is_open_mask,
    operands,
    other_operand,
    tensor,
    through_casts,
    value,
)
from ratchet.train.graph.scope import CapturedSite, Pattern, Scope, rounds_to

_DEFAULTS = {
    "attn_mask": None,
    "dropout_p": 0.0,
    "is_causal": False,
    "scale": None,
    "enable_gqa": False,
}
_NAMES = ("query", "key", "value", *_DEFAULTS)


def _install_attention(node: Node, scope: Scope) -> None:
    given = bind(node, _NAMES, _DEFAULTS)
    if given["dropout_p"] != 0:
        raise Declined(f"attention has dropout {given['dropout_p']}; the kernel has none")
    query, key, value = (as_node(given[name]) for name in ("query", "key", "value"))
    scope.require_movable([node])
    queries, keys = tensor(query).shape[-2], tensor(key).shape[-2]
    mask, causal = given["attn_mask"], bool(given["is_causal"])
    if mask is not None:
        causal = _mask_is_causal(as_node(mask), queries, keys, scope) or causal
    if causal and queries != keys:
        raise Declined(f"attention is causal over {queries} queries and {keys} keys")
    key, value = _unrepeated(key, value)
    _check_shapes(tensor(query), tensor(key), tensor(value))
    dtype = tensor(node).dtype
    if dtype not in (torch.float32, torch.bfloat16):
        raise Declined(f"attention computes in {dtype}; the kernel supports fp32 and bf16")
    scale = given["scale"]
    both = scope.kernel(
        torch.ops.ratchet.attention.default,
        *(scope.cast(part, dtype) for part in (query, key, value)),
        causal,
        1.0 / math.sqrt(tensor(query).shape[-1]) if scale is None else float(scale),
    )
    scope.replace_as(node, scope.item(both, 0))


def _mask_is_causal(mask: Node, queries: int, keys: int, scope: Scope) -> bool:
    found = scope.constants.find(mask)
    if found is None:
        raise Declined(f"attention has the mask {mask}, which is not known when compiling")
    if is_causal_mask(found, queries, keys):
        return True
    if is_open_mask(found):
        return False
    raise Declined(f"attention has the mask {mask}, which is neither causal nor open")


def _unrepeated(key: Node, value: Node) -> tuple[Node, Node]:
    """Return keys and values before their heads were repeated, if both were repeated equally."""
    once = _before_repeat(key), _before_repeat(value)
    if once[0] is None or once[1] is None:
        return key, value
    heads = tensor(once[0]).shape[1], tensor(once[1]).shape[1]
    return (once[0], once[1]) if heads[0] == heads[1] else (key, value)


def _before_repeat(node: Node) -> Node | None:
    if calls(node, "repeat_interleave"):
        given = bind(node, ("input", "repeats", "dim", "output_size"), {"dim": None})
        source = as_node(given["input"])
        plain = isinstance(given["repeats"], int) and given["dim"] in (1, -3)
        return source if plain and tensor(source).dim() == 4 else None
    expanded = node.args[0] if calls(node, "reshape") else None
    if not isinstance(expanded, Node) or not calls(expanded, "expand"):
        return None
    widened = expanded.args[0]
    if not isinstance(widened, Node) or not _adds_third_dimension(widened):
        return None
    source = as_node(widened.args[0])
    batch, heads, length, width = tensor(source).shape
    shape, times = tuple(tensor(expanded).shape), tensor(expanded).shape[2]
    if shape != (batch, heads, times, length, width):
        return None
    return source if tuple(tensor(node).shape) == (batch, heads * times, length, width) else None


def _adds_third_dimension(node: Node) -> bool:
    """Recognise x[:, :, None] or x.unsqueeze(2) of a 4-dimensional x."""
    if not isinstance(node.args[0], Node) or tensor(node.args[0]).dim() != 4:
        return False
    if calls(node, "unsqueeze"):
        return (node.args[1:] or (node.kwargs.get("dim"),))[0] in (2, -3)
    if not calls(node, "getitem") or not isinstance(node.args[1], tuple):
        return False
    index = node.args[1]
    rest = [part for place, part in enumerate(index) if place != 2]
    return len(index) >= 3 and index[2] is None and all(part == slice(None) for part in rest)


def _check_shapes(query: Tensor, key: Tensor, value: Tensor) -> None:
    if not query.dim() == key.dim() == value.dim() == 4:
        raise Declined(f"attention has {query.dim()}-dimensional queries, not 4-dimensional ones")
    if key.shape != value.shape:
        raise Declined(f"keys {tuple(key.shape)} and values {tuple(value.shape)} differ in shape")
    if query.shape[0] != key.shape[0] or query.shape[3] != key.shape[3]:
        raise Declined(f"queries {tuple(query.shape)} do not fit keys {tuple(key.shape)}")
    if query.shape[1] % key.shape[1]:
        raise Declined(f"{key.shape[1]} key-value heads do not divide {query.shape[1]} heads")


def _attention_sizes(site: CapturedSite) -> dict[str, object]:
    batch, heads, length, width = site.shapes["q"]
    sizes = {"batch": batch, "heads": heads, "kv_heads": site.shapes["k"][1]}
    return {**sizes, "sequence": length, "head_dim": width, "dtype": site.dtype("q")}


ATTENTION = Pattern(
    name="attention",
    place=20,
    find=lambda node: calls(node, "attention"),
    install=_install_attention,
    sizes=_attention_sizes,
)


# x * cos + rotate_half(x) * sin, with rotate_half(x) = cat(-second half, first half).
#
# x is [B, H, T, D] (or [B, T, H, D] before its transpose). cos and sin are tables of shape [T, D],
# or [1 or B, T, D] with a dimension added for the heads. Declined: halves in another order, tables
# that vary by head or need a gradient.


def _products(node: Node) -> tuple[Node, Node, Node] | None:
    """Return the plain product, the rotated product and the rotation of an addition like rope's."""
    both = operands(node)
    if both is None or not all(calls(part, "mul") for part in both):
        return None
    for plain, turned in (both, both[::-1]):
        for part in operands(turned) or ():
            if _looks_rotated(part):
                return plain, turned, part
    return None


def _looks_rotated(node: object) -> bool:
    """Recognise a cat of two tensors along the last dimension, one of them negated."""
    if not calls(node, "cat") or not isinstance(node.args[0], list | tuple):
        return False
    parts = node.args[0]
    dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
    found = value(node)
    last = found is not None and dim in (-1, found.dim() - 1)
    return last and len(parts) == 2 and sum(calls(part, "neg") for part in parts) == 1


def _install_rope(node: Node, scope: Scope) -> None:
    found = _products(node)
    assert found is not None
    plain, turned, rotation = found
    x = _rotated_source(rotation)
    pairs = ((plain, x), (turned, rotation))
    cos, sin = (through_casts(other_operand(*one)) for one in pairs)
    scope.require_movable([node, plain, turned, rotation])
    heads_last = _heads_dimension(x, cos, sin) == 2
    dtype = tensor(node).dtype
    if dtype not in (torch.float32, torch.bfloat16):
        raise Declined(f"the rotation computes in {dtype}; the kernel supports fp32 and bf16")
    if tensor(x).dtype != dtype and not rounds_to(node, tensor(x).dtype):
        x = scope.cast(x, dtype)
    x = scope.method("transpose", x, 1, 2) if heads_last else x
    turned_x = scope.kernel(
        torch.ops.ratchet.rope.default, x, _table(cos, x, scope), _table(sin, x, scope)
    )
    turned_x = scope.method("transpose", turned_x, 1, 2) if heads_last else turned_x
    scope.replace_rounded(node, turned_x)


def _rotated_source(rotation: Node) -> Node:
    parts = rotation.args[0]
    assert isinstance(parts, list | tuple)
    negated, first = as_node(parts[0]), as_node(parts[1])
    turned = _half_of(negated.args[0]) if calls(negated, "neg") else None
    kept = _half_of(first)
    if turned is None or kept is None or turned[0] is not kept[0]:
        raise Declined(f"{rotation} is not cat(-second half, first half) of one tensor")
    if (turned[1], kept[1]) != (1, 0):
        raise Declined(f"{rotation} rotates the halves the other way round")
    return turned[0]


def _half_of(node: object) -> tuple[Node, int] | None:
    """Return the sliced node and which half of its last dimension this is (0 or 1)."""
    if not calls(node, "getitem"):
        return None
    source, index = as_node(node.args[0]), node.args[1]
    if isinstance(index, int):
        return _part_of(source, index)
    if not isinstance(index, tuple) or not isinstance(index[-1], slice):
        return None
    full = all(part is Ellipsis or part == slice(None) for part in index[:-1])
    width = tensor(source).shape[-1]
    covers = Ellipsis in index or len(index) == tensor(source).dim()
    if not full or not covers or width % 2:
        return None
    for which, bounds in enumerate(((0, width // 2), (width // 2, width))):
        if index[-1].indices(width) == (*bounds, 1):
            return source, which
    return None


def _part_of(node: object, place: int) -> tuple[Node, int] | None:
    """Return the half that x.chunk(2, -1) or x.split(D / 2, -1) gives at `place`."""
    if not (calls(node, "chunk") or calls(node, "split")):
        return None
    source = as_node(node.args[0])
    width, rank = tensor(source).shape[-1], tensor(source).dim()
    size = node.args[1] if len(node.args) > 1 else None
    dim = node.kwargs.get("dim", node.args[2] if len(node.args) > 2 else 0)
    wanted = 2 if calls(node, "chunk") else width // 2
    if width % 2 or size != wanted or dim not in (-1, rank - 1):
        return None
    return source, place % 2


def _heads_dimension(x: Node, cos: Node, sin: Node) -> int:
    """Return the dimension of x that holds the heads: the one missing from the tables."""
    shape = tuple(tensor(x).shape)
    if len(shape) != 4:
        raise Declined(f"the rotated tensor has {len(shape)} dimensions, not 4")
    tables = tensor(cos), tensor(sin)
    if tables[0].shape != tables[1].shape:
        raise Declined("cos and sin differ in shape")
    if any(table.requires_grad for table in tables):
        raise Declined("cos or sin needs a gradient, which the kernel does not compute")
    size = (1,) * (4 - tables[0].dim()) + tuple(tables[0].shape)
    for heads, tokens in ((1, 2), (2, 1)):
        wanted = (1, shape[tokens], shape[3])
        if (size[heads], size[tokens], size[3]) == wanted and size[0] in (1, shape[0]):
            return heads
    raise Declined(f"tables {tuple(tables[0].shape)} do not fit the rotated tensor {shape}")


def _table(table: Node, x: Node, scope: Scope) -> Node:
    """Return the table as [T, D], or [B, T, D] if it varies over the batch; x is [B, H, T, D]."""
    length, width = tensor(x).shape[2:]
    batch = tensor(table).numel() // (length * width)
    shape = (length, width) if batch == 1 else (batch, length, width)
    if tuple(tensor(table).shape) == shape:
        return table
    return scope.derived("reshape", table, *shape)


def _rope_sizes(site: CapturedSite) -> dict[str, object]:
    batch, heads, length, width = site.shapes["x"]
    sizes = {"batch": batch, "heads": heads, "sequence": length, "head_dim": width}
    return {**sizes, "dtype": site.dtype("x")}


ROPE = Pattern(
    name="rope",
    place=30,
    find=lambda node: calls(node, "add") and _products(node) is not None,
    install=_install_rope,
    sizes=_rope_sizes,
)
