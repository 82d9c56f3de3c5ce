"""hipBLASLt in place of rocBLAS, on AMD's GPUs where torch does not choose it by itself."""

from ratchet.optimize.levers.base import Situation, field_lever, only_rocm

PREFERRED = ("gfx90a", "gfx942", "gfx950", "gfx1200", "gfx1201")
"""Where torch prefers hipBLASLt: `_hipblaslt_preferred_default` in aten/src/ATen/Context.h
(github.com/ROCm/pytorch/pull/2053); gfx12 from ROCm 6.3 on, gfx950 from ROCm 6.5 on."""


def _applies(situation: Situation) -> str | None:
    reason = only_rocm(situation)
    if reason is None and situation.isa in PREFERRED:
        return f"torch prefers hipBLASLt on {situation.isa} by itself"
    return reason


LEVER = field_lever(
    "matmul_library",
    "hipblaslt",
    name="hipblaslt",
    summary="TORCH_BLAS_PREFER_HIPBLASLT=1: matrix products by hipBLASLt instead of rocBLAS",
    expected="other kernels for the same products; which library is the faster depends on shapes",
    source="PyTorch documentation, torch.backends.cuda.preferred_blas_library; PyTorch source, "
    "aten/src/ATen/Context.h",
    applies=_applies,
    default=False,
    acts_on=("matmul",),
)
