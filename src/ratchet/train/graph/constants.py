"""Evaluate, at compile time, the tensors of a graph that depend on none of its inputs.

Hugging Face models build their causal mask inside the graph from `arange` alone. Once the mask is
computed, a kernel that supports only causal attention can take the site.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from ratchet.train.graph.mutation import written_by
from ratchet.train.graph.nodes import value

MOST_ELEMENTS = 1 << 27
"""Largest mask that is computed: 128 Mi elements, or 128 MiB as bool."""
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
    if any(True for _ in written_by(node)) or any(True for _ in _writers(node)):
        return False
    return not _random(node) and getattr(node.target, "__name__", "") not in VMAP


def _writers(node: Node) -> list[Node]:
    return [user for user in node.users if node in written_by(user)]


def _random(node: Node) -> bool:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return any(word in name for word in ("rand", "bernoulli", "dropout", "multinomial", "normal"))


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
