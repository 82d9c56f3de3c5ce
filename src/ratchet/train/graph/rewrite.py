"""Rewrite dynamo's graphs; imports neither dynamo nor Inductor, which take longer than torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch.fx import Graph, GraphModule

from ratchet.judge.kernels.library import register_ops
from ratchet.train.graph.nodes import Declined
from ratchet.train.graph.scope import InstallReport, Pattern, Scope


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
