"""Compute fp32 matrix products with reduced internal precision."""

from ratchet.optimize.levers.base import Situation, field_lever


def _applies(situation: Situation) -> str | None:
    if situation.device_kind == "cpu" and situation.isa not in ("amx", "avx512_bf16"):
        return "this CPU has no bf16 matrix instructions"
    if situation.written.precision != "fp32":
        return "the step's matrix products are not in fp32"
    return None


LEVER = field_lever(
    "matmul_precision",
    "medium",
    name="matmul-precision",
    summary='torch.set_float32_matmul_precision("medium")',
    expected="fp32 matrix products computed through bf16 (TF32 on NVIDIA)",
    source="PyTorch documentation, torch.set_float32_matmul_precision",
    changes_arithmetic=True,
    applies=_applies,
    default=False,
    acts_on=("matmul", "convolution"),
)
