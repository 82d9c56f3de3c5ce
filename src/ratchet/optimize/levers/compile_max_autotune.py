"""Use torch.compile with max-autotune, which times GEMM templates against the library."""

from ratchet.optimize.levers.base import field_lever

LEVER = field_lever(
    "compile_mode",
    "max-autotune",
    name="compile-max-autotune",
    summary="torch.compile in max-autotune mode: its own GEMM templates beside the library's",
    expected="faster matrix products for odd shapes; a much longer compile",
    source="PyTorch documentation, torch.compile modes; inductor's CppGemmTemplate on CPU",
    default=False,
    acts_on=("matmul", "convolution", "overhead"),
)
