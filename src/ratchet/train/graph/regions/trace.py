"""Take the graphs of one training step as Inductor gets them, and run them operation by operation.

The graphs are those that `post_grad_custom_pre_pass` sees: after AOTAutograd, Inductor's
decompositions, its joint passes and the partition into forward and backward.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Interpreter, Node
from torch.nn.attention import sdpa_kernel

from ratchet.train.graph.capture import run_own_step
from ratchet.train.graph.install import compile_options
from ratchet.train.graph.regions import Direction
from ratchet.train.workloads.checkpointing import apply_checkpointing
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.fake import gradients_of
from ratchet.train.workloads.step import ATTENTION_BACKENDS, compiled_loss, copies_for
from ratchet.train.workloads.workload import Workload

Inputs = Sequence[Tensor | int | torch.SymInt | None]
LONG_S = 10.0
"""Time of a run, operation by operation, after which there is no second one: warming up is a small
part of it."""


@dataclass(slots=True, eq=False)
class TracedGraph:
    """One compiled graph of a step."""

    module: GraphModule  # ATen operations with fake tensors in `node.meta["val"]`
    direction: Direction
    calls: int = 0  # Runs in one step: a graph may be called several times
    times_s: dict[Node, float] = field(default_factory=dict)
    """Time of each node, run eagerly, over all calls."""
    wanted: frozenset[Node] = frozenset()  # Nodes whose values `look` is shown
    look: Callable[[Node, Tensor], None] | None = None


Seen = Callable[[TracedGraph], None]
"""Called with each graph before it first runs; it may set `wanted` and `look`."""


def trace(
    workload: Workload, config: StepConfig, batch: object, *, seen: Seen | None
) -> list[TracedGraph]:
    """Run forward and backward of one step on `batch`, twice; return its graphs in order.

    Values are shown in the first run and times taken in the second; a first run of over LONG_S
    gives both. Without `seen` nothing is computed: every graph returns zeros. The model's
    parameters, buffers and gradients are left as they were. Parts of the step between graphs (graph
    breaks) run eagerly and are not returned.
    """
    graphs: list[TracedGraph] = []
    model = workload.model

    def inner(module: GraphModule, inputs: Inputs, **given: object) -> object:
        traced = _prepared(module, inputs, backward=bool(given.get("is_backward")))
        graphs.append(traced)
        if seen is not None:
            seen(traced)
        return _boxed(traced, compute=seen is not None)

    gpus = range(torch.cuda.device_count())
    with ExitStack() as stack:
        for context in (_patches(), _unchanged(model), torch.random.fork_rng(gpus)):
            stack.enter_context(context)
        backends = ATTENTION_BACKENDS.get(config.attention)
        stack.enter_context(sdpa_kernel(backends) if backends else nullcontext())
        apply_checkpointing(model, config.checkpointing)
        stack.callback(apply_checkpointing, model, "none")
        run = _compiled(workload, config, inner, model)
        for _ in range(1 if seen is None else 2):  # the first run warms up: the second is timed
            for graph in graphs:
                graph.calls, graph.look = 0, None
                graph.times_s.clear()
            torch.manual_seed(0)
            run(batch)
            if sum(sum(graph.times_s.values()) for graph in graphs) > LONG_S:
                break
    return graphs


def _compiled(
    workload: Workload, config: StepConfig, inner: Callable[..., Any], model: nn.Module
) -> Callable[[object], object]:
    """Return forward and backward of a batch, compiled with `inner` in Inductor's place."""
    from torch._inductor.compile_fx import compile_fx

    options = dict(compile_options(config.kernels))

    def backend(module: GraphModule, inputs: Inputs) -> object:
        return compile_fx(module, inputs, inner_compile=inner, config_patches=options)

    eager = msgspec.structs.replace(config, compile_mode=None, kernels=(), optimizer="as_written")
    torch._dynamo.reset()
    if workload.train_step is not None:
        return lambda batch: run_own_step(workload, eager, batch, backend)
    step = torch.compile(compiled_loss(workload, eager), backend=backend, dynamic=False)
    trained = [p for p in model.parameters() if p.requires_grad]
    copies = copies_for(workload, config)

    def run(batch: object) -> object:
        with copies.in_place() if copies else nullcontext():
            read = [copies.read_by(p) for p in trained] if copies else trained
            return gradients_of(step(model, batch), read)

    return run


@contextmanager
def _patches() -> Iterator[None]:
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor

    with (
        functorch.patch(enable_autograd_cache=False),
        inductor.patch({"trace.provenance_tracking_level": 1}),
    ):
        try:
            yield
        finally:
            torch._dynamo.reset()


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Run the model in training mode, then restore its mode and its buffers."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    modes = {module: module.training for module in model.modules()}
    model.train()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if name in buffers:
                    buffer.copy_(buffers[name])


def _prepared(module: GraphModule, inputs: Inputs, *, backward: bool) -> TracedGraph:
    """Do what Inductor does to a graph before its first custom pass."""
    from torch._inductor.compile_fx import fake_tensor_prop
    from torch._inductor.fx_passes.post_grad import view_to_reshape

    view_to_reshape(module)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        fake_tensor_prop(module, inputs)
    module.graph.eliminate_dead_code()
    module.recompile()
    return TracedGraph(module, "backward" if backward else "forward")


def _boxed(traced: TracedGraph, *, compute: bool) -> Callable[[list[object]], object]:
    def run(given: list[object]) -> object:
        inputs = list(given)
        given.clear()
        traced.calls += 1
        if not compute:
            return _zeros(traced.module)
        with torch.no_grad(), torch._C._DisableAutocast():
            return _TimedRun(traced).run(*inputs)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _zeros(module: GraphModule) -> tuple[object, ...]:
    """Return zeros in the form of a graph's outputs: indices into anything stay in range."""

    def zero(node: object) -> object:
        value = node.meta["val"] if isinstance(node, Node) else node
        if not isinstance(value, Tensor):
            return value
        made = torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device=value.device
        )
        return made.zero_()

    (output,) = module.graph.find_nodes(op="output")
    return tuple(zero(one) for one in output.args[0])


class _TimedRun(Interpreter):
    """Runs a graph node by node, takes the time of each and shows wanted values."""

    def __init__(self, traced: TracedGraph) -> None:
        super().__init__(traced.module)
        self._traced = traced
        devices = {getattr(node.meta.get("val"), "device", None) for node in self.graph.nodes}
        self._on_gpu = any(one is not None and one.type == "cuda" for one in devices)

    def run_node(self, n: Node) -> object:
        began = self._now()
        result = super().run_node(n)
        if n.op == "call_function":
            times = self._traced.times_s
            times[n] = times.get(n, 0.0) + self._now() - began
        if n in self._traced.wanted and self._traced.look is not None:
            self._traced.look(n, result)
        return result

    def _now(self) -> float:
        if self._on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()
