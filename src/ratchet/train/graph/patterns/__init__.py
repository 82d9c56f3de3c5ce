"""The call sites that kernels take: the pattern of kernel NAME is the constant NAME of its file.

A kernel without such a file, `adamw`, replaces a part of the step outside its graphs. Patterns run
in the order of their places, because one pattern's casts can let another round once. Attention runs
before rope, because only attention casts the rotated queries. Linear runs before the norms, because
only linear layers cast the norms' results.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec

from ratchet.base.errors import GraphError
from ratchet.judge.problems.suites.shipped import HOMES
from ratchet.train.graph.patterns.pattern import Pattern

__all__ = ["PATTERNS", "Pattern", "select"]


def _pattern(name: str) -> Pattern | None:
    home = f"{__name__}.{HOMES[name].file}"
    found = getattr(import_module(home), name.upper()) if find_spec(home) else None
    assert found is None or (isinstance(found, Pattern) and found.name == name)
    return found


PATTERNS: tuple[Pattern, ...] = tuple(
    sorted(filter(None, map(_pattern, HOMES)), key=lambda pattern: pattern.place)
)


def select(kernels: Iterable[str]) -> tuple[Pattern, ...]:
    """Return these kernels' patterns in running order; raise GraphError for an unknown name."""
    wanted = set(kernels)
    unknown = sorted(wanted - set(HOMES))
    if unknown:
        raise GraphError(
            f"no pattern installs the kernel {unknown[0]!r}: known kernels are "
            f"{', '.join(sorted(pattern.name for pattern in PATTERNS))}"
        )
    return tuple(pattern for pattern in PATTERNS if pattern.name in wanted)
