"""The call sites that kernels take, in running order.

A kernel without a pattern, `adamw`, replaces a part of the step outside its graphs. Patterns run in
this order because one pattern's casts can let another round once. Attention runs before rope,
because only attention casts the rotated queries. Linear runs before the norms, because only linear
layers cast the norms' results.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable

from ratchet.base.errors import GraphError
from ratchet.judge.kernels.library import LIBRARY
from ratchet.train.graph.scope import Pattern

__all__ = ["PATTERNS", "Pattern", "select"]


def _patterns() -> list[Pattern]:
    modules = [
        importlib.import_module(f"{__name__}.{one.name}") for one in pkgutil.iter_modules(__path__)
    ]
    return [one for module in modules for one in vars(module).values() if isinstance(one, Pattern)]


PATTERNS: tuple[Pattern, ...] = tuple(sorted(_patterns(), key=lambda pattern: pattern.place))
"""Each `Pattern` that a module here defines, in running order."""


def select(kernels: Iterable[str]) -> tuple[Pattern, ...]:
    """Return these kernels' patterns in running order; raise GraphError for an unknown name."""
    wanted = set(kernels)
    unknown = sorted(wanted - set(LIBRARY))
    if unknown:
        raise GraphError(
            f"no pattern installs the kernel {unknown[0]!r}: known kernels are "
            f"{', '.join(sorted(pattern.name for pattern in PATTERNS))}"
        )
    return tuple(pattern for pattern in PATTERNS if pattern.name in wanted)
