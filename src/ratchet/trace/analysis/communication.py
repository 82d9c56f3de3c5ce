"""The events that communicate."""

from __future__ import annotations

import re

import numpy as np

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
