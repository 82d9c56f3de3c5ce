"""Enable AOTriton's attention kernels on AMD GPUs where torch holds them back as experimental."""

from ratchet.optimize.levers.base import Situation, field_lever, only_rocm

SUPPORTED = ("gfx90a", "gfx942", "gfx950")
"""Instinct GPUs, which run AOTriton's kernels by default.

On other GPUs torch asks AOTriton if the architecture is experimental, and then requires the
variable (sdp_utils.cpp).
"""


def _applies(situation: Situation) -> str | None:
    reason = only_rocm(situation)
    if reason is not None:
        return reason
    if not situation.has_attention:
        return "no scaled_dot_product_attention in the step"
    if situation.isa in SUPPORTED:
        return f"torch already uses AOTriton's attention on {situation.isa}"
    return None


LEVER = field_lever(
    "aotriton_experimental",
    True,
    name="aotriton-attention",
    summary="TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1: AOTriton behind torch's attention",
    expected="flash attention in place of the math backend, which writes all scores; less memory",
    source="PyTorch source, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, "
    "check_flash_attention_hardware_support; github.com/pytorch/pytorch/pull/134498",
    applies=_applies,
    default=False,
    acts_on=("attention",),
)
