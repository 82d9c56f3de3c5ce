"""Tune each matrix-product shape over rocBLAS and hipBLASLt with TunableOp (ROCm)."""

from ratchet.optimize.levers.base import field_lever, only_rocm

LEVER = field_lever(
    "matmul_library",
    "tunableop",
    name="tunableop",
    summary="PYTORCH_TUNABLEOP_ENABLED=1: every algorithm of rocBLAS and hipBLASLt timed per shape",
    expected="a better algorithm for shapes that the libraries' heuristics miss; a long first step",
    source="PyTorch documentation, torch.cuda.tunable; AMD ROCm blogs, Accelerating models on ROCm "
    "using PyTorch TunableOp",
    applies=only_rocm,
    default=False,
    acts_on=("matmul",),
)
