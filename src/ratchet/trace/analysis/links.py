"""Links from device work to its launch, op and module, and the call tree of each thread."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ratchet.trace.read.columns import DEVICE_KINDS, Bool, Int64, Kind, Trace


@dataclass(frozen=True, kw_only=True, slots=True)
class Nest:
    """The call tree of a choice of events; positions are into that choice."""

    parent: Int64  # The innermost event around each, -1 for an outermost one
    levels: tuple[Int64, ...]  # Positions by depth, the outermost first

    def nearest(self, wanted: Bool) -> Int64:
        """Return for each event the innermost wanted one around it, -1 if there is none."""
        near = np.full(self.parent.size, -1, dtype=np.int64)
        for level in self.levels[1:]:
            above = self.parent[level]
            known = above >= 0
            near[level] = np.where(known & wanted[above], above, np.where(known, near[above], -1))
        return near


def nest(lane: NDArray[np.int32], start: Int64, duration: Int64) -> Nest:
    """Build the tree of events in the order of a `Trace`: by start, the longer first.

    All threads are laid end to end on one axis (`_apart`), so that two searches in sorted times do
    for all events what a stack per thread would do one by one.
    """
    count = start.size
    if not count:
        return Nest(parent=np.zeros(0, dtype=np.int64), levels=())
    order = np.argsort(lane, kind="stable")
    # With doubled times, an event of length 0 ends after its start.
    begin = 2 * (start[order] - start.min())
    end = begin + np.maximum(2 * duration[order], 1)
    begin, end = _apart(lane[order].astype(np.int64), begin, end)
    # An event is as deep as events are open at its start: those begun before it, less those ended.
    depth = np.arange(count) - np.searchsorted(np.sort(end), begin, side="right")
    parent = np.full(count, -1, dtype=np.int64)
    by_depth = np.argsort(depth, kind="stable")
    bounds = np.searchsorted(depth[by_depth], np.arange(int(depth.max()) + 2))
    levels = [by_depth[a:b] for a, b in itertools.pairwise(bounds)]
    own_lane = lane[order]
    for above, level in itertools.pairwise(levels):
        # The parent is the last event of the level above that began before; never another thread's.
        found = np.searchsorted(above, level) - 1
        candidate = above[np.maximum(found, 0)]
        fits = (found >= 0) & (own_lane[candidate] == own_lane[level])
        parent[level] = np.where(fits, candidate, -1)
    result = np.full(count, -1, dtype=np.int64)
    result[order] = np.where(parent >= 0, order[np.maximum(parent, 0)], -1)
    return Nest(parent=result, levels=tuple(order[level] for level in levels))


def _apart(lane: Int64, begin: Int64, end: Int64) -> tuple[Int64, Int64]:
    """Shift the lanes' times so that no two lanes meet; ranks replace times that would overflow."""
    width = int(end.max()) + 2
    if (int(lane.max()) + 1) * width < 2**62:
        return begin + lane * width, end + lane * width
    times, rank = np.unique(np.concatenate((begin, end)), return_inverse=True)
    rank = rank.reshape(-1).astype(np.int64)
    shift = lane * (times.size + 1)
    return rank[: begin.size] + shift, rank[begin.size :] + shift


MODULE = re.compile(r"^nn\.Module: ")
BACKWARD = re.compile(r"^autograd::engine::evaluate_function: ")
CHECKPOINT = re.compile(
    r"CheckpointFunctionBackward|utils/checkpoint\.py\(\d+\): (unpack|recompute)"
)
COLLECTIVE_MARK = re.compile(r"^(nccl|rccl|gloo|xccl|mpi|ucc):")


@dataclass(frozen=True, kw_only=True, slots=True)
class Links:
    """Int64 into the trace, by row of the trace; -1 if there is none."""

    launch: Int64  # For device work, the runtime call that started it
    op: Int64  # For device work and runtime calls, the innermost CPU op around the launch
    parent_op: Int64  # For CPU ops, the op around it
    module: Int64
    """For CPU ops, the innermost nn.Module call; for a backward op, that of its forward op."""
    backward: Bool  # True for CPU ops that the autograd engine runs
    recompute: Bool  # True for CPU ops that run a forward again inside the backward (checkpointing)
    carried_in: Bool
    """True for work from before the recording: without a launch, and over before launched work."""
    mark: Int64
    """For device work, the process group's annotation around its launch, such as `nccl:send`."""
    chosen: Int64  # The rows of the call tree, and the tree over them
    tree: Nest

    def ops_around(self, row: int) -> Iterator[int]:
        """Yield the op of a row and the ops around it, the innermost first."""
        op = int(self.op[row])
        while op >= 0:
            yield op
            op = int(self.parent_op[op])


def link(trace: Trace) -> Links:
    module_name = trace.named(MODULE)[trace.text] & (trace.kind == Kind.PYTHON)
    checkpoint = trace.named(CHECKPOINT)[trace.text]
    inner = np.isin(trace.kind, (Kind.OP, Kind.RUNTIME)) | module_name
    inner |= checkpoint & (trace.kind == Kind.PYTHON)
    marked = trace.named(COLLECTIVE_MARK)[trace.text] & (trace.kind == Kind.ANNOTATION)
    chosen = np.flatnonzero(inner | marked)
    tree = nest(trace.lane[chosen], trace.start[chosen], trace.duration[chosen])
    kind = trace.kind[chosen]
    is_op = kind == Kind.OP
    op_above = _spread(trace, chosen, tree.nearest(is_op))
    launch = _launches(trace)
    op = np.where(trace.kind == Kind.RUNTIME, op_above, -1)
    started = launch >= 0
    op[started] = op_above[launch[started]]
    mark_above = _spread(trace, chosen, tree.nearest(marked[chosen]))
    mark = np.where(started, mark_above[np.maximum(launch, 0)], -1)
    op = _by_external_id(trace, op)
    is_backward = trace.named(BACKWARD)[trace.text[chosen]] & is_op
    backward_above = tree.nearest(is_backward)
    again = _recomputes(checkpoint[chosen], is_backward, module_name[chosen], tree)
    backward = np.zeros(len(trace), dtype=bool)
    backward[chosen] = is_backward | (backward_above >= 0)
    recompute = np.zeros(len(trace), dtype=bool)
    recompute[chosen] = again
    module = _spread(trace, chosen, tree.nearest(module_name[chosen]))
    return Links(
        launch=launch,
        op=op,
        parent_op=np.where(trace.kind == Kind.OP, op_above, -1),
        module=_modules_of_backward(trace, module, backward & ~recompute, chosen, backward_above),
        backward=backward & ~recompute,
        recompute=recompute,
        carried_in=_carried_in(trace, launch),
        mark=mark,
        chosen=chosen,
        tree=tree,
    )


def _spread(trace: Trace, chosen: Int64, near: Int64) -> Int64:
    """Turn positions in the choice into rows of the trace."""
    rows = np.full(len(trace), -1, dtype=np.int64)
    rows[chosen] = np.where(near >= 0, chosen[np.maximum(near, 0)], -1)
    return rows


def _launches(trace: Trace) -> Int64:
    """Find the runtime call of device work by correlation id; if several share it, the first."""
    calls = np.flatnonzero((trace.kind == Kind.RUNTIME) & (trace.correlation > 0))
    launch = np.full(len(trace), -1, dtype=np.int64)
    work = trace.rows(*DEVICE_KINDS)
    if not calls.size or not work.size:
        return launch
    launch[work] = _first_with(trace.correlation[work], calls, trace.correlation[calls])
    return launch


def _first_with(wanted: Int64, rows: NDArray[np.integer], ids: Int64) -> Int64:
    """Return for each wanted id the first of these rows that has it, -1 if none has."""
    order = np.argsort(ids, kind="stable")
    known = ids[order]
    found = np.minimum(np.searchsorted(known, wanted), known.size - 1)
    return np.where(known[found] == wanted, rows[order][found], -1).astype(np.int64)


def _by_external_id(trace: Trace, op: Int64) -> Int64:
    """Find the op of device work that has no launch in the trace but carries its op's id."""
    work = trace.rows(*DEVICE_KINDS)
    own = trace.external[work]
    # Old profilers repeat the correlation id there: it is not an op's id.
    if not work.size or (own == trace.correlation[work]).all():
        return op
    open_work = work[(op[work] < 0) & (own > 0)]
    ops = trace.ops.row[trace.external[trace.ops.row] > 0]
    if not ops.size or not open_work.size:
        return op
    op[open_work] = _first_with(trace.external[open_work], ops, trace.external[ops])
    return op


def _carried_in(trace: Trace, launch: Int64) -> Bool:
    work = trace.rows(*DEVICE_KINDS)
    carried = np.zeros(len(trace), dtype=bool)
    started = work[launch[work] >= 0]
    if started.size:
        first = trace.start[started].min()
        carried[work] = (launch[work] < 0) & (trace.end[work] <= first)
    return carried


def _recomputes(checkpoint: Bool, is_backward: Bool, module: Bool, tree: Nest) -> Bool:
    """Find forward calls inside a backward node: under a checkpoint or a module's forward.

    What a call is follows from the innermost of the three around it: directly under a node, it is
    the backward's own work; under a checkpoint or a module inside a node, it is a forward again.
    """
    above_backward = tree.nearest(is_backward)
    again_here = (checkpoint | module) & (above_backward >= 0)
    source = tree.nearest(again_here | is_backward)
    inside = np.zeros(source.size, dtype=bool)
    known = source >= 0
    inside[known] = again_here[source[known]]
    return (inside | again_here) & ~is_backward


def _modules_of_backward(
    trace: Trace, module: Int64, backward: Bool, chosen: Int64, backward_above: Int64
) -> Int64:
    """Give ops of the backward the module of the forward op with the same sequence number."""
    ops = trace.ops
    numbered = ops.sequence >= 0
    forward = numbered & ~backward[ops.row] & (module[ops.row] >= 0)
    if not forward.any():
        return module
    order = np.argsort(ops.sequence[forward], kind="stable")
    sequence: Int64 = ops.sequence[forward][order]
    home = module[ops.row[forward]][order]
    of_node = np.full(len(trace), -1, dtype=np.int64)
    nodes = ops.row[numbered & backward[ops.row]]
    own = ops.sequence[numbered & backward[ops.row]]
    # The last op with a sequence number made the node; an outer op keeps the number it began with.
    found = np.maximum(np.searchsorted(sequence, own, side="right") - 1, 0)
    of_node[nodes] = np.where(sequence[found] == own, home[found], -1)
    node = _spread(trace, chosen, backward_above)
    inherited = np.where(node >= 0, of_node[np.maximum(node, 0)], -1)
    inherited = np.where(of_node >= 0, of_node, inherited)
    return np.where(backward & (module < 0), inherited, module)
