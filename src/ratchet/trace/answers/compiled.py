"""torch.compile in a trace: compiled regions, graph breaks and recompilations."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import numpy as np

from ratchet.trace.analysis.intervals import union
from ratchet.trace.analysis.links import Links
from ratchet.trace.answers.kernels import device_rows
from ratchet.trace.read.columns import Trace

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
