"""Sort ATen operations, and cut a graph into regions that one kernel could compute.

Products (matrix products, convolutions, attention) and everything that is no plain computation are
barriers. A node's level is the number of barriers on the longest path to it. Nodes of one level
have no barrier between them, so a connected part of a level is a region: it is as large as it can
be, and no path leaves it and comes back. Each product is also a region, with the pointwise
operations around it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal

import torch
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from ratchet.train.graph.regions import RegionKind

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
BY_DTYPE: Final = frozenset({"view.dtype"})  # They read the bits of a value: float64 has others
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
    names = [one.name for one in target._schema.arguments]
    if op_name(node) not in PRODUCTS or "dropout_p" not in names:
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


COPIES = frozenset({"clone", "_to_copy", "convert_element_type", "copy", "lift_fresh_copy"})
"""Operations that compute nothing: a region of these alone is not worth a kernel."""
LOOKUPS = frozenset({"embedding", "index", "index_select", "gather", "_unsafe_index"})
"""Operations that read some elements of their first tensor."""
SHARED = 0.5
"""Two operations belong together if they read a tensor at least this large beside their own."""


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A region of one graph."""

    kind: RegionKind
    nodes: tuple[Node, ...]
    """In the graph's order: operations, and the views and constants that they need."""
    inputs: tuple[Node, ...]  # Tensors from outside, never views of one another
    outputs: tuple[Node, ...]  # Results that are used outside
    computing: tuple[Node, ...]  # The nodes that are no views or constants


def cut_graph(graph: Graph) -> list[Cut]:
    """Return the regions of a graph, in the order of their first nodes."""
    cutter = _Cutter(graph)
    members = [("fused", part) for part in cutter.fused()]
    members += [("product", part) for part in cutter.products()]
    cuts = [cutter.close(kind, part) for kind, part in members]  # type: ignore[arg-type]
    return [cut for cut in cuts if cut.outputs and {*map(op_name, cut.computing)} - COPIES]


class _Cutter:
    def __init__(self, graph: Graph) -> None:
        self._nodes: list[Node] = list(graph.nodes)
        self._place = {node: place for place, node in enumerate(self._nodes)}
        self._kinds: dict[Node, OpKind] = {node: kind_of(node) for node in self._nodes}
        self._checks = self._find_checks()
        self._levels = self._level()

    def _find_checks(self) -> set[Node]:
        """Return assertions and what only they read: Inductor drops both."""
        found: set[Node] = set()
        for node in reversed(self._nodes):
            only = node.users and all(user in found for user in node.users)
            if op_name(node).startswith("_assert") or (only and node.op == "call_function"):
                found.add(node)
        return found

    # What a node is

    def _fuses(self, node: Node) -> bool:
        return self._kinds[node] in ("pointwise", "fused") and not self._is_free(node)

    def _is_free(self, node: Node) -> bool:
        """Return True for what every region makes for itself: views and constants."""
        if is_getitem(node):
            return isinstance(node.args[0], Node) and self._is_free(node.args[0])
        if self._kinds[node] == "view":
            return True
        plain = self._kinds[node] == "pointwise" and op_name(node) in CREATIONS
        return plain and not node.all_input_nodes

    def _is_barrier(self, node: Node) -> bool:
        if node.op != "call_function" or is_getitem(node):
            return False
        return self._kinds[node] in ("product", "other")

    def _makers(self, node: Node) -> list[Node]:
        """Return the nodes that compute what `node` reads, through views and results of several."""
        return self._through(node, lambda one: one.all_input_nodes)

    def _readers(self, node: Node) -> list[Node]:
        """Return the nodes that read what `node` computes, through views and getitem."""
        found = self._through(node, lambda one: one.users)
        return [one for one in found if one not in self._checks]

    def _through(self, node: Node, beyond: Callable[[Node], Iterable[Node]]) -> list[Node]:
        found: set[Node] = set()
        pending = list(beyond(node))
        while pending:
            one = pending.pop()
            if self._is_free(one) or is_getitem(one):
                pending.extend(beyond(one))
            else:
                found.add(one)
        return sorted(found, key=self._place.__getitem__)

    # Levels

    def _level(self) -> dict[Node, int]:
        """Return levels: as early as inputs allow, but recomputation next to where it is used."""
        early = self._earliest({})
        late: dict[Node, int] = {}
        for node in reversed(self._nodes):
            users = [late[user] for user in node.users if user.op != "output"]
            sinks = users and not self._is_barrier(node) and node.op == "call_function"
            late[node] = min(users) if sinks and not self._is_table(node, users) else early[node]
        return self._earliest(late)

    def _earliest(self, late: dict[Node, int]) -> dict[Node, int]:
        levels: dict[Node, int] = {}
        for node in self._nodes:
            inputs = node.all_input_nodes
            low = max((levels[one] + self._is_barrier(one) for one in inputs), default=0)
            first = late and self._fuses(node) and not any(map(self._fuses, self._makers(node)))
            levels[node] = max(low, late[node]) if first else low
        return levels

    def _is_table(self, node: Node, levels: list[int]) -> bool:
        """Return True for what several levels read beside larger tensors, such as RoPE's tables.

        It belongs to none of them, or the first layer would not be like the others.
        """
        if len(set(levels)) < 2 or not self._fuses(node):
            return False
        return all(_size(node) < SHARED * _largest(reader) for reader in self._readers(node))

    # Regions

    def fused(self) -> list[list[Node]]:
        """Return the connected parts of each level."""
        fusing = [n for n in self._nodes if self._fuses(n) and n not in self._checks]
        groups = _Groups(fusing)
        for node in fusing:
            for maker in self._makers(node):
                if self._fuses(maker) and self._levels[maker] == self._levels[node]:
                    groups.join(maker, node)
        readers: dict[tuple[Node, int], Node] = {}
        for node in fusing:
            for maker in self._makers(node):
                if _size(maker) < SHARED * _largest(node) or reads_rows(node, maker):
                    continue
                key = (maker, self._levels[node])
                groups.join(readers.setdefault(key, node), node)
        return groups.parts()

    def products(self) -> list[list[Node]]:
        found: dict[frozenset[Node], list[Node]] = {}
        for node in self._nodes:
            if self._kinds[node] == "product":
                members = self._around(node)
                key = frozenset(members)
                found.setdefault(key, sorted(members, key=self._place.__getitem__))
        return list(found.values())

    def _around(self, product: Node) -> set[Node]:
        members = {product}
        after = self._after(product)
        for node in self._nodes[self._place[product] + 1 :]:
            if self._kinds[node] != "pointwise" or not self._fuses(node) or node in self._checks:
                continue
            makers = self._makers(node)
            if not members & set(makers):
                continue
            others = [one for one in makers if one not in members]
            twins = {one for one in others if self._is_twin(one, product)}
            if all(one in twins or one not in after for one in others):
                members |= {node, *twins}
                for twin in twins:
                    after |= self._after(twin)
        self._add_prologue(members)
        return members

    def _is_twin(self, node: Node, product: Node) -> bool:
        """Return True for a product of the same level that reads a tensor of `product`'s."""
        same = self._kinds[node] == "product" and self._levels[node] == self._levels[product]
        return same and bool(set(self._makers(node)) & set(self._makers(product)))

    def _add_prologue(self, members: set[Node]) -> None:
        pending = [one for node in members for one in self._makers(node)]
        while pending:
            node = pending.pop()
            pointwise = self._kinds[node] == "pointwise" and self._fuses(node)
            if node not in members and pointwise and set(self._readers(node)) <= members:
                members.add(node)
                pending.extend(self._makers(node))

    def _after(self, node: Node) -> set[Node]:
        found: set[Node] = set()
        pending = [node]
        while pending:
            for user in pending.pop().users:
                if user not in found:
                    found.add(user)
                    pending.append(user)
        return found

    def close(self, kind: RegionKind, members: Sequence[Node]) -> Cut:
        """Return the region of some nodes: with what they need for themselves, and its edges."""
        inside, inputs = set(members), dict[Node, None]()
        pending = [one for node in members for one in node.all_input_nodes]
        while pending:
            node = pending.pop()
            if node in inside or node in inputs:
                continue
            own = is_getitem(node) and node.args[0] in inside
            if own or self._is_free(node):
                inside.add(node)
                pending.extend(node.all_input_nodes)
            else:
                inputs[node] = None
        outputs: list[Node] = []
        for node in members:
            several = isinstance(node.meta.get("val"), (tuple, list))
            for result in filter(is_getitem, node.users) if several else (node,):
                if set(self._readers(result)) - set(members):
                    inside.add(result)
                    outputs.append(result)
        order = self._place.__getitem__
        return Cut(
            kind=kind,
            nodes=tuple(sorted(inside, key=order)),
            inputs=tuple(sorted(inputs, key=order)),
            outputs=tuple(outputs),
            computing=tuple(members),
        )


def reads_rows(node: Node, table: Node) -> bool:
    """Return True if an operation reads only some rows or elements of a tensor."""
    return op_name(node) in LOOKUPS and bool(node.args) and node.args[0] is table


class _Groups:
    """Disjoint sets of nodes."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._parents = {node: node for node in nodes}

    def _root(self, node: Node) -> Node:
        while self._parents[node] is not node:
            self._parents[node] = self._parents[self._parents[node]]
            node = self._parents[node]
        return node

    def join(self, one: Node, other: Node) -> None:
        self._parents[self._root(other)] = self._root(one)

    def parts(self) -> list[list[Node]]:
        found: dict[Node, list[Node]] = {}
        for node in self._parents:
            found.setdefault(self._root(node), []).append(node)
        return list(found.values())


def _size(node: Node) -> int:
    return max(
        (math.prod(one.shape) for one in values_of(node) if hasattr(one, "shape")), default=0
    )


def _largest(node: Node) -> int:
    return max(_size(node), *(_size(one) for one in node.all_input_nodes), 1)
