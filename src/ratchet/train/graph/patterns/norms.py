"""Norms over the last dimension, with an optional residual sum before them.

F.layer_norm, F.rms_norm, and RMSNorm's handwritten form of Hugging Face models: it casts x to fp32,
computes x * rsqrt(mean(x ** 2) + eps), casts to the dtype of x and multiplies by the weight. The
multiplication may also come before the cast. Declined: no weight, several dimensions, RMSNorm's
default eps in bf16, an inner result with another user.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch._ops import OpOverload
from torch.fx import Node

from ratchet.train.graph.nodes import (
    Declined,
    as_node,
    bind,
    calls,
    only_user,
    operands,
    other_operand,
    tensor,
    through_casts,
    value,
)
from ratchet.train.graph.scope import CapturedSite, Pattern, Scope, rounds_to

KNOWN = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, kw_only=True, slots=True)
class Norm:
    """A norm over the last dimension, as found in the graph."""

    x: Node  # The tensor that is normalised, before any cast
    parameters: tuple[Node | None, ...]  # Weight, or weight and bias; vectors of x's last size
    eps: float
    end: Node  # The node whose result the kernel computes
    members: tuple[Node, ...]  # Every node that the kernel replaces


def _install(norm: Norm, plain: OpOverload, summed: OpOverload, scope: Scope) -> None:
    """Replace the norm with `plain`, or with `summed` if x is a sum that the kernel can absorb."""
    norm = _with_last_cast(norm)
    _check(norm)
    scope.require_movable(norm.members)
    addition = _residual_sum(norm)
    if addition is not None and _install_summed(norm, addition, summed, scope):
        return
    result = scope.kernel(plain, norm.x, *norm.parameters, norm.eps, _result_dtype(norm, norm.x))
    scope.replace_rounded(norm.end, result)


def _install_summed(norm: Norm, addition: Node, summed: OpOverload, scope: Scope) -> bool:
    """Install norm(x + residual) as one call at the sum; return False if it does not fit."""
    try:
        scope.require_movable([*norm.members, addition])
    except Declined:
        return False
    branch, residual = (as_node(part) for part in addition.args)
    if tensor(branch).dtype == tensor(addition).dtype:  # the residual's is the sum's
        branch, residual = residual, branch
    mark = scope.mark()
    scope.insert_before(addition)
    dtype = _result_dtype(norm, residual)
    both = scope.kernel(summed, branch, residual, *norm.parameters, norm.eps, dtype)
    result, total = scope.item(both, 0), scope.item(both, 1)
    if tensor(total).dtype != tensor(addition).dtype:
        scope.roll_back(mark)
        scope.insert_before(norm.end)
        return False
    scope.replace_rounded(norm.end, result)
    scope.replace_as(addition, total)
    return True


def _with_last_cast(norm: Norm) -> Norm:
    """Include a cast that alone uses the result, as in `norm(x.float()).type_as(x)`."""
    user = only_user(norm.end)
    if user is None or not calls(user, "cast") or value(user) is None:
        return norm
    return replace(norm, end=user, members=(*norm.members, user))


def _check(norm: Norm) -> None:
    x, end = tensor(norm.x), tensor(norm.end)
    if x.dtype not in KNOWN or end.dtype not in KNOWN:
        raise Declined(f"the norm maps {x.dtype} to {end.dtype}; kernels support fp32 and bf16")
    if x.shape != end.shape:
        raise Declined(f"the norm's weight broadcasts {tuple(x.shape)} to {tuple(end.shape)}")
    for parameter in norm.parameters:
        if parameter is not None and tuple(tensor(parameter).shape) != (x.shape[-1],):
            raise Declined(f"the norm's {parameter} is not a vector of size {x.shape[-1]}")


def _result_dtype(norm: Norm, source: Node) -> str:
    """Return the op's out_dtype: empty for x's own dtype, otherwise the name of the needed one."""
    needed = tensor(norm.end).dtype
    if needed == torch.float32 and rounds_to(norm.end, torch.bfloat16):
        needed = torch.bfloat16
    return "" if needed == tensor(source).dtype else str(needed).removeprefix("torch.")


def _residual_sum(norm: Norm) -> Node | None:
    """Return x if it adds two tensors of its own shape and the parameters come before it."""
    both = operands(norm.x) if calls(norm.x, "add") else None
    if both is None:
        return None
    shape = tensor(norm.x).shape
    for part in both:
        found = value(part)
        if found is None or found.shape != shape or found.dtype not in KNOWN:
            return None
    ready = all(parameter is None or parameter < norm.x for parameter in norm.parameters)
    return norm.x if ready else None


def _source_of(node: Node) -> Node:
    """Return the norm's input: `node` before it was widened to fp32."""
    source = through_casts(node)
    found, before = value(node), value(source)
    narrowed = (
        found is not None and before is not None and found.dtype.itemsize < before.dtype.itemsize
    )
    return node if narrowed else source


def _sizes(site: CapturedSite) -> dict[str, object]:
    return {**site.rows("x"), "hidden": site.shapes["x"][-1], "weight_dtype": site.dtype("weight")}


def _install_rms_norm(node: Node, scope: Scope) -> None:
    norm = _function(node, "rms_norm", ("weight",)) if calls(node, "rms_norm") else _by_hand(node)
    scope.insert_before(norm.end)
    ops = torch.ops.ratchet
    _install(norm, ops.rms_norm.default, ops.add_rms_norm.default, scope)


def _install_layer_norm(node: Node, scope: Scope) -> None:
    ops = torch.ops.ratchet
    norm = _function(node, "layer_norm", ("weight", "bias"), eps=1e-5)
    _install(norm, ops.layer_norm.default, ops.add_layer_norm.default, scope)


def _function(node: Node, name: str, parameters: tuple[str, ...], eps: float | None = None) -> Norm:
    """Return the norm that torch's own function computes; `eps` is its default."""
    names = ("input", "normalized_shape", *parameters, "eps")
    given = bind(node, names, {**dict.fromkeys(parameters), "eps": eps})
    shape = given["normalized_shape"]
    sizes = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    if len(sizes) != 1 or not isinstance(sizes[0], int):
        raise Declined(f"the norm is over the shape {shape}, not over the last dimension")
    if given["weight"] is None:
        raise Declined(f"{name} has no weight")
    x = as_node(given["input"])
    eps = given["eps"]
    if eps is None:
        if tensor(x).dtype != torch.float32:
            raise Declined(f"{name} leaves eps to the precision of {tensor(x).dtype}")
        eps = torch.finfo(torch.float32).eps
    return Norm(
        x=_source_of(x),
        parameters=tuple(given[one] and as_node(given[one]) for one in parameters),
        eps=float(eps),
        end=node,
        members=(node,),
    )


def _mean_square(node: Node) -> tuple[Node, float, tuple[Node, ...]] | None:
    """Return x, eps and the inner nodes of rsqrt(mean(x ** 2, -1, keepdim=True) + eps)."""
    shifted = node.args[0]
    both = operands(shifted) if calls(shifted, "add") else None
    if both is None:
        return None
    mean, eps = both if isinstance(both[1], float) else both[::-1]
    if not isinstance(eps, float) or not _is_last_mean(mean):
        return None
    square = mean.args[0]
    x = _squared(square)
    return None if x is None else (x, eps, (as_node(shifted), mean, as_node(square)))


def _is_last_mean(node: object) -> bool:
    if not calls(node, "mean") or not isinstance(node.args[0], Node):
        return False
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    keeps = node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False)
    dim = dim[0] if isinstance(dim, list | tuple) and len(dim) == 1 else dim
    source = value(node.args[0])
    return bool(keeps) and source is not None and dim in (-1, source.dim() - 1)


def _squared(node: object) -> Node | None:
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
    scaled = only_user(rsqrt)
    if scaled is None or not calls(scaled, "mul"):
        raise Declined(f"the reciprocal root {rsqrt} is used by something other than one product")
    other = other_operand(scaled, rsqrt)
    if other is not squared and _source_of(other) is not _source_of(squared):
        raise Declined(f"{scaled} scales {other}, not the tensor whose mean square was taken")
    casts = []
    weighted = only_user(scaled)
    while weighted is not None and calls(weighted, "cast"):
        casts.append(weighted)
        weighted = only_user(weighted)
    if weighted is None or not calls(weighted, "mul"):
        raise Declined(f"the normalised {scaled} is not multiplied by a weight alone")
    weight = other_operand(weighted, casts[-1] if casts else scaled)
    return Norm(
        x=_source_of(squared),
        parameters=(weight,),
        eps=eps,
        end=weighted,
        members=(*inner, rsqrt, scaled, *casts, weighted),
    )


RMS_NORM = Pattern(
    name="rms_norm",
    place=60,
    find=lambda node: (
        calls(node, "rms_norm") or (calls(node, "rsqrt") and _mean_square(node) is not None)
    ),
    install=_install_rms_norm,
    sizes=_sizes,
)
LAYER_NORM = Pattern(
    name="layer_norm",
    place=70,
    find=lambda node: calls(node, "layer_norm"),
    install=_install_layer_norm,
    sizes=_sizes,
)
