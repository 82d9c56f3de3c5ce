"""x * cos + rotate_half(x) * sin, with rotate_half(x) = cat(-second half, first half).

x is [B, H, T, D] (or [B, T, H, D] before its transpose). cos and sin are tables of shape [T, D], or
[1 or B, T, D] with a dimension added for the heads. Declined: halves in another order, tables that
vary by head or need a gradient.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from ratchet.train.graph.nodes import (
    Declined,
    as_node,
    calls,
    operands,
    tensor,
    through_casts,
    value,
)
from ratchet.train.graph.patterns.pattern import Pattern
from ratchet.train.graph.scope import Scope, rounds_to
from ratchet.train.graph.sites import CapturedSite


def _find(node: Node) -> bool:
    return calls(node, "add") and _products(node) is not None


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


def _install(node: Node, scope: Scope) -> None:
    found = _products(node)
    assert found is not None
    plain, turned, rotation = found
    x = _rotated_source(rotation)
    cos, sin = _other_operand(plain, x), _other_operand(turned, rotation)
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


def _other_operand(product: Node, known: Node) -> Node:
    both = operands(product)
    if both is None or known not in both:
        raise Declined(f"{product} does not multiply {known}")
    other = both[1] if both[0] is known else both[0]
    return through_casts(as_node(other))


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


def _sizes(site: CapturedSite) -> dict[str, object]:
    batch, heads, length, width = site.shapes["x"]
    sizes = {"batch": batch, "heads": heads, "sequence": length, "head_dim": width}
    return {**sizes, "dtype": site.dtype("x")}


ROPE = Pattern(
    name="rope",
    place=30,
    find=_find,
    install=_install,
    sizes=_sizes,
)
