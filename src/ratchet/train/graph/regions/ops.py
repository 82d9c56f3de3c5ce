"""Sort ATen operations: those that fuse, views, and products."""

from __future__ import annotations

from functools import cache
from typing import Any, Final, Literal

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

OpKind = Literal["pointwise", "fused", "view", "product", "other"]
"""`fused` may read elements from elsewhere (reductions, scans, gathers): a kernel's, but no
epilogue. Nothing crosses an `other`."""

VIEWS: Final = frozenset(
    {
        *("view", "_unsafe_view", "reshape", "permute", "transpose", "t", "expand", "unsqueeze"),
        *("squeeze", "slice", "select", "split", "split_with_sizes", "unbind", "as_strided"),
        *("alias", "detach", "unfold", "diagonal"),
    }
)
CREATIONS: Final = frozenset(
    {"full", "full_like", "zeros", "zeros_like", "ones", "ones_like", "arange", "iota", "eye"}
    | {"scalar_tensor", "empty", "new_zeros", "new_ones", "new_full"}
)
POINTWISE: Final = CREATIONS | frozenset(
    {"_to_copy", "convert_element_type", "constant_pad_nd", "fma", "copy", "clone"}
    | {"lift_fresh_copy"}
)
"""Beside those that torch tags as pointwise."""
REDUCTIONS: Final = frozenset(
    {
        *("sum", "mean", "amax", "amin", "prod", "any", "all", "var", "var_mean", "std"),
        *("argmax", "argmin", "max", "min", "logsumexp", "linalg_vector_norm"),
        *("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"),
        *("native_layer_norm", "native_layer_norm_backward", "_fused_rms_norm"),
        *("_fused_rms_norm_backward", "native_group_norm", "native_group_norm_backward"),
    }
)
MOVES: Final = frozenset(
    {
        *("cat", "index", "gather", "embedding", "index_select", "flip", "roll", "repeat"),
        *("tril", "triu", "slice_scatter", "select_scatter", "index_put", "_unsafe_index"),
        *("_unsafe_masked_index", "_unsafe_masked_index_put_accumulate"),
        *("_unsafe_index_put", "scatter", "scatter_add", "index_add", "cumsum", "cumprod"),
        *("embedding_dense_backward", "stack", "as_strided_scatter", "diagonal_scatter"),
    }
)
PRODUCTS: Final = frozenset(
    {
        *("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward"),
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    }
)
"""Those whose reference also runs in float64. The GPU's fused attention does not."""
BY_DTYPE: Final = frozenset({"view.dtype"})
"""They read the bits of a value: float64 has others."""
NAMESPACES: Final = ("aten", "prims")


def kind_of(node: Node) -> OpKind:
    """Return what a node of an ATen graph is to a region."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return "other"
    if not all(_is_plain(value) for value in values_of(node)) or _drops_out(node):
        return "other"
    return _kind(node.target)


def _drops_out(node: Node) -> bool:
    """Return True for attention with dropout: it draws random numbers."""
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    if target._schema.name.split("::")[1] not in PRODUCTS:
        return False
    names = [one.name for one in target._schema.arguments]
    if "dropout_p" not in names:
        return False
    place = names.index("dropout_p")
    given = node.args[place] if len(node.args) > place else node.kwargs.get("dropout_p", 0.0)
    return bool(given != 0.0)


def is_getitem(node: Node) -> bool:
    """Return True if a node takes one result of a node that has several."""
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"


def op_name(node: Node) -> str:
    """Return an operation's name without its namespace and overload: `mul`, `mm`."""
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target._schema.name.split("::")[1])
    return str(getattr(node.target, "__name__", node.target))


def values_of(node: Node) -> list[Any]:
    """Return the fake tensors of a node's results; empty if it has none."""
    return [one for one in pytree.tree_leaves(node.meta.get("val")) if one is not None]


def _is_plain(value: object) -> bool:
    """Return True for a dense tensor whose sizes are known."""
    return (
        isinstance(value, torch.Tensor)
        and value.layout == torch.strided
        and all(isinstance(size, int) for size in (*value.shape, *value.stride()))
    )


@cache
def _kind(target: torch._ops.OpOverload) -> OpKind:
    name = target._schema.name.split("::")[1]
    if target.namespace not in NAMESPACES or target._schema.is_mutable:
        return "other"
    if f"{name}.{target._overloadname}" in BY_DTYPE or name.startswith("inductor_"):
        return "other"
    if name in PRODUCTS:
        return "product"
    if torch.Tag.nondeterministic_seeded in target.tags:
        return "other"
    if name in VIEWS:
        return "view"
    if name in REDUCTIONS or name in MOVES:
        return "fused"
    if name in POINTWISE or torch.Tag.pointwise in target.tags:
        return "pointwise"
    return "other"
