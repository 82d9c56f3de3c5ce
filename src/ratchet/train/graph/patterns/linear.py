"""Linear layers with a bf16 result, under autocast or with bf16 weights.

An fp32 input is cast by a `.to` in the graph. There inductor can fuse it into the producer of the
input, autograd sees it, and layers that share an input share the cast. An fp32 weight is passed
unchanged: the kernel rounds it while packing, and its gradient returns in fp32 without a copy.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from ratchet.train.graph.nodes import Declined, as_node, bind, calls, tensor, value
from ratchet.train.graph.patterns.pattern import Pattern
from ratchet.train.graph.scope import Scope
from ratchet.train.graph.sites import CapturedSite


def _find(node: Node) -> bool:
    found = value(node)
    return calls(node, "linear") and found is not None and found.dtype == torch.bfloat16


def _install(node: Node, scope: Scope) -> None:
    given = bind(node, ("input", "weight", "bias"), {"bias": None})
    x, weight, bias = as_node(given["input"]), as_node(given["weight"]), given["bias"]
    scope.require_movable([node])
    if tensor(weight).dim() != 2 or tensor(x).dim() < 2:
        raise Declined(f"{node} multiplies a vector")
    if tensor(weight).dtype not in (torch.float32, torch.bfloat16):
        raise Declined(
            f"{node} has a weight in {tensor(weight).dtype}; the kernel supports fp32, bf16"
        )
    result = scope.kernel(
        torch.ops.ratchet.linear.default,
        scope.cast(x, torch.bfloat16),
        weight,
        bias,
    )
    scope.replace_as(node, result)


def _sizes(site: CapturedSite) -> dict[str, object]:
    outputs, inputs = site.shapes["weight"]
    return {**site.rows("x"), "hidden": inputs, "intermediate": outputs}


LINEAR = Pattern(
    name="linear",
    place=50,
    find=_find,
    install=_install,
    sizes=_sizes,
)
