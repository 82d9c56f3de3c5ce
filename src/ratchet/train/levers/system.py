"""Levers of the process: memory, threads and cores."""

import platform
from functools import partial
from pathlib import Path

from ratchet.train.levers.base import Lever, Situation, only_cpu, only_gpu
from ratchet.train.workloads.config import find_library

SHORT = 0.8  # Share of the device's memory above which a step counts as short of memory
MICRO_BATCHES_NAME = "micro-batches="
"""Name of the lever that cuts batches, before the number of parts."""
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def _has_glibc(situation: Situation) -> str | None:
    if reason := only_cpu(situation):
        return reason
    return None if platform.libc_ver()[0] == "glibc" else "the C library is not glibc"


def _has_allocator(name: str, situation: Situation) -> str | None:
    missing = None if find_library(name) else f"lib{name} is not installed"
    return only_cpu(situation) or missing


def _may_have_huge_pages(situation: Situation) -> str | None:
    if reason := only_cpu(situation):
        return reason
    try:
        setting = _HUGE_PAGES.read_text()
    except OSError:
        return "the kernel has no transparent huge pages"
    if "[never]" in setting:
        return "transparent huge pages are switched off in the kernel"
    if "[always]" in setting:
        return "transparent huge pages are already on for every process"
    return None


def _drops_gradients(situation: Situation) -> str | None:
    if situation.own_step:
        return "the step drops or keeps its gradients itself"
    return only_cpu(situation)


def _has_idle_cores(situation: Situation) -> str | None:
    if reason := only_cpu(situation):
        return reason
    if situation.cores < 2:
        return "there is only one core"
    if situation.written.threads in (None, situation.cores):
        return f"the step already uses all {situation.cores} cores"
    return None


def _memory_is_short(situation: Situation) -> str | None:
    if situation.written.checkpointing != "none":
        return "the step already checkpoints its activations"
    return _is_short(situation)


def _is_short(situation: Situation) -> str | None:
    if situation.peak_memory_bytes < SHORT * situation.memory_bytes:
        share = situation.peak_memory_bytes / max(situation.memory_bytes, 1)
        return (
            f"memory is not short ({share:.0%} of the device's is used), and saving it costs time"
        )
    return None


MALLOPT = Lever(
    field="allocator",
    value="mallopt",
    name="allocator-mallopt",
    summary="mallopt: large blocks stay in the heap instead of going back to the kernel",
    expected="fresh 64 MB outputs cost their page faults once, not each step (67 ms against 23)",
    source="mallopt(3), M_MMAP_MAX and M_TRIM_THRESHOLD; measured on two AVX-512 cores",
    applies=_has_glibc,
    acts_on=("system",),
    default=True,
)
JEMALLOC = Lever(
    field="allocator",
    value="jemalloc",
    name="allocator-jemalloc",
    summary="jemalloc preloaded",
    expected="blocks are reused instead of going back to the kernel",
    source="PyTorch documentation, Performance Tuning Guide, memory allocators",
    applies=partial(_has_allocator, "jemalloc"),
    acts_on=("system",),
)
TCMALLOC = Lever(
    field="allocator",
    value="tcmalloc",
    name="allocator-tcmalloc",
    summary="tcmalloc preloaded",
    expected="blocks are reused instead of going back to the kernel",
    source="PyTorch documentation, Performance Tuning Guide, memory allocators",
    applies=partial(_has_allocator, "tcmalloc"),
    acts_on=("system",),
)
EXPANDABLE_SEGMENTS = Lever(
    field="allocator",
    value="expandable",
    name="expandable-segments",
    summary="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: segments of GPU memory that grow",
    expected="less memory lost to fragments, fewer stalls where shapes change",
    source="PyTorch documentation, CUDA semantics, memory management",
    applies=only_gpu,
    acts_on=("system",),
)
HUGE_PAGES = Lever(
    field="huge_pages",
    value=True,
    name="huge-pages",
    summary="madvise(MADV_HUGEPAGE) for tensors of 2 MiB and more (THP_MEM_ALLOC_ENABLE=1)",
    expected="one page fault and one TLB entry for 2 MiB instead of 4 KiB",
    source="PyTorch source, c10/core/impl/alloc_cpu.cpp; Linux admin guide, transhuge",
    applies=_may_have_huge_pages,
    acts_on=("system",),
    default=True,
)
PREALLOCATE = Lever(
    field="preallocate",
    value=True,
    name="preallocate",
    summary="gradient buffers are zeroed in place instead of freed",
    expected="no page faults for fresh gradients; backward reads them once more",
    source="PyTorch documentation, Optimizer.zero_grad(set_to_none=)",
    applies=_drops_gradients,
    acts_on=("system",),
)
THREADS = Lever(
    field="threads",
    value=lambda situation: situation.cores,
    name="threads",
    summary="one thread on each core available to this process",
    expected="all cores are used where the script used fewer",
    source="PyTorch documentation, CPU threading and TorchScript inference",
    applies=_has_idle_cores,
    acts_on=("step",),
    default=True,
)
AFFINITY = Lever(
    field="affinity",
    value=True,
    name="affinity",
    summary="OpenMP threads bound to cores (OMP_PROC_BIND=close, OMP_PLACES=cores)",
    expected="no migrations; caches stay warm. On a shared machine it can cost time",
    source="PyTorch documentation, Performance Tuning Guide, CPU specific optimizations",
    applies=only_cpu,
)
CHUNKED_LOGITS = Lever(
    field="logits",
    value="chunked",
    name="chunked-logits",
    summary="the last linear layer and its cross-entropy together, by chunks of tokens",
    expected="logits and their gradients are never whole in memory",
    source="Liger-Kernel, arXiv:2410.10989, section 3.2",
    applies=_is_short,
)
UPDATE_IN_BACKWARD = Lever(
    field="update_in_backward",
    value=True,
    name="update-in-backward",
    summary="each parameter is updated when its gradient is there, and the gradient freed",
    expected="the memory of all gradients but one",
    source="PyTorch tutorials, fusing the optimizer step into the backward pass; arXiv:2306.09782",
    applies=lambda situation: situation.why_not_in_backward or _is_short(situation),
)
MICRO_BATCHES = Lever(
    field="micro_batches",
    value=2,
    name=MICRO_BATCHES_NAME + "2",
    summary="each batch in 2 equal parts, one after the other, their gradients averaged",
    expected="activations of a part of the batch, for smaller matrix products",
    source="Huang et al. 2019 (GPipe), arXiv:1811.06965, section 2",
    applies=lambda situation: (
        "the step takes its batches itself" if situation.own_step else _is_short(situation)
    ),
)
CHECKPOINTING = Lever(
    field="checkpointing",
    value="selective",
    name="activation-checkpointing",
    summary="matrix products saved, everything else recomputed during backward",
    expected="a fraction of the activation memory for a few percent of time",
    source="Chen et al. 2016 (sublinear memory cost); Korthikanti et al. 2022 (selective)",
    applies=_memory_is_short,
)
