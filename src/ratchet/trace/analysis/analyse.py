"""A trace with its links, its window and its steps: `analyse(trace)`."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ratchet.trace.analysis.identity import Activity, Steps, activity, steps
from ratchet.trace.analysis.links import Links, link
from ratchet.trace.read.columns import Bool, Kind, Trace

KERNEL = re.compile(
    r"nccl(?!\w*Mem)|rccl|oneccl|msccl|ucc_|nvshmem|rocshmem|deep_ep|"
    r"cross_device_reduce|quick_?reduce|multimem_all|"
    r"(one|two)_?shot_all_?reduce|all_?reduce_?(fusion|kernel|sum)|custom_all_?reduce",
    re.IGNORECASE,
)
"""Names of device kernels of the collective libraries and of custom all-reduces; never `hip*`."""
CPU_OP = re.compile(r"^(c10d::|gloo:|mpi:|ucc:|_c10d_functional::)")
"""Names of CPU ops and annotations that communicate, for traces without device work."""


def communicates(trace: Trace) -> Bool:
    """Return for each event whether it is a communication kernel (on a CPU-only trace, an op)."""
    if trace.on_device:
        named = trace.named(KERNEL)[trace.text] & (trace.kind == Kind.KERNEL)
        recorded = np.zeros(len(trace), dtype=bool)
        recorded[trace.collectives.row] = True
        return np.asarray(named | (recorded & (trace.kind == Kind.KERNEL)))
    cpu = np.isin(trace.kind, (Kind.OP, Kind.ANNOTATION))
    return np.asarray(trace.named(CPU_OP)[trace.text] & cpu)


@dataclass(frozen=True, kw_only=True, slots=True)
class Analysis:
    """A trace with what every answer builds on."""

    trace: Trace
    links: Links
    communication: Bool
    """True for events that communicate."""
    activity: Activity
    steps: Steps | None


def analyse(trace: Trace) -> Analysis:
    """Find links, communication, the window and the steps."""
    links = link(trace)
    communication = communicates(trace)
    whole = activity(trace, links, communication)
    return Analysis(
        trace=trace,
        links=links,
        communication=communication,
        activity=whole,
        steps=steps(trace, links, whole),
    )
