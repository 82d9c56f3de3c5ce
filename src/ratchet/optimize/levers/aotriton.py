"""AOTriton's attention kernels on AMD's GPUs where torch holds them back as experimental."""

from ratchet.optimize.levers.base import Situation, field_lever, only_rocm

SUPPORTED = ("gfx90a", "gfx942", "gfx950")
"""Instinct GPUs run AOTriton's kernels anyway. On others torch asks AOTriton whether it calls the
architecture experimental, and then waits for the variable (sdp_utils.cpp)."""


def _applies(situation: Situation) -> str | None:
    reason = only_rocm(situation)
    if reason is not None:
        return reason
    if not situation.has_attention:
        return "no scaled_dot_product_attention in the step"
    if situation.isa in SUPPORTED:
        return f"torch uses AOTriton's attention on {situation.isa} by itself"
    return None


LEVER = field_lever(
    "aotriton_experimental",
    True,
    name="aotriton-attention",
    summary="TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1: AOTriton behind torch's attention",
    expected="flash attention where the math back end writes whole scores; less memory",
    source="PyTorch source, aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, "
    "check_flash_attention_hardware_support; github.com/pytorch/pytorch/pull/134498",
    applies=_applies,
    default=False,
    acts_on=("attention",),
)
