"""Use hipBLASLt instead of rocBLAS on AMD GPUs where torch does not do so by default."""

from ratchet.optimize.levers.base import Situation, field_lever, only_rocm

PREFERRED = ("gfx90a", "gfx942", "gfx950", "gfx1200", "gfx1201")
"""Architectures on which torch prefers hipBLASLt (gfx12 since ROCm 6.3, gfx950 since ROCm 6.5).

See `_hipblaslt_preferred_default` in aten/src/ATen/Context.h (github.com/ROCm/pytorch/pull/2053).
"""


def _applies(situation: Situation) -> str | None:
    reason = only_rocm(situation)
    if reason is None and situation.isa in PREFERRED:
        return f"torch already prefers hipBLASLt on {situation.isa}"
    return reason


LEVER = field_lever(
    "matmul_library",
    "hipblaslt",
    name="hipblaslt",
    summary="TORCH_BLAS_PREFER_HIPBLASLT=1: matrix products by hipBLASLt instead of rocBLAS",
    expected="other kernels for the same products; the faster library depends on the shapes",
    source="PyTorch documentation, torch.backends.cuda.preferred_blas_library; PyTorch source, "
    "aten/src/ATen/Context.h",
    applies=_applies,
    default=False,
    acts_on=("matmul",),
)
