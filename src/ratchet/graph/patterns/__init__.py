"""The call sites that kernels take: one file per pattern, listed in running order.

Order matters because one pattern's casts can let another round once. Attention runs before rope,
because only attention casts the rotated queries. Linear runs before the norms, because only linear
layers cast the norms' results.
"""

from __future__ import annotations

from collections.abc import Iterable

from ratchet.base.errors import GraphError
from ratchet.graph.patterns.attention import ATTENTION
from ratchet.graph.patterns.gated_activation import GATED_ACTIVATION
from ratchet.graph.patterns.linear import LINEAR
from ratchet.graph.patterns.linear_cross_entropy import LINEAR_CROSS_ENTROPY
from ratchet.graph.patterns.norms import LAYER_NORM, RMS_NORM
from ratchet.graph.patterns.pattern import Pattern
from ratchet.graph.patterns.rope import ROPE

__all__ = ["PATTERNS", "Pattern", "select"]

PATTERNS: tuple[Pattern, ...] = (
    LINEAR_CROSS_ENTROPY,
    ATTENTION,
    ROPE,
    GATED_ACTIVATION,
    LINEAR,
    RMS_NORM,
    LAYER_NORM,
)
NOT_IN_GRAPHS = frozenset({"adamw"})
"""Kernels that replace a part of the step outside its graphs."""


def select(kernels: Iterable[str]) -> tuple[Pattern, ...]:
    """Return these kernels' patterns in running order; raise GraphError for an unknown name."""
    wanted = set(kernels) - NOT_IN_GRAPHS
    known = {pattern.name for pattern in PATTERNS}
    unknown = sorted(wanted - known)
    if unknown:
        raise GraphError(
            f"no pattern installs the kernel {unknown[0]!r}: known kernels are "
            f"{', '.join(sorted(known))}"
        )
    return tuple(pattern for pattern in PATTERNS if pattern.name in wanted)
