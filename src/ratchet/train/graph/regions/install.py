"""Install kernels for regions in compiled graphs: found by their keys, called as custom ops.

The pass runs at `post_grad_custom_pre_pass`, on the graphs that the regions were captured from. An
op takes and returns tensors as they lie in memory, as the region's problem does.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Self

import torch
from torch import Tensor
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.pattern_matcher import stable_topological_sort
from torch.fx import Graph, Node

from ratchet.judge.kernels import registry
from ratchet.judge.kernels.custom_op import define
from ratchet.judge.problems.model_file import run_source
from ratchet.judge.problems.problem import Reference
from ratchet.train.graph.install import code_identity
from ratchet.train.graph.regions import REGION, region_name
from ratchet.train.graph.regions.cut import Cut, cut_graph
from ratchet.train.graph.regions.form import RegionForm, form_of, memory_layout
from ratchet.train.workloads.compiling import CompileOptions

# The custom op that a region becomes in a compiled graph: `ratchet::region`.
#
# It is one op for all regions. What a region is stands in the call, as text, so that a graph from
# torch's cache on disk runs in a process that never saw the region. The op runs the region's
# reference until its kernel is activated (`registry.activate`, by its name).

HEADER = """import torch
import torch._inductor.inductor_prims

aten = torch.ops.aten
prims = torch.ops.prims


"""
SITES = 4096
calls: Final[Counter[str]] = Counter()
"""Calls that a kernel served in this process, by the region's name. `registry.fallbacks` counts
those that ran the reference. Both also count where torch took the graph from its cache."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RegionSite:
    """A call of a region, as it stands in a graph."""

    name: str  # The name under which the kernel is activated: `region_name` of the region's key
    reference: str  # The source of the region's reference
    outputs: tuple[tuple[tuple[int, ...], str, str], ...]
    """Shape, dtype and device of each contiguous output."""

    def to_text(self) -> str:
        return json.dumps([self.name, self.reference, self.outputs])

    @classmethod
    def from_text(cls, text: str) -> Self:
        name, reference, outputs = json.loads(text)
        forms = tuple((tuple(shape), dtype, device) for shape, dtype, device in outputs)
        return cls(name=name, reference=reference, outputs=forms)

    def empty(self, *, on_meta: bool = False) -> list[Tensor]:
        """Return new outputs without values; without memory too if they are `on_meta`."""
        return [
            torch.empty(shape, dtype=getattr(torch, dtype), device="meta" if on_meta else device)
            for shape, dtype, device in self.outputs
        ]


@lru_cache(maxsize=SITES)
def _loaded(text: str) -> tuple[RegionSite, Reference]:
    site = RegionSite.from_text(text)
    return site, run_source(f"{HEADER}{site.reference}\n").reference


def _run(inputs: list[Tensor], site: str) -> list[Tensor]:
    found, reference = _loaded(site)
    given = [one.contiguous() for one in inputs]
    form = found.empty(on_meta=not given[0].is_cpu)  # Triton's kernels make their own outputs
    results = registry.call(found.name, given, (), form)
    if results is not None:
        calls[found.name] += 1
        return list(results)
    return [one.contiguous() for one in reference(*given, ())]


define(
    "region",
    "(Tensor[] inputs, str site) -> Tensor[]",
    run=_run,
    fake=lambda inputs, site: _loaded(site)[0].empty(),
)


class InstallRegions(CustomGraphPass):
    """Replace the regions with these keys in every graph of one torch.compile call.

    `calls` counts what runs, also where torch finds a graph in its cache
    and runs no pass.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = frozenset(keys)

    def __call__(self, graph: Graph) -> None:
        replaced: dict[Node, Node] = {}
        forms = [(cut, form_of(cut, None)) for cut in cut_graph(graph)]
        known = [(cut, form) for cut, form in forms if form.key in self._keys]
        for cut, form in sorted(known, key=lambda one: -len(one[0].computing)):  # largest first
            _install(graph, cut, form, replaced)
        stable_topological_sort(graph)
        graph.eliminate_dead_code()
        graph.lint()

    def uuid(self) -> str:
        """Hash the regions' keys and this package's code; a graph holds no kernel."""
        content = [*sorted(self._keys), code_identity()]
        return hashlib.sha256("\n".join(content).encode()).hexdigest()

    def __reduce__(self) -> tuple[object, ...]:
        return InstallRegions, (tuple(sorted(self._keys)),)

    def __deepcopy__(self, memo: dict[int, object]) -> InstallRegions:
        return self


def region_options(names: Iterable[str]) -> CompileOptions:
    """Return the `options=` for torch.compile that install these regions; empty if there are none.

    `names` are those of `region_name`. The options go together with those of
    `ratchet.train.graph.install.compile_options`.
    """
    keys = [name.removeprefix(REGION) for name in names]
    return {"post_grad_custom_pre_pass": InstallRegions(keys)} if keys else {}


def _install(graph: Graph, cut: Cut, form: RegionForm, replaced: dict[Node, Node]) -> None:
    """Replace one site and note its results in `replaced`.

    The site stays as it is if another one has taken a part of it or has come between its inputs and
    outputs, or if an input has gaps.
    """
    inputs = [replaced.get(one.node, one.node) for one in form.inputs]
    if any(node in replaced or node._erased for node in cut.computing):
        return
    lying_as = [_dense_order(node) for node in inputs]
    if _comes_back(cut, set(inputs)) or None in lying_as:
        return
    orders = [_dense_order(node) or list(range(node.meta["val"].dim())) for node in form.outputs]
    values = [
        node.meta["val"].permute(order) for node, order in zip(form.outputs, orders, strict=True)
    ]
    site = RegionSite(
        name=region_name(form.key),
        reference=form.reference,
        outputs=tuple(
            (tuple(one.shape), str(one.dtype).removeprefix("torch."), str(one.device))
            for one in values
        ),
    )
    (output,) = graph.find_nodes(op="output")
    with graph.inserting_before(output):
        lying = [
            _permuted(graph, node, order)
            for node, order in zip(inputs, lying_as, strict=True)
            if order is not None
        ]
        call = graph.call_function(torch.ops.ratchet.region.default, (lying, site.to_text()))
        call.meta["val"] = values
        for place, node in enumerate(form.outputs):
            result = graph.call_function(operator.getitem, (call, place))
            result.meta["val"] = values[place]
            back = [orders[place].index(at) for at in range(len(orders[place]))]
            replaced[node] = _permuted(graph, result, back)
            node.replace_all_uses_with(replaced[node])
    for node in reversed(cut.nodes):
        if not node.users:
            graph.erase_node(node)


def _comes_back(cut: Cut, inputs: set[Node]) -> bool:
    """Return True if an input depends on an output: the region would wait for itself."""
    seen = set(cut.nodes)
    pending = [user for node in cut.computing for user in node.users if user not in seen]
    while pending:
        node = pending.pop()
        if node in inputs:
            return True
        if node not in seen:
            seen.add(node)
            pending.extend(node.users)
    return False


def _dense_order(node: Node) -> list[int] | None:
    """Return a node's dimensions in the order of memory; None if it has gaps."""
    value: Tensor = node.meta["val"]
    layout = memory_layout(tuple(value.shape), tuple(value.stride()))
    return list(layout.order) if layout is not None and layout.is_dense else None


def _permuted(graph: Graph, node: Node, order: list[int]) -> Node:
    if order == sorted(order):
        return node
    permuted = graph.call_function(torch.ops.aten.permute.default, (node, order))
    permuted.meta["val"] = node.meta["val"].permute(order)
    return permuted
