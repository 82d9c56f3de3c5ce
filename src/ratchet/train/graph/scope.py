"""Edit one graph: call sites, the scope that replaces them, and the patterns that find them."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import Target, map_arg

from ratchet.judge.kernels.library import register_ops
from ratchet.train.graph.nodes import (
    Constants,
    Declined,
    calls,
    dtype_name,
    earliest_reading,
    grad_regions,
    root,
    tensor,
    through_casts,
    value,
    writers_of,
    written_by,
)

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
Scalar = bool | int | float | str


@dataclass(frozen=True, kw_only=True, slots=True)
class CapturedSite:
    """Call sites of one pattern that share shapes, dtypes and scalars."""

    pattern: str  # The pattern's name; `kernel` may be a narrower one
    kernel: str  # The custom op that takes the site, without its namespace
    shapes: Mapping[str, tuple[int, ...]]
    """Sizes of each tensor argument, by the op's argument name."""
    dtypes: Mapping[str, str]  # `fp32`, `bf16` and so on, by the op's argument name
    scalars: Mapping[str, Scalar]  # The other arguments
    count: int = 1

    @staticmethod
    def from_json(site: object) -> CapturedSite:
        """Rebuild a site from the JSON form of `dataclasses.asdict(site)`."""
        return msgspec.convert(site, CapturedSite)

    def dtype(self, name: str) -> str:
        """Return an argument's dtype by torch's name."""
        return DTYPES[self.dtypes[name]]

    def rows(self, name: str) -> dict[str, object]:
        """Return batch, sequence and dtype of [B, T, H] or [N, H] activations.

        Inner sizes join T.
        """
        sizes = self.shapes[name]
        batch = sizes[0] if len(sizes) > 2 else 1
        dtype = self.dtype(name)
        return {"batch": batch, "sequence": prod(sizes[:-1]) // batch, "dtype": dtype}

    def alike(self, other: CapturedSite) -> bool:
        """Return True if the two sites differ only in their count."""
        return replace(self, count=other.count) == other


def merge_sites(sites: Iterable[CapturedSite]) -> list[CapturedSite]:
    """Merge equal sites and add up their counts, in order of first appearance."""
    merged: list[CapturedSite] = []
    for site in sites:
        for place, seen in enumerate(merged):
            if seen.alike(site):
                merged[place] = replace(seen, count=seen.count + site.count)
                break
        else:
            merged.append(site)
    return merged


@dataclass(kw_only=True, slots=True)
class InstallReport:
    """Results of one pass so far; it grows with every compiled graph."""

    kernels: tuple[str, ...] = ()
    graphs: int = 0
    """Graphs seen. A step with graph breaks has several, and each recompilation counts again."""
    declined: list[tuple[str, str]] = field(default_factory=list)
    """(pattern, reason) for every call site that was declined."""
    sites: list[CapturedSite] = field(default_factory=list)

    @property
    def installed(self) -> dict[str, int]:
        """Count sites taken, by pattern; a requested pattern that found none is absent."""
        counts: Counter[str] = Counter()
        for site in self.sites:
            counts[site.pattern] += site.count
        return dict(counts)

    def add_graph(self, sites: Iterable[CapturedSite], declined: Iterable[tuple[str, str]]) -> None:
        """Add the results of one more compiled graph."""
        self.graphs += 1
        self.sites.extend(sites)
        self.declined.extend(declined)


class Scope:
    """A graph, the facts known about it, and the nodes added for the current site."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.constants = Constants(graph)
        self.sites: list[CapturedSite] = []
        self.declined: list[tuple[str, str]] = []
        self._fake_mode = FakeTensorMode()
        self._regions = grad_regions(graph)
        self._writers = writers_of(graph)
        self._derived: dict[tuple[object, ...], Node] = {}
        # The current site: its pattern, where its nodes go, what it has added and found.
        self._added: list[Node] = []
        self._found: list[CapturedSite] = []
        self._gone: set[Node] = set()
        self._before: Node | None = None
        self._pattern = ""

    # Sites

    def begin(self, pattern: str, before: Node) -> None:
        """Start on a site of `pattern`; new nodes go before `before`."""
        self._pattern, self._before = pattern, before
        self._added, self._found = [], []

    def insert_before(self, node: Node) -> None:
        """Insert the site's next nodes before `node` instead."""
        self._before = node

    def mark(self) -> tuple[int, int]:
        """Return a point of the site to roll back to."""
        return len(self._added), len(self._found)

    def roll_back(self, mark: tuple[int, int]) -> None:
        """Undo what the site has added since `mark`."""
        added, found = mark
        for node in reversed(self._added[added:]):
            self._erase(node)
        del self._added[added:], self._found[found:]

    def decline(self, reason: str) -> None:
        """Undo the site's additions and record why it was declined."""
        self.roll_back((0, 0))
        self.declined.append((self._pattern, reason))

    def commit(self) -> None:
        self.sites.extend(self._found)
        self._added, self._found = [], []

    def alive(self, node: Node) -> bool:
        return node not in self._gone

    # Checks that a pattern makes before it takes a site

    def require_movable(self, nodes: Iterable[Node]) -> None:
        """Raise Declined if the nodes span a change of gradient mode, or are written from then on.

        A write in place that comes before all of them changes nothing: they read what it wrote.
        """
        members = list(nodes)
        if len({self._regions[node] for node in members}) > 1:
            raise Declined("the site spans a change of gradient mode")
        first = min(members)
        for node in members:
            for read in (node, *node.all_input_nodes):
                start = min(first, earliest_reading(read) or first)
                if any(start <= writer for writer in self._writers.get(root(read), ())):
                    raise Declined(f"{read} is written in place elsewhere in the graph")

    # New nodes

    def kernel(self, op: torch._ops.OpOverload, *args: object) -> Node:
        """Add a call to a custom op and record it as a call site."""
        node = self.call(op, *args)
        self._found.append(_site(self._pattern, op, args))
        return node

    def call(self, target: Callable[..., object], *args: object, **kwargs: object) -> Node:
        """Add a function call before the site."""
        return self._add("call_function", target, args, kwargs)

    def method(self, name: str, *args: object) -> Node:
        """Add a call to a method of the first argument before the site."""
        return self._add("call_method", name, args, {})

    def item(self, node: Node, place: int) -> Node:
        """Return one result of a node that has several."""
        return self.call(operator.getitem, node, place)

    def cast(self, node: Node, dtype: torch.dtype) -> Node:
        """Return `node` as `dtype`: itself, its source before widening, or a shared cast."""
        narrow = through_widening(node, dtype)
        found = value(narrow)
        if found is not None and found.dtype == dtype:
            return narrow
        return self.derived("to", node, dtype)

    def derived(self, name: str, node: Node, *args: object) -> Node:
        """Add a method call on `node` that every site in the same gradient region shares."""
        assert self._before is not None
        key = (name, node, args, self._regions[self._before])
        known = self._derived.get(key)
        if known is None:
            known = self._derived[key] = self.method(name, node, *args)
        elif self._before < known:
            self._before.prepend(known)
        return known

    def _add(self, op: str, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
        assert self._before is not None
        with self.graph.inserting_before(self._before):
            node = self.graph.create_node(op, target, args, kwargs)
        self._added.append(node)
        self._regions[node] = self._regions[self._before]
        for key in ("stack_trace", "nn_module_stack", "source_fn_stack"):
            if key in self._before.meta:
                node.meta[key] = self._before.meta[key]
        node.meta["example_value"] = self._run_fake(target, args, kwargs)
        return node

    def _run_fake(self, target: Target, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        with self._fake_mode, torch._C._DisableAutocast(), torch.enable_grad():
            real_args, real_kwargs = map_arg((args, kwargs), _fake_argument)
            if isinstance(target, str):  # a method of the first argument
                return getattr(real_args[0], target)(*real_args[1:], **real_kwargs)
            return target(*real_args, **real_kwargs)

    # Replacing

    def replace(self, old: Node, new: Node) -> None:
        """Redirect every use of `old` to `new`, and erase what is no longer used."""
        old.replace_all_uses_with(new)
        self.sweep(old)

    def replace_as(self, old: Node, new: Node) -> None:
        """Replace `old`, casting if the dtypes differ; raise Declined if the shapes differ."""
        before, after = value(old), value(new)
        if before is None or after is None or before.shape != after.shape:
            raise Declined(f"the kernel's result would not have the shape of {old}")
        if before.dtype != after.dtype:
            new = self.method("to", new, before.dtype)
        self.replace(old, new)

    def replace_rounded(self, old: Node, new: Node) -> None:
        """Replace `old` and round once; valid where `rounds_to(old, new's dtype)` may hold.

        Casts of `old` to the dtype of `new` become `new` itself.
        """
        narrow = value(new)
        assert narrow is not None
        for user in list(old.users):
            found = value(user)
            if calls(user, "cast") and found is not None and found.dtype == narrow.dtype:
                self.replace(user, new)
        if old.users:
            self.replace_as(old, new)
        else:
            self.sweep(old)

    def sweep(self, node: Node) -> None:
        """Erase `node` and then each input that is no longer used."""
        pending = [node]
        while pending:
            current = pending.pop()
            if current in self._gone or current.users or not _erasable(current):
                continue
            pending.extend(current.all_input_nodes)
            self._erase(current)

    def _erase(self, node: Node) -> None:
        self._derived = {key: known for key, known in self._derived.items() if known is not node}
        self._gone.add(node)
        self.graph.erase_node(node)


def through_widening(node: Node, dtype: torch.dtype) -> Node:
    """Return the node before widening if casting back to `dtype` gives the same bits."""
    found = value(node)
    if not calls(node, "cast") or found is None or found.dtype != torch.float32:
        return node
    source = through_casts(node)
    before = value(source)
    return source if before is not None and before.dtype == dtype else node


def rounds_to(node: Node, dtype: torch.dtype) -> bool:
    """Return True if every user takes `node` as `dtype`, by a cast or by autocast's own rule."""
    for user in node.users:
        found = value(user)
        takes = any(calls(user, kind) for kind in ("cast", "linear", "attention"))
        if not takes or found is None or found.dtype != dtype:
            return False
    return bool(node.users)


def _erasable(node: Node) -> bool:
    if node.op not in ("call_function", "call_method"):
        return False
    return not any(True for _ in written_by(node)) and not node.is_impure()


def _fake_argument(node: Node) -> Any:
    """Return a node's value; a tensor is made again, like the node's, in the active mode.

    dynamo's fake tensors belong to two modes: its own, and the compiler's for the inputs. No
    operation accepts both together.
    """
    found = node.meta.get("example_value")
    if not isinstance(found, Tensor):
        return found
    like = tensor(node)
    return torch.empty_strided(
        tuple(like.shape),
        like.stride(),
        dtype=like.dtype,
        device=like.device,
        requires_grad=like.requires_grad,
    )


def _site(pattern: str, op: torch._ops.OpOverload, args: Sequence[Any]) -> CapturedSite:
    names = [argument.name for argument in op._schema.arguments]
    shapes, dtypes, scalars = {}, {}, {}
    for name, given in zip(names, args, strict=False):
        found = value(given)
        if found is not None:
            shapes[name] = tuple(int(size) for size in found.shape)
            dtypes[name] = dtype_name(found.dtype)
        elif given is not None:
            scalars[name] = given
    return CapturedSite(
        pattern=pattern,
        kernel=op._schema.name.split("::")[1],
        shapes=shapes,
        dtypes=dtypes,
        scalars=scalars,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Pattern:
    """Call sites of one form that a library kernel can take."""

    name: str
    """The pattern's name, and the kernel's name in `ratchet.judge.kernels.library.LIBRARY`."""
    place: int  # Its place in running order, lowest first, with gaps for new ones
    find: Callable[[Node], bool]
    """Return True if this node is the site's anchor; must be cheap and free of side effects."""
    install: Callable[[Node, Scope], None]
    """Replace the site with the kernel. If the kernel would not give the same result, raise
    Declined before anything is replaced."""
    sizes: Callable[[CapturedSite], dict[str, Any]]
    """Return the fields of WorkloadShapes that a site knows."""


def rewrite(graph: Graph, patterns: Sequence[Pattern], report: InstallReport) -> None:
    """Install the patterns' kernels in `graph`, in place, and record the results in `report`.

    The graph is dynamo's: torch functions and methods, with fake tensors in
    `node.meta["example_value"]`. The rewritten graph keeps every shape and dtype.
    """
    register_ops()
    scope = Scope(graph)
    for pattern in patterns:
        for node in list(graph.nodes):
            if not scope.alive(node) or not pattern.find(node):
                continue
            scope.begin(pattern.name, node)
            try:
                pattern.install(node, scope)
            except Declined as declined:
                scope.decline(str(declined))
            else:
                scope.commit()
    report.add_graph(scope.sites, scope.declined)
    graph.lint()


def graphs_of(module: GraphModule) -> Iterator[GraphModule]:
    """Yield the graphs that the module's higher-order ops (checkpointing) call, then the module."""
    for node in module.graph.nodes:
        if node.op == "get_attr":
            inner = getattr(module, str(node.target), None)
            if isinstance(inner, GraphModule):
                yield from graphs_of(inner)
    yield module
