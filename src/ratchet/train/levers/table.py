"""Every lever of a step of one process, in trial order, and its conditions."""

import platform
from functools import partial
from pathlib import Path

from ratchet.train.levers.base import (
    Lever,
    Situation,
    only_cpu,
    only_gpu,
    only_rocm,
    why_no_bf16,
)
from ratchet.train.workloads.config import find_library

HIPBLASLT_TARGETS = ("gfx90a", "gfx942", "gfx950", "gfx1200", "gfx1201")
"""Architectures on which torch prefers hipBLASLt (gfx12 since ROCm 6.3, gfx950 since ROCm 6.5).

See `_hipblaslt_preferred_default` in aten/src/ATen/Context.h (github.com/ROCm/pytorch/pull/2053).
"""
AOTRITON_TARGETS = ("gfx90a", "gfx942", "gfx950")
"""Instinct GPUs, which run AOTriton's kernels by default.

On other GPUs torch asks AOTriton if the architecture is experimental, and then requires the
variable (sdp_utils.cpp).
"""


FP8_TARGETS = ("gfx942", "gfx950", "gfx1200", "gfx1201")
"""AMD GPUs on which `torch._scaled_mm` runs (`_scaled_mm_allowed_device` in PyTorch)."""
FP8_SINCE = 89  # The same for NVIDIA: compute capability 8.9 (Ada) and later


def _may_lower_weights(situation: Situation) -> str | None:
    if situation.written.precision == "bf16_master":
        return "the step already uses bf16 weights"
    return why_no_bf16(situation)


def _is_fp32(situation: Situation) -> str | None:
    if situation.written.precision != "fp32":
        return f"the step is already written in {situation.written.precision}"
    return situation.bf16_is_slow


def _has_fp32_products(situation: Situation) -> str | None:
    if situation.device_kind == "cpu" and situation.target not in ("amx", "avx512_bf16"):
        return "this CPU has no bf16 matrix instructions"
    if situation.written.precision != "fp32":
        return "the step's matrix products are not in fp32"
    return None


def _multiplies_fp8(situation: Situation) -> str | None:
    if reason := only_gpu(situation):
        return reason
    if situation.written.precision == "fp64":
        return "the step is written in fp64"
    capability = situation.target.removeprefix("sm_").rstrip("abcdef")
    able = situation.target in FP8_TARGETS or (
        capability.isdigit() and int(capability) >= FP8_SINCE
    )
    return None if able else f"{situation.target} has no fp8 matrix products in torch"


def _has_attention(situation: Situation) -> str | None:
    return None if situation.has_attention else "no scaled_dot_product_attention in the step"


def _has_cudnn_attention(situation: Situation) -> str | None:
    if situation.vendor != "NVIDIA":
        return "it applies only to NVIDIA GPUs"
    return _has_attention(situation)


def _may_use_aotriton(situation: Situation) -> str | None:
    reason = only_rocm(situation) or _has_attention(situation)
    if reason is None and situation.target in AOTRITON_TARGETS:
        return f"torch already uses AOTriton's attention on {situation.target}"
    return reason


def _may_use_hipblaslt(situation: Situation) -> str | None:
    reason = only_rocm(situation)
    if reason is None and situation.target in HIPBLASLT_TARGETS:
        return f"torch already prefers hipBLASLt on {situation.target}"
    return reason


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


COMPILE = Lever(
    field="compile_mode",
    value="default",
    name="compile",
    summary="torch.compile over the model and its loss, default mode",
    expected="element-wise chains are fused, which removes most of an eager step's memory traffic",
    source="PyTorch documentation, torch.compile",
    acts_on=("step",),
    default=True,
)
BF16_WEIGHTS = Lever(
    field="precision",
    value="bf16_master",
    name="bf16-weights",
    summary="weights read as bf16 by forward and backward; parameters and gradients stay fp32",
    expected="activations in bf16 from the embedding on, so element-wise traffic halves",
    source="Micikevicius et al. 2018 (Mixed Precision Training), section 3.1: fp32 master copy",
    changes_arithmetic=True,
    applies=_may_lower_weights,
    acts_on=("step",),
    default=True,
)
FUSED_OPTIMIZER = Lever(
    field="optimizer",
    value="fused",
    name="fused-optimizer",
    summary="the optimizer's own fused update: SGD, Adam or AdamW(fused=True)",
    expected="the update's memory traffic falls to one read and one write of each state",
    source="PyTorch documentation, torch.optim.AdamW(fused=), SGD(fused=), Adam(fused=)",
    applies=lambda situation: situation.why_not_fused or None,
    acts_on=("optimizer",),
)
COMPILE_MAX_AUTOTUNE = Lever(
    field="compile_mode",
    value="max-autotune",
    name="compile-max-autotune",
    summary="torch.compile in max-autotune mode: its own GEMM templates beside the library's",
    expected="faster matrix products for odd shapes; a much longer compile",
    source="PyTorch documentation, torch.compile modes; inductor's CppGemmTemplate on CPU",
    acts_on=("matmul", "convolution", "overhead"),
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
CHECKPOINTING = Lever(
    field="checkpointing",
    value="selective",
    name="activation-checkpointing",
    summary="matrix products saved, everything else recomputed during backward",
    expected="a fraction of the activation memory for a few percent of time",
    source="Chen et al. 2016 (sublinear memory cost); Korthikanti et al. 2022 (selective)",
    applies=_memory_is_short,
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
LEVERS: tuple[Lever, ...] = (
    COMPILE,
    BF16_WEIGHTS,
    Lever(
        field="allocator",
        value="mallopt",
        name="allocator-mallopt",
        summary="mallopt: large blocks stay in the heap instead of going back to the kernel",
        expected="fresh 64 MB outputs cost their page faults once, not each step (67 ms against "
        "23)",
        source="mallopt(3), M_MMAP_MAX and M_TRIM_THRESHOLD; measured on two AVX-512 cores",
        applies=_has_glibc,
        acts_on=("system",),
        default=True,
    ),
    Lever(
        field="huge_pages",
        value=True,
        name="huge-pages",
        summary="madvise(MADV_HUGEPAGE) for tensors of 2 MiB and more (THP_MEM_ALLOC_ENABLE=1)",
        expected="one page fault and one TLB entry for 2 MiB instead of 4 KiB",
        source="PyTorch source, c10/core/impl/alloc_cpu.cpp; Linux admin guide, transhuge",
        applies=_may_have_huge_pages,
        acts_on=("system",),
        default=True,
    ),
    Lever(
        field="threads",
        value=lambda situation: situation.cores,
        name="threads",
        summary="one thread on each core available to this process",
        expected="all cores are used where the script used fewer",
        source="PyTorch documentation, CPU threading and TorchScript inference",
        applies=_has_idle_cores,
        acts_on=("step",),
        default=True,
    ),
    FUSED_OPTIMIZER,
    Lever(
        field="precision",
        value="bf16_autocast",
        name="bf16-autocast",
        summary="torch.autocast(bfloat16) around the forward",
        expected="matrix products at the bf16 rate of the device",
        source="PyTorch documentation, Automatic Mixed Precision; Kalamkar et al. 2019 (BF16 "
        "training)",
        changes_arithmetic=True,
        applies=_is_fp32,
        acts_on=("step",),
    ),
    Lever(
        field="compile_mode",
        value="reduce-overhead",
        name="compile-reduce-overhead",
        summary="torch.compile in reduce-overhead mode: CUDA or HIP graphs replay the step's "
        "launches",
        expected="no launch costs on the host; much for small steps, little for large ones",
        source="PyTorch documentation, torch.compile modes; CUDAGraph Trees",
        applies=only_gpu,
        acts_on=("overhead",),
    ),
    COMPILE_MAX_AUTOTUNE,
    Lever(
        field="coordinate_descent",
        value=True,
        name="coordinate-descent",
        summary="inductor tunes the blocks and warps of its Triton kernels by coordinate descent",
        expected="a few percent for fused operations; a longer compile",
        source="PyTorch source, torch/_inductor/config.py, coordinate_descent_tuning",
        applies=only_gpu,
        acts_on=("compiled",),
    ),
    Lever(
        field="allocator",
        value="jemalloc",
        name="allocator-jemalloc",
        summary="jemalloc preloaded",
        expected="blocks are reused instead of going back to the kernel",
        source="PyTorch documentation, Performance Tuning Guide, memory allocators",
        applies=partial(_has_allocator, "jemalloc"),
        acts_on=("system",),
    ),
    Lever(
        field="allocator",
        value="tcmalloc",
        name="allocator-tcmalloc",
        summary="tcmalloc preloaded",
        expected="blocks are reused instead of going back to the kernel",
        source="PyTorch documentation, Performance Tuning Guide, memory allocators",
        applies=partial(_has_allocator, "tcmalloc"),
        acts_on=("system",),
    ),
    Lever(
        field="allocator",
        value="expandable",
        name="expandable-segments",
        summary="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: segments of GPU memory that "
        "grow",
        expected="less memory lost to fragments, fewer stalls where shapes change",
        source="PyTorch documentation, CUDA semantics, memory management",
        applies=only_gpu,
        acts_on=("system",),
    ),
    Lever(
        field="attention",
        value="flash",
        name="attention-flash",
        summary="scaled_dot_product_attention through its flash backend alone (CK or AOTriton on "
        "ROCm)",
        expected="one pass over keys and values where torch's own choice falls on another backend",
        source="PyTorch documentation, torch.nn.attention.sdpa_kernel",
        applies=lambda situation: only_gpu(situation) or _has_attention(situation),
        acts_on=("attention",),
    ),
    Lever(
        field="attention",
        value="efficient",
        name="attention-efficient",
        summary="scaled_dot_product_attention through its memory-efficient backend alone",
        expected="sometimes faster than flash for short sequences and odd head sizes",
        source="PyTorch documentation, torch.nn.attention.sdpa_kernel",
        applies=lambda situation: only_gpu(situation) or _has_attention(situation),
        acts_on=("attention",),
    ),
    Lever(
        field="attention",
        value="cudnn",
        name="attention-cudnn",
        summary="scaled_dot_product_attention through cuDNN",
        expected="faster than flash on Hopper for many shapes in bf16",
        source="PyTorch documentation, torch.nn.attention.SDPBackend.CUDNN_ATTENTION",
        applies=_has_cudnn_attention,
        acts_on=("attention",),
    ),
    Lever(
        field="attention",
        value="math",
        name="attention-math",
        summary="scaled_dot_product_attention through its math backend",
        expected="with short sequences plain matrix products can beat a kernel that makes one pass",
        source="PyTorch documentation, torch.nn.attention.sdpa_kernel",
        applies=_has_attention,
        acts_on=("attention",),
    ),
    Lever(
        field="aotriton_experimental",
        value=True,
        name="aotriton-attention",
        summary="TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1: AOTriton behind torch's attention",
        expected="flash attention in place of the math backend, which writes all scores; less "
        "memory",
        source="PyTorch source, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, "
        "check_flash_attention_hardware_support; github.com/pytorch/pytorch/pull/134498",
        applies=_may_use_aotriton,
        acts_on=("attention",),
    ),
    Lever(
        field="matmul_library",
        value="hipblaslt",
        name="hipblaslt",
        summary="TORCH_BLAS_PREFER_HIPBLASLT=1: matrix products by hipBLASLt instead of rocBLAS",
        expected="other kernels for the same products; the faster library depends on the shapes",
        source="PyTorch documentation, torch.backends.cuda.preferred_blas_library; PyTorch source, "
        "aten/src/ATen/Context.h",
        applies=_may_use_hipblaslt,
        acts_on=("matmul",),
    ),
    Lever(
        field="matmul_library",
        value="tunableop",
        name="tunableop",
        summary="PYTORCH_TUNABLEOP_ENABLED=1: every algorithm of rocBLAS and hipBLASLt timed per "
        "shape",
        expected="a better algorithm for shapes that the libraries' heuristics miss; a long first "
        "step",
        source="PyTorch documentation, torch.cuda.tunable; AMD ROCm blogs, Accelerating models on "
        "ROCm "
        "using PyTorch TunableOp",
        applies=only_rocm,
        acts_on=("matmul",),
    ),
    Lever(
        field="products",
        value="fp8",
        name="fp8-products",
        summary="linear layers but the head multiply in fp8 (gradients e5m2), one scale a tensor",
        expected="large matrix products at up to twice the bf16 rate, less what rounding to fp8 "
        "takes",
        source="Micikevicius et al. 2022, arXiv:2209.05433 (FP8 formats); PyTorch source, "
        "aten/src/ATen/native/cuda/ScaledBlas.cpp",
        changes_arithmetic=True,
        applies=_multiplies_fp8,
        acts_on=("matmul",),
    ),
    Lever(
        field="matmul_precision",
        value="medium",
        name="matmul-precision",
        summary='torch.set_float32_matmul_precision("medium")',
        expected="fp32 matrix products computed through bf16 (TF32 on NVIDIA)",
        source="PyTorch documentation, torch.set_float32_matmul_precision",
        changes_arithmetic=True,
        applies=_has_fp32_products,
        acts_on=("matmul", "convolution"),
    ),
    Lever(
        field="affinity",
        value=True,
        name="affinity",
        summary="OpenMP threads bound to cores (OMP_PROC_BIND=close, OMP_PLACES=cores)",
        expected="no migrations; caches stay warm. On a shared machine it can cost time",
        source="PyTorch documentation, Performance Tuning Guide, CPU specific optimizations",
        applies=only_cpu,
    ),
    Lever(
        field="preallocate",
        value=True,
        name="preallocate",
        summary="gradient buffers are zeroed in place instead of freed",
        expected="no page faults for fresh gradients; backward reads them once more",
        source="PyTorch documentation, Optimizer.zero_grad(set_to_none=)",
        applies=_drops_gradients,
        acts_on=("system",),
    ),
    CHUNKED_LOGITS,
    UPDATE_IN_BACKWARD,
    CHECKPOINTING,
    MICRO_BATCHES,
)
"""The most promising first."""
