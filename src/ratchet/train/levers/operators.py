"""Levers of the step's code: torch.compile, precision, the optimizer and torch's libraries."""

from ratchet.train.levers import system
from ratchet.train.levers.base import Lever, Situation, only_gpu, only_rocm, why_no_bf16

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
COMPILE_MAX_AUTOTUNE = Lever(
    field="compile_mode",
    value="max-autotune",
    name="compile-max-autotune",
    summary="torch.compile in max-autotune mode: its own GEMM templates beside the library's",
    expected="faster matrix products for odd shapes; a much longer compile",
    source="PyTorch documentation, torch.compile modes; inductor's CppGemmTemplate on CPU",
    acts_on=("matmul", "convolution", "overhead"),
)
CUDA_GRAPHS = Lever(
    field="compile_mode",
    value="reduce-overhead",
    name="compile-reduce-overhead",
    summary="torch.compile in reduce-overhead mode: CUDA or HIP graphs replay the step's launches",
    expected="no launch costs on the host; much for small steps, little for large ones",
    source="PyTorch documentation, torch.compile modes; CUDAGraph Trees",
    applies=only_gpu,
    acts_on=("overhead",),
)
COORDINATE_DESCENT = Lever(
    field="coordinate_descent",
    value=True,
    name="coordinate-descent",
    summary="inductor tunes the blocks and warps of its Triton kernels by coordinate descent",
    expected="a few percent for fused operations; a longer compile",
    source="PyTorch source, torch/_inductor/config.py, coordinate_descent_tuning",
    applies=only_gpu,
    acts_on=("compiled",),
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
BF16_AUTOCAST = Lever(
    field="precision",
    value="bf16_autocast",
    name="bf16-autocast",
    summary="torch.autocast(bfloat16) around the forward",
    expected="matrix products at the bf16 rate of the device",
    source="PyTorch documentation, Automatic Mixed Precision; Kalamkar et al. 2019 (BF16 training)",
    changes_arithmetic=True,
    applies=_is_fp32,
    acts_on=("step",),
)
MATMUL_PRECISION = Lever(
    field="matmul_precision",
    value="medium",
    name="matmul-precision",
    summary='torch.set_float32_matmul_precision("medium")',
    expected="fp32 matrix products computed through bf16 (TF32 on NVIDIA)",
    source="PyTorch documentation, torch.set_float32_matmul_precision",
    changes_arithmetic=True,
    applies=_has_fp32_products,
    acts_on=("matmul", "convolution"),
)
FP8_PRODUCTS = Lever(
    field="products",
    value="fp8",
    name="fp8-products",
    summary="linear layers but the head multiply in fp8 (gradients e5m2), one scale a tensor",
    expected="large matrix products at up to twice the bf16 rate, less what rounding to fp8 takes",
    source="Micikevicius et al. 2022, arXiv:2209.05433 (FP8 formats); PyTorch source, "
    "aten/src/ATen/native/cuda/ScaledBlas.cpp",
    changes_arithmetic=True,
    applies=_multiplies_fp8,
    acts_on=("matmul",),
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
FOREACH_OPTIMIZER = Lever(
    field="optimizer",
    value="foreach",
    name="foreach-optimizer",
    summary="the optimizer's own update over lists of tensors: SGD, Adam or AdamW(foreach=True)",
    expected="fewer kernel launches on a GPU; little effect on a CPU",
    source="PyTorch documentation, torch.optim.AdamW(foreach=)",
    applies=lambda situation: situation.why_not_fused or None,
    acts_on=("optimizer",),
)
ATTENTION_MATH = Lever(
    field="attention",
    value="math",
    name="attention-math",
    summary="scaled_dot_product_attention through its math backend",
    expected="with short sequences plain matrix products can beat a kernel that makes one pass",
    source="PyTorch documentation, torch.nn.attention.sdpa_kernel",
    applies=_has_attention,
    acts_on=("attention",),
)
ATTENTION_FLASH = Lever(
    field="attention",
    value="flash",
    name="attention-flash",
    summary="scaled_dot_product_attention through its flash backend alone (CK or AOTriton on ROCm)",
    expected="one pass over keys and values where torch's own choice falls on another backend",
    source="PyTorch documentation, torch.nn.attention.sdpa_kernel",
    applies=lambda situation: only_gpu(situation) or _has_attention(situation),
    acts_on=("attention",),
)
ATTENTION_EFFICIENT = Lever(
    field="attention",
    value="efficient",
    name="attention-efficient",
    summary="scaled_dot_product_attention through its memory-efficient backend alone",
    expected="sometimes faster than flash for short sequences and odd head sizes",
    source="PyTorch documentation, torch.nn.attention.sdpa_kernel",
    applies=lambda situation: only_gpu(situation) or _has_attention(situation),
    acts_on=("attention",),
)
ATTENTION_CUDNN = Lever(
    field="attention",
    value="cudnn",
    name="attention-cudnn",
    summary="scaled_dot_product_attention through cuDNN",
    expected="faster than flash on Hopper for many shapes in bf16",
    source="PyTorch documentation, torch.nn.attention.SDPBackend.CUDNN_ATTENTION",
    applies=_has_cudnn_attention,
    acts_on=("attention",),
)
AOTRITON = Lever(
    field="aotriton_experimental",
    value=True,
    name="aotriton-attention",
    summary="TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1: AOTriton behind torch's attention",
    expected="flash attention in place of the math backend, which writes all scores; less memory",
    source="PyTorch source, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, "
    "check_flash_attention_hardware_support; github.com/pytorch/pytorch/pull/134498",
    applies=_may_use_aotriton,
    acts_on=("attention",),
)
HIPBLASLT = Lever(
    field="matmul_library",
    value="hipblaslt",
    name="hipblaslt",
    summary="TORCH_BLAS_PREFER_HIPBLASLT=1: matrix products by hipBLASLt instead of rocBLAS",
    expected="other kernels for the same products; the faster library depends on the shapes",
    source="PyTorch documentation, torch.backends.cuda.preferred_blas_library; PyTorch source, "
    "aten/src/ATen/Context.h",
    applies=_may_use_hipblaslt,
    acts_on=("matmul",),
)
TUNABLEOP = Lever(
    field="matmul_library",
    value="tunableop",
    name="tunableop",
    summary="PYTORCH_TUNABLEOP_ENABLED=1: every algorithm of rocBLAS and hipBLASLt timed per shape",
    expected="a better algorithm for shapes that the libraries' heuristics miss; a long first step",
    source="PyTorch documentation, torch.cuda.tunable; AMD ROCm blogs, Accelerating models on ROCm "
    "using PyTorch TunableOp",
    applies=only_rocm,
    acts_on=("matmul",),
)
LEVERS: tuple[Lever, ...] = (
    COMPILE,
    BF16_WEIGHTS,
    system.MALLOPT,
    system.HUGE_PAGES,
    system.THREADS,
    FUSED_OPTIMIZER,
    BF16_AUTOCAST,
    CUDA_GRAPHS,
    COMPILE_MAX_AUTOTUNE,
    COORDINATE_DESCENT,
    system.JEMALLOC,
    system.TCMALLOC,
    system.EXPANDABLE_SEGMENTS,
    ATTENTION_FLASH,
    ATTENTION_EFFICIENT,
    ATTENTION_CUDNN,
    ATTENTION_MATH,
    AOTRITON,
    HIPBLASLT,
    TUNABLEOP,
    FP8_PRODUCTS,
    MATMUL_PRECISION,
    system.AFFINITY,
    system.PREALLOCATE,
    FOREACH_OPTIMIZER,
    system.CHUNKED_LOGITS,
    system.UPDATE_IN_BACKWARD,
    system.CHECKPOINTING,
    system.MICRO_BATCHES,
)
"""The levers of this file and of `system` in trial order, most promising first."""
