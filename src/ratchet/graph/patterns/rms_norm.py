"""F.rms_norm and the handwritten form of Hugging Face models, with an optional residual sum.

The handwritten form casts x to fp32, computes x * rsqrt(mean(x ** 2) + eps), casts to the dtype of
x and multiplies by the weight. The multiplication may also come before the cast. Declined: no
weight, a default eps in bf16, an inner result with another user.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ratchet.graph.nodes import Declined, as_node, bind, calls, only_user, operands, tensor, value
from ratchet.graph.patterns.norms import Norm, install_norm, norm_sizes, source_of, vector_size
from ratchet.graph.patterns.pattern import Pattern
from ratchet.graph.scope import Scope


def _find(node: Node) -> bool:
    return calls(node, "rms_norm") or (calls(node, "rsqrt") and _mean_square(node) is not None)


def _install(node: Node, scope: Scope) -> None:
    norm = _function(node) if calls(node, "rms_norm") else _by_hand(node)
    scope.insert_before(norm.end)
    ops = torch.ops.ratchet
    install_norm(norm, ops.rms_norm.default, ops.add_rms_norm.default, scope)


def _function(node: Node) -> Norm:
    names = ("input", "normalized_shape", "weight", "eps")
    given = bind(node, names, {"weight": None, "eps": None})
    vector_size(given["normalized_shape"])
    if given["weight"] is None:
        raise Declined("rms_norm has no weight")
    x = as_node(given["input"])
    eps = given["eps"]
    if eps is None:
        if tensor(x).dtype != torch.float32:
            raise Declined(f"rms_norm leaves eps to the precision of {tensor(x).dtype}")
        eps = torch.finfo(torch.float32).eps
    return Norm(
        x=source_of(x),
        parameters=(as_node(given["weight"]),),
        eps=float(eps),
        end=node,
        members=(node,),
    )


def _mean_square(node: Node) -> tuple[Node, float, tuple[Node, ...]] | None:
    """Return x, eps and the inner nodes of rsqrt(mean(x ** 2, -1, keepdim=True) + eps)."""
    shifted = node.args[0]
    if not isinstance(shifted, Node) or not calls(shifted, "add"):
        return None
    both = operands(shifted)
    if both is None:
        return None
    mean, eps = both if isinstance(both[1], float) else both[::-1]
    if not isinstance(eps, float) or not _is_last_mean(mean):
        return None
    square = mean.args[0]
    x = _squared(square)
    return None if x is None else (x, eps, (shifted, mean, as_node(square)))


def _is_last_mean(node: Any) -> bool:
    if not calls(node, "mean") or not isinstance(node.args[0], Node):
        return False
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    keeps = node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False)
    dim = dim[0] if isinstance(dim, list | tuple) and len(dim) == 1 else dim
    source = value(node.args[0])
    return bool(keeps) and source is not None and dim in (-1, source.dim() - 1)


def _squared(node: Any) -> Node | None:
    """Return x from x ** 2, x * x or x.square()."""
    if calls(node, "square"):
        return as_node(node.args[0])
    both = operands(node) if isinstance(node, Node) else None
    if both is None or not isinstance(both[0], Node):
        return None
    if calls(node, "pow") and both[1] == 2:
        return both[0]
    return both[0] if calls(node, "mul") and both[0] is both[1] else None


def _by_hand(rsqrt: Node) -> Norm:
    found = _mean_square(rsqrt)
    assert found is not None
    squared, eps, inner = found
    scaled = _times(rsqrt, "the reciprocal root")
    other = _other(scaled, rsqrt)
    if other is not squared and source_of(other) is not source_of(squared):
        raise Declined(f"{scaled} scales {other}, not the tensor whose mean square was taken")
    casts = []
    weighted = only_user(scaled)
    while weighted is not None and calls(weighted, "cast"):
        casts.append(weighted)
        weighted = only_user(weighted)
    if weighted is None or not calls(weighted, "mul"):
        raise Declined(f"the normalised {scaled} is not multiplied by a weight alone")
    weight = _other(weighted, casts[-1] if casts else scaled)
    return Norm(
        x=source_of(squared),
        parameters=(weight,),
        eps=eps,
        end=weighted,
        members=(*inner, rsqrt, scaled, *casts, weighted),
    )


def _times(node: Node, what: str) -> Node:
    user = only_user(node)
    if user is None or not calls(user, "mul"):
        raise Declined(f"{what} {node} is used by something other than one product")
    return user


def _other(product: Node, known: Node) -> Node:
    both = operands(product)
    if both is None or known not in both:
        raise Declined(f"{product} is not a plain product")
    return as_node(both[1] if both[0] is known else both[0])


RMS_NORM = Pattern(
    name="rms_norm",
    summary="RMSNorm, with the residual sum in front of it",
    find=_find,
    install=_install,
    sizes=norm_sizes,
)
