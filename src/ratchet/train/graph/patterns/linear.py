"""Linear layers, the cross-entropy behind one, and gated activations.

An fp32 input is cast by a `.to` in the graph. There inductor can fuse it into the producer of the
input, autograd sees it, and layers that share an input share the cast. An fp32 weight is passed
unchanged: the kernel rounds it while packing, and its gradient returns in fp32 without a copy.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from ratchet.train.graph.nodes import (
    Declined,
    as_node,
    bind,
    calls,
    only_user,
    operands,
    tensor,
    through_whole_slices,
    value,
)
from ratchet.train.graph.scope import Pattern, Scope

_KNOWN = (torch.float32, torch.bfloat16)


def _is_linear(node: Node) -> bool:
    found = value(node)
    return calls(node, "linear") and found is not None and found.dtype in _KNOWN


def _install_linear(node: Node, scope: Scope) -> None:
    given = bind(node, ("input", "weight", "bias"), {"bias": None})
    x, weight, bias = as_node(given["input"]), as_node(given["weight"]), given["bias"]
    scope.require_movable([node])
    if tensor(weight).dim() != 2 or tensor(x).dim() < 2:
        raise Declined(f"{node} multiplies a vector")
    if tensor(weight).dtype not in _KNOWN:
        raise Declined(
            f"{node} has a weight in {tensor(weight).dtype}; the kernel supports fp32, bf16"
        )
    if tensor(node).dtype == torch.bfloat16:
        x = scope.cast(x, torch.bfloat16)
    scope.replace_as(node, scope.kernel(torch.ops.ratchet.linear.default, x, weight, bias))


LINEAR = Pattern(
    name="linear",
    place=50,
    find=_is_linear,
    install=_install_linear,
    sizes=lambda site: {
        **site.rows("x"),
        "hidden": site.shapes["weight"][1],
        "intermediate": site.shapes["weight"][0],
    },
)


# linear -> (cast, view, slice of tokens) -> cross_entropy, without the logits in memory.
#
# Declined: class weights, soft targets, `reduction="none"`, logits with another user, logits that
# pass through anything but casts, views and slices of tokens (a soft cap, a scale).

_DEFAULTS = {
    "weight": None,
    "size_average": None,
    "ignore_index": -100,
    "reduce": None,
    "reduction": "mean",
    "label_smoothing": 0.0,
}


def _install_cross_entropy(node: Node, scope: Scope) -> None:
    given = bind(node, ("input", "target", *_DEFAULTS), _DEFAULTS)
    _check_arguments(given)
    linear, steps = _trace_logits(as_node(given["input"]))
    scope.require_movable([node, *steps, linear])
    hidden, weight, bias = _linear_arguments(linear, scope)
    rows = _token_rows(hidden, steps, scope, classes=tensor(linear).shape[-1])
    target, count = as_node(given["target"]), tensor(rows).shape[0]
    if tensor(target).numel() != count:
        raise Declined(f"{tensor(target).numel()} targets do not match {count} rows of logits")
    target = target if tensor(target).dim() == 1 else scope.method("reshape", target, -1)
    loss = scope.kernel(
        torch.ops.ratchet.linear_cross_entropy.default,
        rows,
        weight,
        bias,
        target,
        given["ignore_index"],
        float(given["label_smoothing"]),
    )
    if given["reduction"] == "sum":
        loss = _sum_of_mean(loss, target, given["ignore_index"], scope)
    scope.replace_as(node, loss)


def _check_arguments(given: dict[str, object]) -> None:
    if given["weight"] is not None:
        raise Declined("cross_entropy has class weights")
    if given["size_average"] is not None or given["reduce"] is not None:
        raise Declined("cross_entropy is called with the deprecated size_average or reduce")
    if given["reduction"] not in ("mean", "sum"):
        raise Declined(f"cross_entropy has reduction {given['reduction']!r}, not mean or sum")
    target = tensor(given["target"])
    if target.dtype != torch.int64:
        raise Declined(f"cross_entropy has {target.dtype} targets, not int64 classes")


_SEEN_THROUGH = ("cast", "contiguous", "getitem", "reshape", "flatten", "transpose")


def _trace_logits(node: Node) -> tuple[Node, list[Node]]:
    """Return the linear call that produces the logits, and the nodes after it, last first."""
    steps: list[Node] = []
    while True:
        if not any(calls(node, kind) for kind in ("linear", *_SEEN_THROUGH)):
            raise Declined(f"the logits come from {node}, not from a linear layer in this graph")
        if only_user(node) is None:
            raise Declined(f"the logits {node} have {len(node.users)} users")
        if calls(node, "linear"):
            return node, steps
        steps.append(node)
        node = as_node(node.args[0])


def _linear_arguments(linear: Node, scope: Scope) -> tuple[Node, Node, Node | None]:
    given = bind(linear, ("input", "weight", "bias"), {"bias": None})
    dtype = tensor(linear).dtype
    if dtype not in (torch.float32, torch.bfloat16):
        raise Declined(f"the logits are {dtype}; the kernel supports fp32 and bf16")
    hidden = scope.cast(through_whole_slices(as_node(given["input"])), dtype)
    weight = scope.cast(as_node(given["weight"]), dtype)
    bias = given["bias"]
    return hidden, weight, None if bias is None else scope.cast(bias, dtype)


def _token_rows(hidden: Node, steps: list[Node], scope: Scope, *, classes: int) -> Node:
    """Return the hidden states [N, H] in the order of the logits' rows."""
    for step in reversed(steps):
        hidden = _replay(step, hidden, scope, classes=classes, last=step is steps[0])
    rows = tensor(hidden)
    return hidden if rows.dim() == 2 else scope.method("reshape", hidden, -1, rows.shape[-1])


def _replay(step: Node, hidden: Node, scope: Scope, *, classes: int, last: bool) -> Node:
    """Apply to the hidden states what `step` does to the tokens of the logits."""
    if calls(step, "cast") or calls(step, "contiguous"):
        return hidden
    if calls(step, "getitem"):
        return scope.call(step.target, hidden, _token_index(step))  # type: ignore[arg-type]
    if calls(step, "transpose"):
        # Just before cross_entropy, it turns logits [B, T, V] into [B, V, T].
        source = tensor(step.args[0])
        dims = {dim % source.dim() for dim in step.args[1:] if isinstance(dim, int)}
        if not last or source.dim() != 3 or dims != {1, 2}:
            raise Declined(f"{step} transposes the logits")
        return hidden
    shape = tuple(tensor(step).shape)
    if shape[-1] != classes or tensor(step.args[0]).shape[-1] != classes:
        raise Declined(f"{step} changes the class dimension of the logits")
    return scope.method("reshape", hidden, *shape[:-1], tensor(hidden).shape[-1])


def _token_index(step: Node) -> object:
    """Return a getitem's index if it slices tokens only and keeps every class."""
    index = step.args[1]
    parts = index if isinstance(index, tuple) else (index,)
    if any(part is not Ellipsis and not isinstance(part, slice) for part in parts):
        raise Declined(f"{step} indexes the logits with {index!r}")
    touches_last = Ellipsis in parts or len(parts) == tensor(step.args[0]).dim()
    if touches_last and parts[-1] is not Ellipsis and parts[-1] != slice(None):
        raise Declined(f"{step} takes only some of the classes")
    return index


def _sum_of_mean(loss: Node, target: Node, ignore_index: int, scope: Scope) -> Node:
    """Return the sum over the counted tokens; zero if there are none, since their mean is NaN."""
    counted = scope.method("sum", scope.method("ne", target, ignore_index))
    total = scope.method("mul", loss, counted)
    some = scope.method("gt", counted, 0)
    return scope.call(torch.where, some, total, scope.method("new_zeros", total, ()))


LINEAR_CROSS_ENTROPY = Pattern(
    name="linear_cross_entropy",
    place=10,
    find=lambda node: calls(node, "cross_entropy"),
    install=_install_cross_entropy,
    sizes=lambda site: {
        **site.rows("x"),
        "hidden": site.shapes["weight"][1],
        "vocabulary": site.shapes["weight"][0],
    },
)


# silu(gate) * up and gelu(gate) * up, in either order.
#
# Declined: an activation that has another user, an in-place activation, operands of different
# shapes.


def _activation(node: Node) -> tuple[Node, object] | None:
    """Return the product's activated operand and its other operand."""
    both = operands(node)
    if both is None:
        return None
    for activated, other in (both, both[::-1]):
        if calls(activated, "silu") or calls(activated, "gelu"):
            return activated, other
    return None


def _install_gated(node: Node, scope: Scope) -> None:
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


GATED_ACTIVATION = Pattern(
    name="gated_activation",
    place=40,
    find=lambda node: calls(node, "mul") and _activation(node) is not None,
    install=_install_gated,
    sizes=lambda site: {**site.rows("gate"), "intermediate": site.shapes["gate"][-1]},
)
