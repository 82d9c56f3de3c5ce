"""Bind each thread to its own core."""

from ratchet.optimize.levers.base import field_lever, only_cpu

LEVER = field_lever(
    "affinity",
    True,
    name="affinity",
    summary="OpenMP threads bound to cores (OMP_PROC_BIND=close, OMP_PLACES=cores)",
    expected="no migrations; caches stay warm. On a shared machine it can cost time",
    source="PyTorch documentation, Performance Tuning Guide, CPU specific optimizations",
    applies=only_cpu,
    default=False,
)
