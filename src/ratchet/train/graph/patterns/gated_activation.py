"""silu(gate) * up and gelu(gate) * up, in either order.

Declined: an activation that has another user, an in-place activation, operands of different shapes.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from ratchet.train.graph.nodes import Declined, as_node, bind, calls, only_user, operands, tensor
from ratchet.train.graph.patterns.pattern import Pattern
from ratchet.train.graph.scope import Scope
from ratchet.train.graph.sites import CapturedSite


def _find(node: Node) -> bool:
    return calls(node, "mul") and _activation(node) is not None


def _activation(node: Node) -> tuple[Node, object] | None:
    """Return the product's activated operand and its other operand."""
    both = operands(node)
    if both is None:
        return None
    for activated, other in (both, both[::-1]):
        if calls(activated, "silu") or calls(activated, "gelu"):
            return activated, other
    return None


def _install(node: Node, scope: Scope) -> None:
    found = _activation(node)
    assert found is not None
    activated, up = found[0], as_node(found[1])
    if only_user(activated) is None or up is activated:
        raise Declined(f"the activation {activated} has another user")
    gate, kind = _gate_and_kind(activated)
    scope.require_movable([node, activated])
    if not tensor(gate).shape == tensor(up).shape == tensor(node).shape:
        raise Declined(f"gate {tuple(tensor(gate).shape)} and up {tuple(tensor(up).shape)} differ")
    dtype = tensor(node).dtype
    if dtype not in (torch.float32, torch.bfloat16):
        raise Declined(f"the product is {dtype}; the kernel supports fp32 and bf16")
    product = scope.kernel(
        torch.ops.ratchet.gated_activation.default,
        scope.cast(gate, dtype),
        scope.cast(up, dtype),
        kind,
    )
    scope.replace_as(node, product)


def _gate_and_kind(activated: Node) -> tuple[Node, str]:
    if calls(activated, "silu"):
        given = bind(activated, ("input", "inplace"), {"inplace": False})
        if given["inplace"]:
            raise Declined(f"{activated} works in place")
        return as_node(given["input"]), "silu"
    given = bind(activated, ("input", "approximate"), {"approximate": "none"})
    kinds = {"none": "gelu", "tanh": "gelu_tanh"}
    return as_node(given["input"]), kinds[given["approximate"]]


def _sizes(site: CapturedSite) -> dict[str, object]:
    return {**site.rows("gate"), "intermediate": site.shapes["gate"][-1]}


GATED_ACTIVATION = Pattern(
    name="gated_activation",
    place=40,
    find=_find,
    install=_install,
    sizes=_sizes,
)
