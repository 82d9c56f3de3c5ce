"""The call sites that kernels take: one file per pattern, in the order in which they run.

The order matters where one pattern's casts let another round once: attention before rope (the
rotated queries are cast for attention alone), linear before the norms (whose results are cast for
linear layers alone).
"""

from __future__ import annotations

from collections.abc import Iterable

from ratchet.errors import GraphError
from ratchet.graph.patterns.attention import ATTENTION
from ratchet.graph.patterns.gated_activation import GATED_ACTIVATION
from ratchet.graph.patterns.layer_norm import LAYER_NORM
from ratchet.graph.patterns.linear import LINEAR
from ratchet.graph.patterns.linear_cross_entropy import LINEAR_CROSS_ENTROPY
from ratchet.graph.patterns.pattern import Pattern
from ratchet.graph.patterns.rms_norm import RMS_NORM
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
"""Kernels that replace a part of the step outside of its graphs."""


def select(kernels: Iterable[str]) -> tuple[Pattern, ...]:
    """The patterns of these kernels, in running order; GraphError on a name that is unknown."""
    wanted = set(kernels) - NOT_IN_GRAPHS
    known = {pattern.name for pattern in PATTERNS}
    unknown = sorted(wanted - known)
    if unknown:
        raise GraphError(
            f"no pattern installs the kernel {unknown[0]!r}: the known ones are "
            f"{', '.join(sorted(known))}"
        )
    return tuple(pattern for pattern in PATTERNS if pattern.name in wanted)
