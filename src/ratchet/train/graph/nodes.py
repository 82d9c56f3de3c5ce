"""Read dynamo's torch-level graph: the function a node calls, its arguments, its fake tensor.

The graph is neither functional nor normalised: the same product may be `operator.mul`, `torch.mul`
or the method `mul`. The helpers here give each operation one name.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node

from ratchet.base.errors import GraphError

_FUNCTIONS: Mapping[str, frozenset[Callable[..., object]]] = {
    "mul": frozenset({operator.mul, torch.mul, torch.multiply}),
    "add": frozenset({operator.add, torch.add}),
    "sub": frozenset({operator.sub, torch.sub}),
    "neg": frozenset({operator.neg, torch.neg}),
    "pow": frozenset({operator.pow, torch.pow}),
    "div": frozenset({operator.truediv, torch.div}),
    "square": frozenset({torch.square}),
    "mean": frozenset({torch.mean}),
    "rsqrt": frozenset({torch.rsqrt}),
    "cat": frozenset({torch.cat, torch.concat}),
    "chunk": frozenset({torch.chunk}),
    "split": frozenset({torch.split}),
    "repeat_interleave": frozenset({torch.repeat_interleave}),
    "getitem": frozenset({operator.getitem}),
    "reshape": frozenset({torch.reshape}),
    "flatten": frozenset({torch.flatten}),
    "transpose": frozenset({torch.transpose}),
    "unsqueeze": frozenset({torch.unsqueeze}),
    "linear": frozenset({F.linear}),
    "silu": frozenset({F.silu}),
    "gelu": frozenset({F.gelu}),
    "rms_norm": frozenset({F.rms_norm, torch.rms_norm}),
    "layer_norm": frozenset({F.layer_norm}),
    "cross_entropy": frozenset({F.cross_entropy}),
    "attention": frozenset({F.scaled_dot_product_attention}),
}
_METHODS: Mapping[str, frozenset[str]] = {
    "mul": frozenset({"mul", "multiply"}),
    "add": frozenset({"add"}),
    "sub": frozenset({"sub"}),
    "neg": frozenset({"neg"}),
    "pow": frozenset({"pow"}),
    "div": frozenset({"div"}),
    "square": frozenset({"square"}),
    "mean": frozenset({"mean"}),
    "rsqrt": frozenset({"rsqrt"}),
    "chunk": frozenset({"chunk"}),
    "split": frozenset({"split"}),
    "repeat_interleave": frozenset({"repeat_interleave"}),
    "getitem": frozenset({"__getitem__"}),
    "reshape": frozenset({"reshape", "view"}),
    "flatten": frozenset({"flatten"}),
    "transpose": frozenset({"transpose"}),
    "unsqueeze": frozenset({"unsqueeze"}),
    "expand": frozenset({"expand"}),
    "contiguous": frozenset({"contiguous"}),
    "cast": frozenset({"to", "float", "bfloat16", "half", "type_as", "type"}),
}


class Declined(GraphError):
    """Raised for a call site that resembles a pattern but that the kernel cannot take."""


def calls(node: object, kind: str) -> TypeGuard[Node]:
    """Return True if `node` computes `kind`, as a function or as a method."""
    if not isinstance(node, Node):
        return False
    if node.op == "call_function":
        return node.target in _FUNCTIONS.get(kind, ())
    return node.op == "call_method" and node.target in _METHODS.get(kind, ())


def value(node: object) -> Tensor | None:
    """Return the fake tensor of a node's result, or None if the result is not a tensor."""
    if not isinstance(node, Node):
        return None
    found = node.meta.get("example_value")
    return found if isinstance(found, Tensor) else None


def tensor(node: object) -> Tensor:
    """Return the node's fake tensor; raise Declined if it has none or has a symbolic size."""
    found = value(node)
    if found is None:
        raise Declined(f"{node} has no tensor of known shape in the graph")
    if not all(isinstance(size, int) for size in found.shape):
        raise Declined(f"{node} has a symbolic shape {tuple(found.shape)}")
    return found


def as_node(argument: object) -> Node:
    """Return `argument` as a node; raise Declined if it is a plain number or missing."""
    if not isinstance(argument, Node):
        raise Declined(f"{argument!r} is not a tensor")
    return argument


def bind(node: Node, names: Sequence[str], defaults: Mapping[str, object]) -> dict[str, Any]:
    """Return a call's arguments by name; raise Declined for an argument beyond `names`."""
    bound = dict(defaults)
    if len(node.args) > len(names):
        raise Declined(
            f"{node} is called with {len(node.args)} arguments, at most {len(names)} are supported"
        )
    bound.update(zip(names, node.args, strict=False))
    for name, given in node.kwargs.items():
        if name not in names:
            raise Declined(f"{node} is called with the unknown argument {name}={given!r}")
        bound[name] = given
    return bound


def operands(node: Node) -> tuple[Any, Any] | None:
    """Return both operands of a plain binary call; None if it has keywords or another arity."""
    if node.kwargs or len(node.args) != 2:
        return None
    return node.args[0], node.args[1]


def only_user(node: Node) -> Node | None:
    """Return this node's user if exactly one node uses it."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def through_casts(node: Node) -> Node:
    """Return the node before any change of dtype or copy to contiguous memory."""
    while calls(node, "cast") or calls(node, "contiguous"):
        source = node.args[0]
        if not isinstance(source, Node) or not _same_device(node, source):
            break
        node = source
    return node


def through_whole_slices(node: Node) -> Node:
    """Return the node before any slicing that keeps all of it, such as `x[:, 0:, :]`."""
    while calls(node, "getitem") and isinstance(node.args[1], tuple):
        source, index = as_node(node.args[0]), node.args[1]
        after, before = value(node), value(source)
        if after is None or before is None or after.shape != before.shape:
            break
        if not all(part is Ellipsis or isinstance(part, slice) for part in index):
            break
        if any(isinstance(part, slice) and part.step not in (None, 1) for part in index):
            break
        node = source
    return node


def _same_device(node: Node, source: Node) -> bool:
    after, before = value(node), value(source)
    return after is not None and before is not None and after.device == before.device


def dtype_name(dtype: torch.dtype) -> str:
    """Return the contract's name for a dtype: `bf16` for `torch.bfloat16`, and so on."""
    short = {
        torch.float32: "fp32",
        torch.bfloat16: "bf16",
        torch.float16: "fp16",
        torch.float64: "fp64",
    }
    return short.get(dtype, str(dtype).removeprefix("torch."))
