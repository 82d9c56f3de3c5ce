"""Read dynamo's torch-level graph: calls, arguments, fake tensors, mutation, constants.

The graph is neither functional nor normalised: the same product may be `operator.mul`, `torch.mul`
or the method `mul`. The helpers here give each operation one name.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from ratchet.base.errors import GraphError

_CALLS: Mapping[str, tuple[Sequence[Callable[..., object]], Sequence[str]]] = {
    "mul": ((operator.mul, torch.mul, torch.multiply), ("mul", "multiply")),
    "add": ((operator.add, torch.add), ("add",)),
    "sub": ((operator.sub, torch.sub), ("sub",)),
    "neg": ((operator.neg, torch.neg), ("neg",)),
    "pow": ((operator.pow, torch.pow), ("pow",)),
    "div": ((operator.truediv, torch.div), ("div",)),
    "square": ((torch.square,), ("square",)),
    "mean": ((torch.mean,), ("mean",)),
    "rsqrt": ((torch.rsqrt,), ("rsqrt",)),
    "cat": ((torch.cat, torch.concat), ()),
    "chunk": ((torch.chunk,), ("chunk",)),
    "split": ((torch.split,), ("split",)),
    "repeat_interleave": ((torch.repeat_interleave,), ("repeat_interleave",)),
    "getitem": ((operator.getitem,), ("__getitem__",)),
    "reshape": ((torch.reshape,), ("reshape", "view")),
    "flatten": ((torch.flatten,), ("flatten",)),
    "transpose": ((torch.transpose,), ("transpose",)),
    "unsqueeze": ((torch.unsqueeze,), ("unsqueeze",)),
    "expand": ((), ("expand",)),
    "contiguous": ((), ("contiguous",)),
    "cast": ((), ("to", "float", "bfloat16", "half", "type_as", "type")),
    "linear": ((F.linear,), ()),
    "silu": ((F.silu,), ()),
    "gelu": ((F.gelu,), ()),
    "rms_norm": ((F.rms_norm, torch.rms_norm), ()),
    "layer_norm": ((F.layer_norm,), ()),
    "cross_entropy": ((F.cross_entropy,), ()),
    "attention": ((F.scaled_dot_product_attention,), ()),
}
"""Functions and methods by what they compute."""


class Declined(GraphError):
    """Raised for a call site that resembles a pattern but that the kernel cannot take."""


def calls(node: object, kind: str) -> TypeGuard[Node]:
    """Return True if `node` computes `kind`, as a function or as a method."""
    functions, methods = _CALLS[kind]
    return isinstance(node, Node) and (
        (node.op == "call_function" and node.target in functions)
        or (node.op == "call_method" and node.target in methods)
    )


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


def other_operand(product: Node, known: Node) -> Node:
    """Return the operand of a plain binary call beside the known one."""
    both = operands(product)
    if both is None or known not in both:
        raise Declined(f"{product} is not a plain product of {known}")
    return as_node(both[1] if both[0] is known else both[0])


def only_user(node: Node) -> Node | None:
    """Return this node's user if exactly one node uses it."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def through_casts(node: Node) -> Node:
    """Return the node before any change of dtype or copy to contiguous memory."""
    while calls(node, "cast") or calls(node, "contiguous"):
        source = node.args[0]
        after, before = value(node), value(source)
        if after is None or before is None or after.device != before.device:
            break
        node = as_node(source)
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


def dtype_name(dtype: torch.dtype) -> str:
    """Return the contract's name for a dtype: `bf16` for `torch.bfloat16`, and so on."""
    name = str(dtype).removeprefix("torch.")
    short = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float64": "fp64"}
    return short.get(name, name)


# Find nodes that must not move: tensors written in place, and regions without gradients.

_IN_PLACE_OPERATORS = frozenset(
    {
        *(operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv),
        *(operator.imod, operator.ipow, operator.imatmul),
        *(operator.iand, operator.ior, operator.ixor),
    }
)
_OPERATORS = frozenset({operator.and_, operator.or_, operator.not_})
_VIEWS = frozenset(
    {
        *("view", "reshape", "transpose", "permute", "expand", "expand_as", "unsqueeze", "squeeze"),
        *("flatten", "unflatten", "narrow", "select", "chunk", "split", "unbind", "getitem"),
        *("__getitem__", "t", "movedim", "swapaxes", "view_as", "detach", "contiguous", "to"),
        *("float", "bfloat16", "type_as", "dropout"),
    }
)
"""Calls whose result may share memory with their first argument."""


def root(node: Node) -> Node:
    """Return the node whose memory this one may share."""
    while node.args and isinstance(node.args[0], Node) and _may_alias(node):
        node = node.args[0]
    return node


def writers_of(graph: Graph) -> dict[Node, list[Node]]:
    """Return the nodes that write in place, by the root of what they write."""
    found: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        for target in written_by(node):
            found.setdefault(root(target), []).append(node)
    return found


def earliest_reading(node: Node) -> Node | None:
    """Return the first node of the views and casts that end in `node`; None if it is neither.

    A pattern may look through them and read what they start from. A write in place ends them: what
    comes before it has other values.
    """
    found = None
    while (
        node.args
        and isinstance(node.args[0], Node)
        and _may_alias(node)
        and not any(True for _ in written_by(node))
    ):
        found, node = node, node.args[0]
    return found


def written_by(node: Node) -> Iterator[Node]:
    """Yield the nodes whose memory `node` writes."""
    if node.op == "call_method" and _in_place_name(str(node.target)):
        yield from _nodes(node.args[:1])
    elif node.op == "call_function":
        yield from _nodes([node.kwargs.get("out")])
        if _in_place_function(node):
            yield from _nodes(node.args[:1])
        elif isinstance(node.target, torch._ops.OpOverload):
            yield from _mutable_arguments(node, node.target)


def grad_regions(graph: Graph) -> dict[Node, int]:
    """Number the nodes; the number changes wherever the graph turns gradients on or off."""
    regions, region = {}, 0
    for node in graph.nodes:
        name = getattr(node.target, "__name__", "") if node.op == "call_function" else ""
        region += "set_grad_enabled" in name or "inference_mode" in name
        regions[node] = region
    return regions


def _may_alias(node: Node) -> bool:
    if node.op == "call_method":
        name = str(node.target)
        return name in _VIEWS or _in_place_name(name)
    named = getattr(node.target, "__name__", "") in _VIEWS
    return node.op == "call_function" and (named or node.target in _IN_PLACE_OPERATORS)


def _in_place_name(name: str) -> bool:
    return (name.endswith("_") and not name.endswith("__")) or name == "__setitem__"


def _in_place_function(node: Node) -> bool:
    target = node.target
    if target in _IN_PLACE_OPERATORS or target is operator.setitem:
        return True
    if target in _OPERATORS:
        return False  # the trailing underscore only avoids a Python keyword
    return _in_place_name(getattr(target, "__name__", "")) or _inplace_flag(node)


def _inplace_flag(node: Node) -> bool:
    if "inplace" in node.kwargs:
        return bool(node.kwargs["inplace"])
    position = _inplace_position(node.target)
    return position is not None and len(node.args) > position and bool(node.args[position])


@cache
def _inplace_position(target: Any) -> int | None:
    if getattr(target, "__module__", "") != "torch.nn.functional":
        return None
    try:
        names = list(inspect.signature(target).parameters)
    except (TypeError, ValueError):  # a builtin without a signature has no such flag
        return None
    return names.index("inplace") if "inplace" in names else None


def _mutable_arguments(node: Node, overload: torch._ops.OpOverload) -> Iterator[Node]:
    for position, argument in enumerate(overload._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = node.kwargs.get(argument.name)
            if given is None and position < len(node.args):
                given = node.args[position]
            yield from _nodes([given])


def _nodes(arguments: Iterable[object]) -> Iterator[Node]:
    for argument in arguments:
        if isinstance(argument, Node):
            yield argument
        elif isinstance(argument, (list, tuple)):
            yield from _nodes(argument)


# Evaluate, at compile time, the tensors of a graph that depend on none of its inputs.
#
# Hugging Face models build their causal mask inside the graph from `arange` alone. Once the mask
# is computed, a kernel that supports only causal attention can take the site.

MOST_ELEMENTS = 1 << 27  # Largest mask that is computed: 128 Mi elements, or 128 MiB as bool
VMAP = frozenset({"_add_batch_dim", "_remove_batch_dim"})
"""Functions by which dynamo's graphs hold torch.vmap; they mean nothing outside of its nesting."""


class Constants:
    """Compute a graph's input-free tensors on demand and keep them for the pass."""

    def __init__(self, graph: Graph) -> None:
        self._known: dict[Node, Any] = {}
        self._varying: set[Node] = {n for n in graph.nodes if not _computable(n)}

    def find(self, node: Node) -> Tensor | None:
        """Return the value of `node`; None if it is random, too large or depends on an input."""
        example = value(node)
        if example is None or not self._is_constant(node):
            return None
        if any(not isinstance(size, int) for size in example.shape):
            return None
        if example.numel() > MOST_ELEMENTS:
            return None
        with torch.no_grad(), torch.utils._python_dispatch._disable_current_modes():
            found = self._compute(node)
        return found if isinstance(found, Tensor) else None

    def _is_constant(self, node: Node) -> bool:
        pending, seen = [node], {node}
        while pending:
            current = pending.pop()
            if current in self._varying:
                self._varying.add(node)
                return False
            fresh = [n for n in current.all_input_nodes if n not in seen]
            seen.update(fresh)
            pending.extend(fresh)
        return True

    def _compute(self, node: Node) -> object:
        for step in self._needed(node):
            args, kwargs = map_arg((step.args, step.kwargs), self._known.__getitem__)
            if step.op == "call_method":
                self._known[step] = getattr(args[0], str(step.target))(*args[1:], **kwargs)
            else:
                self._known[step] = step.target(*args, **kwargs)  # type: ignore[operator]
        return self._known[node]

    def _needed(self, node: Node) -> list[Node]:
        needed, pending = set(), [node]
        while pending:
            current = pending.pop()
            if current not in needed and current not in self._known:
                needed.add(current)
                pending.extend(current.all_input_nodes)
        return sorted(needed)


def _computable(node: Node) -> bool:
    if node.op not in ("call_function", "call_method"):
        return False
    written = [*written_by(node), *(user for user in node.users if node in written_by(user))]
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    random = any(one in name for one in ("rand", "bernoulli", "dropout", "multinomial", "normal"))
    return not (written or random or name in VMAP)


def is_causal_mask(mask: Tensor, queries: int, keys: int) -> bool:
    """Return True if a mask, bool or additive (0 and -inf), is exactly the causal triangle."""
    allowed = _allowed(mask)
    if allowed is None or queries != keys:
        return False
    triangle = torch.ones(queries, keys, dtype=torch.bool, device=mask.device).tril()
    return bool((allowed == triangle).all())


def is_open_mask(mask: Tensor) -> bool:
    """Return True if the mask lets every query attend to every key."""
    allowed = _allowed(mask)
    return allowed is not None and bool(allowed.all())


def _allowed(mask: Tensor) -> Tensor | None:
    if mask.dtype == torch.bool:
        return mask
    hidden = mask <= torch.finfo(mask.dtype).min
    return ~hidden if bool(((mask == 0) | hidden).all()) else None
