"""scaled_dot_product_attention without dropout, with no mask or a causal one.

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

from ratchet.train.graph.constants import is_causal_mask, is_open_mask
from ratchet.train.graph.nodes import Declined, as_node, bind, calls, tensor
from ratchet.train.graph.patterns.pattern import Pattern
from ratchet.train.graph.scope import Scope
from ratchet.train.graph.sites import CapturedSite

_NAMES = (
    "query",
    "key",
    "value",
    "attn_mask",
    "dropout_p",
    "is_causal",
    "scale",
    "enable_gqa",
)
_DEFAULTS = {
    "attn_mask": None,
    "dropout_p": 0.0,
    "is_causal": False,
    "scale": None,
    "enable_gqa": False,
}


def _find(node: Node) -> bool:
    return calls(node, "attention")


def _install(node: Node, scope: Scope) -> None:
    given = bind(node, _NAMES, _DEFAULTS)
    if given["dropout_p"] != 0:
        raise Declined(f"attention has dropout {given['dropout_p']}; the kernel has none")
    query, key, value = (as_node(given[name]) for name in ("query", "key", "value"))
    scope.require_movable([node])
    causal = _is_causal(given, tensor(query), tensor(key), scope)
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


def _is_causal(given: dict[str, object], query: Tensor, key: Tensor, scope: Scope) -> bool:
    queries, keys = query.shape[-2], key.shape[-2]
    mask = given["attn_mask"]
    if mask is None:
        causal = bool(given["is_causal"])
    else:
        causal = _mask_is_causal(as_node(mask), queries, keys, scope) or bool(given["is_causal"])
    if causal and queries != keys:
        raise Declined(f"attention is causal over {queries} queries and {keys} keys")
    return causal


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
        return _before_interleave(node)
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


def _before_interleave(node: Node) -> Node | None:
    given = bind(node, ("input", "repeats", "dim", "output_size"), {"dim": None})
    source = as_node(given["input"])
    plain = isinstance(given["repeats"], int) and given["dim"] in (1, -3)
    return source if plain and tensor(source).dim() == 4 else None


def _check_shapes(query: Tensor, key: Tensor, value: Tensor) -> None:
    if not query.dim() == key.dim() == value.dim() == 4:
        raise Declined(f"attention has {query.dim()}-dimensional queries, not 4-dimensional ones")
    if key.shape != value.shape:
        raise Declined(f"keys {tuple(key.shape)} and values {tuple(value.shape)} differ in shape")
    if query.shape[0] != key.shape[0] or query.shape[3] != key.shape[3]:
        raise Declined(f"queries {tuple(query.shape)} do not fit keys {tuple(key.shape)}")
    if query.shape[1] % key.shape[1]:
        raise Declined(f"{key.shape[1]} key-value heads do not divide {query.shape[1]} heads")


def _sizes(site: CapturedSite) -> dict[str, object]:
    batch, heads, length, width = site.shapes["q"]
    sizes = {"batch": batch, "heads": heads, "kv_heads": site.shapes["k"][1]}
    return {**sizes, "sequence": length, "head_dim": width, "dtype": site.dtype("q")}


ATTENTION = Pattern(
    name="attention",
    place=20,
    find=_find,
    install=_install,
    sizes=_sizes,
)
