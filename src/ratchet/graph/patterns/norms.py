"""Code that both norms share: residual sums, result dtypes and installation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from ratchet.graph.nodes import (
    Declined,
    as_node,
    calls,
    only_user,
    operands,
    tensor,
    through_casts,
    value,
)
from ratchet.graph.scope import Scope, rounds_to
from ratchet.graph.sites import CapturedSite

KNOWN = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, kw_only=True, slots=True)
class Norm:
    """A norm over the last dimension, as found in the graph."""

    x: Node
    """The tensor that is normalised, before any cast."""
    parameters: tuple[Node | None, ...]
    """Weight, or weight and bias; vectors of x's last size."""
    eps: float
    end: Node
    """The node whose result the kernel computes."""
    members: tuple[Node, ...]
    """Every node that the kernel replaces."""


def install_norm(norm: Norm, plain: Any, summed: Any, scope: Scope) -> None:
    """Replace the norm with `plain`, or with `summed` if x is a sum that the kernel can absorb."""
    norm = _with_last_cast(norm)
    _check(norm)
    scope.require_movable(norm.members)
    addition = _residual_sum(norm)
    if addition is not None and _install_summed(norm, addition, summed, scope):
        return
    result = scope.kernel(plain, norm.x, *norm.parameters, norm.eps, _result_dtype(norm, norm.x))
    scope.replace_rounded(norm.end, result)


def _install_summed(norm: Norm, addition: Node, summed: Any, scope: Scope) -> bool:
    """Install norm(x + residual) as one call at the sum; return False if it does not fit."""
    try:
        scope.require_movable([*norm.members, addition])
    except Declined:
        return False
    branch, residual = _branch_and_residual(addition)
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
    return Norm(
        x=norm.x,
        parameters=norm.parameters,
        eps=norm.eps,
        end=user,
        members=(*norm.members, user),
    )


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


def _branch_and_residual(addition: Node) -> tuple[Node, Node]:
    """Return the sum's operands; the residual is the one that has the sum's dtype."""
    first, second = (as_node(part) for part in addition.args)
    dtype = tensor(addition).dtype
    return (second, first) if tensor(first).dtype == dtype else (first, second)


def source_of(node: Node) -> Node:
    """Return the norm's input: `node` before it was widened to fp32."""
    source = through_casts(node)
    found, before = value(node), value(source)
    narrowed = (
        found is not None and before is not None and found.dtype.itemsize < before.dtype.itemsize
    )
    return node if narrowed else source


def vector_size(shape: Any) -> int:
    """Return the only size in a norm's `normalized_shape`; raise Declined if there are several."""
    sizes = (shape,) if isinstance(shape, int) else tuple(shape) if _is_sequence(shape) else ()
    if len(sizes) != 1 or not isinstance(sizes[0], int):
        raise Declined(f"the norm is over the shape {shape}, not over the last dimension")
    return sizes[0]


def _is_sequence(shape: Any) -> bool:
    return isinstance(shape, Sequence)


def norm_sizes(site: CapturedSite) -> dict[str, Any]:
    """Return the sizes that a norm's site knows."""
    return {**site.rows("x"), "hidden": site.shapes["x"][-1], "weight_dtype": site.dtype("weight")}
