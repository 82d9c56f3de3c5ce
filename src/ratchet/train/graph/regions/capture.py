"""Take every region out of a workload's compiled graphs, ranked by the time still to be won."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils.flop_counter import flop_registry

from ratchet.base.devices.ceilings import Ceilings, measure, roofline, unrefuted
from ratchet.base.devices.probe import Device, probe
from ratchet.base.devices.rates import best_of
from ratchet.base.errors import DeviceError, RatchetError
from ratchet.base.show import model as m
from ratchet.base.show.words import ABSENT, show_bytes, show_time
from ratchet.judge.problems.inputs import build
from ratchet.judge.problems.model_file import run_source
from ratchet.train.graph.regions import Direction, Region, RegionReport
from ratchet.train.graph.regions.cut import (
    COPIES,
    NAMESPACES,
    Cut,
    cut_graph,
    is_getitem,
    kind_of,
    op_name,
    reads_rows,
)
from ratchet.train.graph.regions.form import (
    Batches,
    RegionForm,
    aligned,
    batch_size,
    form_of,
    other_size,
    resized,
)
from ratchet.train.graph.regions.problems import Unfit, Values, problem_of, values_of_tensor
from ratchet.train.graph.regions.trace import TracedGraph, trace
from ratchet.train.workloads.blame import batch_of
from ratchet.train.workloads.config import StepConfig, keep_freed_memory
from ratchet.train.workloads.fake import FUSED
from ratchet.train.workloads.workload import Workload

DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16"}
CALLS, CALLS_S = 20, 0.3  # Calls of a compiled region, and the time that they may take


def moved_bytes(cut: Cut) -> int:
    """Return the least traffic of one call: inputs read once, outputs written once.

    Of a tensor that is only a table to read rows from, the rows that are read count.
    """
    read = sum(min(_held(node), _gathered(node, cut)) for node in cut.inputs)
    return read + sum(_held(node) for node in cut.outputs)


def _held(node: Node) -> int:
    """Return the bytes of a tensor's elements; one that is broadcast holds each once."""
    value: Tensor = node.meta["val"]
    sizes = (s for s, step in zip(value.shape, value.stride(), strict=True) if step)
    return math.prod(sizes) * value.dtype.itemsize


def _gathered(node: Node, cut: Cut) -> int:
    """Return the bytes that the region takes out of a table; the whole if it reads it otherwise."""
    users = [user for user in node.users if user in cut.nodes]
    if not users or not all(reads_rows(user, node) for user in users):
        return _held(node)
    return sum(_held(user) for user in users)


def _flops(node: Node) -> float:
    """Return the operations of a product, a convolution or attention; 0 of anything else."""
    target: Any = node.target
    packet = target._overloadpacket
    formula = FUSED.get(packet) or flop_registry.get(packet)
    if formula is None:
        return 0.0
    args, kwargs = map_arg((node.args, node.kwargs), lambda one: one.meta["val"])
    return float(formula(*args, **kwargs, out_val=node.meta["val"]))


def floor_s(cut: Cut, size_bytes: int, flops: float, ceilings: Ceilings | None) -> float:
    """Return the region's roofline time; 0 without measured ceilings."""
    if ceilings is None:
        return 0.0
    for dtype in (_product_dtype(cut.computing), "fp32"):
        try:
            line = roofline(ceilings, dtype=dtype, working_set_bytes=size_bytes)
        except DeviceError:
            continue
        return line.time_bound_s(flops, size_bytes)
    return 0.0


def _product_dtype(nodes: Iterable[Node]) -> str:
    for node in nodes:
        if _flops(node):
            found = [one.meta["val"].dtype for one in node.all_input_nodes]
            return DTYPES.get(found[0], "fp32")
    return "fp32"


def compiled_s(reference: Callable[..., object], inputs: Sequence[Tensor]) -> float | None:
    """Return the time of one warm call under torch.compile's default; None if it fails.

    The plain reference runs first: where an index lies outside of its tensor, it raises, and
    compiled code would end the process.
    """
    on_gpu = any(one.is_cuda for one in inputs)
    try:
        with torch.no_grad():
            reference(*inputs, ())
            compiled = torch.compile(reference, dynamic=False)
            compiled(*inputs, ())
            times: list[float] = []
            while len(times) < CALLS and (sum(times) < CALLS_S or len(times) < 3):
                began = time.perf_counter()
                compiled(*inputs, ())
                if on_gpu:
                    torch.cuda.synchronize()
                times.append(time.perf_counter() - began)
            return best_of(times)
    except Exception:  # whatever the compiler raises: the estimate takes its place
        return None


LOG = logging.getLogger(__name__)
MEASURING_S = 60.0  # Default time for compiling and timing regions, the most promising first


@dataclass(slots=True, eq=False)
class _Found:
    """A distinct region while it is being captured."""

    cut: Cut
    form: RegionForm
    direction: Direction
    graph: TracedGraph
    sites: list[tuple[TracedGraph, Cut]] = field(default_factory=list)
    values: dict[Node, Values | None] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(graph.calls for graph, _ in self.sites)

    @property
    def eager_s(self) -> float:
        """Return the mean time of a call at a site, operation by operation."""
        times = [
            sum(graph.times_s.get(node, 0.0) for node in cut.computing) / max(1, graph.calls)
            for graph, cut in self.sites
        ]
        return sum(times) / len(times)


def capture_regions(
    workload: Workload, config: StepConfig, *, measuring_s: float = MEASURING_S
) -> list[Region]:
    """Return the regions of one training step, the most time that can still be won first.

    Forward and backward run at most twice, eagerly; the model is left as it was. Regions are
    compiled and timed for at most `measuring_s` seconds; 0 estimates all. What has no region is
    logged.
    """
    report = region_report(workload, config, measuring_s=measuring_s)
    for note in report.notes:
        LOG.warning("%s", note)
    return list(report.regions)


def region_report(
    workload: Workload,
    config: StepConfig,
    *,
    measuring_s: float = MEASURING_S,
    ceilings: Ceilings | None = None,
) -> RegionReport:
    """Return the regions of one training step, and a note for each part that has none.

    `ceilings` defaults to the measured ceilings of the workload's device.
    """
    batch = workload.batch(0) if workload.train_step is None else batch_of(workload, 0)
    twins = _twin_trace(workload, config, batch)
    collector = _Collector(twins, batch_size(batch))
    collector.graphs = trace(workload, config, batch, seen=collector.seen)
    device = None
    if ceilings is None:
        try:
            device = probe(workload.device)
            ceilings = measure(device, again="due")
        except RatchetError as error:
            LOG.warning("no ceilings, so every floor is 0: %s", error)
    return collector.report(ceilings, measuring_s, device)


def _twin_trace(workload: Workload, config: StepConfig, batch: object) -> list[TracedGraph]:
    """Return the graphs for another batch size; none if the workload does not take one."""
    size = batch_size(batch)
    if not size:
        return []
    other = resized(batch, other_size(size))
    try:
        return trace(workload, config, other, seen=None)
    except Exception as error:  # a user's model may raise anything for a batch that is not its own
        LOG.info("no other batch size: %s: %s", type(error).__name__, error)
        return []


class _Collector:
    """Collects the regions of a step while its graphs are compiled and run."""

    def __init__(self, twins: Sequence[TracedGraph], batch: int) -> None:
        self.graphs: list[TracedGraph] = []
        self._twins = list(twins)
        self._batch = batch
        self._found: dict[str, _Found] = {}
        self._notes: Counter[str] = Counter()
        self._number = 0

    def seen(self, traced: TracedGraph) -> None:
        """Cut a graph, and ask for the values that its new regions read."""
        batches = self._batches(traced)
        wanted: dict[Node, list[_Found]] = {}
        for cut in cut_graph(traced.module.graph):
            form = form_of(cut, batches)
            found = self._found.get(form.key)
            if found is None:
                found = _Found(cut, form, traced.direction, traced)
                self._found[form.key] = found
                for one in form.inputs:
                    wanted.setdefault(one.node, []).append(found)
            found.sites.append((traced, cut))
        self._note_others(traced)

        def look(node: Node, tensor: Tensor) -> None:
            seen = values_of_tensor(tensor)
            for found in wanted[node]:
                found.values.setdefault(node, seen)

        traced.wanted, traced.look = frozenset(wanted), look

    def _batches(self, traced: TracedGraph) -> Batches | None:
        place, self._number = self._number, self._number + 1
        if place >= len(self._twins) or self._twins[place].direction != traced.direction:
            return None
        twins = aligned(traced.module.graph, self._twins[place].module.graph)
        return Batches(self._batch, other_size(self._batch), twins)

    def _note_others(self, traced: TracedGraph) -> None:
        for node in traced.module.graph.nodes:
            if node.op != "call_function" or is_getitem(node) or kind_of(node) != "other":
                continue
            if op_name(node).startswith("_assert"):
                continue
            self._notes[f"{op_name(node)}: {_why(node)}"] += 1

    def report(
        self, ceilings: Ceilings | None, measuring_s: float, device: Device | None
    ) -> RegionReport:
        """Return the regions; one that is faster than the device's ceilings allow refutes them."""
        regions: list[tuple[_Found, Region]] = []
        for found in self._found.values():
            if not found.count:
                continue  # of a graph that was compiled but never ran
            try:
                regions.append((found, self._region(found, ceilings)))
            except Unfit as unfit:
                first = op_name(found.cut.computing[0])
                self._notes[f"a region around {first}: {unfit}"] += found.count
        timed = _timed(regions, measuring_s)
        if device is not None and ceilings is not None:
            better = unrefuted(device, ceilings, partial(self._are_beaten, timed))
            timed = [replace(one, floor_s=self._floor_s(one, better)) for one in timed]
        ranked = sorted(self._apart(with_reach(timed)), key=lambda one: -one.gain_s)
        notes = [f"left out, {count} times: {note}" for note, count in self._notes.items()]
        return RegionReport(regions=tuple(ranked), notes=tuple(notes))

    def _apart(self, regions: Sequence[Region]) -> list[Region]:
        """Tell the regions that share operations with a more promising one."""
        taken: set[Node] = set()
        apart = []
        for region in sorted(regions, key=lambda one: -one.likely_s):
            own = {
                node
                for _, cut in self._found[region.key].sites
                for node in cut.computing
                if op_name(node) not in COPIES
            }
            apart.append(replace(region, overlapped=not own.isdisjoint(taken)))
            if not apart[-1].overlapped:
                taken |= own
        return apart

    def _are_beaten(self, regions: Sequence[Region], ceilings: Ceilings) -> bool:
        """Return whether a region that was timed is faster than these ceilings allow."""
        timed = [one for one in regions if one.timed_by == "inductor"]
        return any(one.time_s < self._floor_s(one, ceilings) for one in timed)

    def _floor_s(self, region: Region, ceilings: Ceilings) -> float:
        return floor_s(self._found[region.key].cut, region.bytes, region.flops, ceilings)

    def _region(self, found: _Found, ceilings: Ceilings | None) -> Region:
        size_bytes, flops = moved_bytes(found.cut), sum(map(_flops, found.cut.computing))
        return Region(
            key=found.form.key,
            kind=found.cut.kind,
            problem=problem_of(found.cut, found.form, found.values, self._batch),
            count=found.count,
            direction=found.direction,
            ops=tuple(op_name(node) for node in found.cut.computing),
            bytes=size_bytes,
            flops=flops,
            floor_s=floor_s(found.cut, size_bytes, flops, ceilings),
            time_s=found.eager_s,
            timed_by="estimate",
            where=_where(found.cut),
        )


def _why(node: Node) -> str:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return "an operation of higher order"
    if target.namespace not in NAMESPACES:
        return f"a custom operation of {target.namespace!r}"
    if torch.Tag.nondeterministic_seeded in target.tags or "random" in op_name(node):
        return "random numbers"
    dynamic = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
    if any(tag in target.tags for tag in dynamic):
        return "a shape or a value that depends on data"
    if target._schema.is_mutable:
        return "it writes to a tensor in place"
    values = (one.meta.get("val") for one in (node, *node.all_input_nodes))
    sizes = (size for one in values if isinstance(one, Tensor) for size in one.shape)
    if not all(isinstance(size, int) for size in sizes):
        return "a shape that depends on data"
    return "no operation that a region can hold"


def _where(cut: Cut) -> str:
    """Return the path of the innermost module that the first node with a path came from."""
    for node in cut.computing:
        for name in ("nn_module_stack", "fwd_nn_module_stack"):
            stack = node.meta.get(name)
            if stack:
                path = str(next(reversed(stack.values()))[0])
                if path.startswith("L["):  # dynamo's `L['model'].layers.0.mlp`
                    path = path.partition("]")[2]
                return path.replace("._modules", "").replace("['", ".").replace("']", "").strip(".")
    return ""


def _timed(regions: Sequence[tuple[_Found, Region]], measuring_s: float) -> list[Region]:
    """Measure the most promising regions in the time given; scale the estimates of the rest.

    Freed memory stays in this process, as in a step that reuses its own: alone, a region with large
    results would mostly wait for new pages.
    """
    if measuring_s > 0:
        keep_freed_memory()
    deadline = time.monotonic() + measuring_s
    order = sorted(regions, key=lambda one: -one[1].gain_s)
    ratios: dict[str, list[float]] = {}
    timed: list[Region] = []
    for found, region in order:
        taken_s, known = None, ratios.setdefault(region.kind, [])
        if time.monotonic() < deadline:
            torch._dynamo.reset()
            device = found.cut.outputs[0].meta["val"].device
            inputs = [one.to(device) for one in build(region.problem.cases[0].inputs, 0)]
            taken_s = compiled_s(run_source(region.problem.text).reference, inputs)
        if taken_s is not None:
            known.append(taken_s / max(found.eager_s, 1e-9))
            region = replace(region, time_s=taken_s, timed_by="inductor")
        elif known:
            estimate_s = region.time_s * sorted(known)[len(known) // 2]
            region = replace(region, time_s=max(region.floor_s, estimate_s))
        timed.append(region)
    return timed


def with_reach(regions: Sequence[Region]) -> list[Region]:
    """Tell each product what share of its roofline the best measured one reaches."""
    products = [one for one in regions if one.kind == "product" and one.time_s > 0]
    timed = (one.floor_s / one.time_s for one in products if one.timed_by == "inductor")
    best = max(timed, default=1.0)
    return [
        replace(one, reach_s=one.floor_s / best) if one.kind == "product" and best > 0 else one
        for one in regions
    ]


# The regions of a workload: what could be rewritten, and what that could win.

TIMED_BY = {"inductor": "", "estimate": " ~"}


def regions_report(
    workload: str,
    regions: Sequence[Region],
    notes: Sequence[str] = (),
) -> m.ResultReport:
    """Describe the regions of a workload, in their order, and what was left out."""
    total_s = sum(one.gain_s for one in regions)
    sites = sum(one.count for one in regions)
    return m.ResultReport(
        headline=f"{workload}: {len(regions)} different regions at {sites} sites of a step.",
        sections=m.blocks(
            m.section("Regions", m.ResultTable(_columns(total_s), regions), *_explained(regions))
            if regions
            else None,
            m.section("Left out", *notes),
        ),
    )


def _columns(total_s: float) -> tuple[m.Column, ...]:
    return (
        m.name("region", lambda one: one.problem.name),
        m.Column("where", lambda one: one.where or ABSENT),
        m.Column("pass", "direction"),
        m.number("sites", "count"),
        m.number("bytes", "bytes", show_bytes),
        m.number("now", lambda one: show_time(one.time_s) + TIMED_BY[one.timed_by]),
        m.number("floor", "floor_s", show_time),
        m.number("to win", "gain_s", show_time),
        m.number("share", lambda one: f"{one.gain_s / total_s:.0%}" if total_s else ABSENT),
    )


def _explained(regions: Sequence[Region]) -> list[str]:
    said = [
        "now and floor are times of one site; to win is what all sites of a step lose against the "
        "floor, the roofline time of their compulsory bytes and operations."
    ]
    if any(one.timed_by == "estimate" for one in regions):
        said.append("~ is an estimate; the other times are torch.compile's, region by region.")
    if any(one.kind == "product" for one in regions):
        said.append(
            "A product's region and a fused region next to it may hold the same pointwise "
            "operations, so their times do not add up."
        )
    return said
