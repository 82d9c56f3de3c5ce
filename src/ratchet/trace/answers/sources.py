"""The code behind work: the line of Python, the compiled region and its breaks, fused ops."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from ratchet.trace.analysis.intervals import union
from ratchet.trace.analysis.links import Links
from ratchet.trace.answers.kernels import device_rows
from ratchet.trace.answers.work import ATEN
from ratchet.trace.read.columns import Int64, Kind, Trace

_FRAME = re.compile(r"^(?P<path>[^<>]+\.py)\(\d+\): ")
_LIBRARIES = frozenset({"torch", "triton", "tqdm", *sys.stdlib_module_names})
"""Beginnings of the paths, without `site-packages`, of frames that only carry a call on."""
_GENERATED = re.compile(r"torchinductor_|/torch/|/triton/|/ratchet/")
_FUSED = re.compile(r"^triton_[a-z]+_fused_(?P<ops>\w+?)_\d+$")
_MORE = ("_to_copy", "_unsafe_view", "view", "transpose", "permute", "t", "expand", "slice",
         "squeeze", "unsqueeze", "select", "split", "clone", "constant_pad_nd", "embedding",
         "embedding_dense_backward", "sum", "mean", "var_mean", "native_dropout", "scalar_tensor",
         "full", "arange", "ones", "zeros", "copy", "rand", "moe_forward", "detach")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """The code around an op; empty where the trace does not tell."""

    region: str  # The compiled region, or the graph of Inductor
    source: str  # The innermost line of Python outside torch, Triton and the standard library


class Places:
    """The code around the ops of one trace."""

    def __init__(self, trace: Trace, links: Links) -> None:
        self._trace, self._links = trace, links

    def of(self, op: int) -> Place:
        """Return the code around the op in this row; its forward's line is a backward's too."""
        trace = self._trace
        region, source, row = "", "", op
        while row >= 0:
            name = trace.string(row)
            if not region and (REGION.match(name) or GRAPH.match(name)):
                region = name.strip("# ")
            row = int(self._links.parent_op[row])
        for row in (op, self._forward_of(op)):
            source = source or (self._line(row) if row >= 0 else "")
        return Place(region, source)

    @cached_property
    def _lines(self) -> dict[int, tuple[Int64, Int64, Int64]]:
        """The user's frames by thread: start, end and row."""
        trace = self._trace
        wanted = np.array([_is_users(text) for text in trace.strings], dtype=bool)
        rows = np.flatnonzero((trace.kind == Kind.PYTHON) & wanted[trace.text])
        end = trace.end
        return {
            int(lane): (trace.start[own], end[own], own.astype(np.int64))
            for lane in np.unique(trace.lane[rows])
            for own in [rows[trace.lane[rows] == lane]]
        }

    def _line(self, op: int) -> str:
        found = self._lines.get(int(self._trace.lane[op]))
        if found is None:
            return ""
        start, end, rows = found
        at = self._trace.start[op]
        before = int(np.searchsorted(start, at, side="right"))
        around = np.flatnonzero(end[:before] > at)
        return self._trace.string(rows[around[-1]]) if around.size else ""

    @cached_property
    def _by_sequence(self) -> tuple[Int64, Int64]:
        """The forward ops that autograd numbered: numbers in order, and rows."""
        ops, backward = self._trace.ops, self._links.backward
        forward = (ops.sequence >= 0) & ~backward[ops.row]
        order = np.argsort(ops.sequence[forward], kind="stable")
        return ops.sequence[forward][order], ops.row[forward][order].astype(np.int64)

    def _forward_of(self, op: int) -> int:
        """Return the forward op of a backward one; -1 if there is none."""
        ops, (numbers, rows) = self._trace.ops, self._by_sequence
        if not self._links.backward[op]:
            return -1
        row = op
        while row >= 0:
            place = int(np.searchsorted(ops.row, row))
            wanted = int(ops.sequence[place])
            found = int(np.searchsorted(numbers, wanted, side="right")) - 1
            if wanted >= 0 and found >= 0 and numbers[found] == wanted:
                return int(rows[found])
            row = int(self._links.parent_op[row])
        return -1


def _is_users(text: str) -> bool:
    frame = _FRAME.match(text)
    if frame is None or _GENERATED.search(frame["path"]):
        return False
    path = re.split(r"(?:site|dist)-packages/|lib/python3[.\d]*/", frame["path"])[-1]
    return path.split("/")[0].removesuffix(".py") not in _LIBRARIES


@lru_cache(maxsize=4096)
def fused_ops(kernel: str) -> tuple[str, ...]:
    """Return the ops that one of Inductor's kernels fuses, by its name; none for other kernels.

    Inductor joins their names with underscores, and cuts long names off.
    """
    found = _FUSED.match(kernel)
    left, ops = (found["ops"] if found else ""), []
    while left:
        fits = [name for name in _known() if left == name or left.startswith(f"{name}_")]
        name = max(fits, key=len, default=left.split("_")[0] or left)
        ops.append(name)
        left = left[len(name) :].removeprefix("_")
    return tuple(ops)


@lru_cache(maxsize=1)
def _known() -> tuple[str, ...]:
    return (*_MORE, *(name for _, rules in ATEN for name in rules))


REGION = re.compile(r"^Torch-Compiled Region(?:: (\d+)/(\d+))?")
GRAPH = re.compile(r"^## Call CompiledFxGraph (\w+) ##")
COMPILE = re.compile(r"\(dynamo_timed\)|^_compile|compile_inner|CompileTime")
NOTES_KEY = "ratchet_compile"
"""Metadata key under which a recording keeps dynamo's break and recompile reasons, as JSON."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compiled:
    """The work of torch.compile in the recording; times in ns."""

    regions: int  # Distinct compiled frames
    graphs: int
    """Distinct compiled graphs. A region with several has graph breaks or was recompiled."""
    calls: int
    graph_breaks: int
    """The recording's own count; without one, the number of frames after the first."""
    recompilations: int  # Compilations of a frame that had been compiled before
    compile_time: int  # CPU time in compilation inside the recording
    break_reasons: dict[str, int]
    recompile_reasons: dict[str, int]
    """Distinct reasons with their counts; only `ratchet trace record` keeps them."""


def compiled(trace: Trace) -> Compiled | None:
    """Return None if the trace shows no torch.compile."""
    regions: dict[int, int] = {}
    graphs = set()
    calls = 0
    named = {i: s for i, s in enumerate(trace.strings) if REGION.match(s) or GRAPH.match(s)}
    counts = np.bincount(trace.text, minlength=len(trace.strings))
    for number, text in named.items():
        region = REGION.match(text)
        if region and region[1] is not None:
            frame, version = int(region[1]), int(region[2])
            regions[frame] = max(regions.get(frame, 0), version)
            calls += int(counts[number])
        elif graph := GRAPH.match(text):
            graphs.add(graph[1])
    compiling = trace.named(COMPILE)[trace.text]
    try:
        said = json.loads(trace.metadata.get(NOTES_KEY, "{}"))
    except (ValueError, RecursionError):
        said = None
    notes: dict[str, dict[str, int]] = said if isinstance(said, dict) else {}
    if not (regions or graphs or compiling.any() or notes):
        return None
    breaks, recompiles = notes.get("graph_break", {}), notes.get("recompile", {})
    return Compiled(
        regions=len(regions),
        graphs=len(graphs),
        calls=calls,
        graph_breaks=sum(breaks.values()) or max(len(regions) - 1, 0),
        recompilations=sum(recompiles.values()) or sum(regions.values()),
        compile_time=union(trace.start[compiling], trace.end[compiling]).length,
        break_reasons=breaks,
        recompile_reasons=recompiles,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Recompute:
    """Forward work done again in the backward (activation checkpointing); times in ns."""

    device: int
    share: float  # As a share of all linked device time
    ops: int


def recompute(trace: Trace, links: Links) -> Recompute:
    """Sum the device time of ops that run a checkpointed forward again."""
    rows = device_rows(trace, links)
    rows = rows[links.op[rows] >= 0]
    again = links.recompute[links.op[rows]]
    total, device = int(trace.duration[rows].sum()), int(trace.duration[rows][again].sum())
    return Recompute(
        device=device,
        share=device / total if total else 0.0,
        ops=int((links.recompute[trace.ops.row]).sum()),
    )
