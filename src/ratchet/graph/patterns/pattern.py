"""What a pattern is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch.fx import Node

from ratchet.graph.scope import Scope


@dataclass(frozen=True, kw_only=True, slots=True)
class Pattern:
    """Call sites of one form that a kernel of the library can take."""

    name: str
    """Also the kernel's name in `ratchet.kernels.library.LIBRARY`."""
    summary: str
    find: Callable[[Node], bool]
    """Whether the site's anchor is this node; cheap, and free of side effects."""
    install: Callable[[Node, Scope], None]
    """Put the kernel in place of the site. Raises Declined, before it replaced anything, where
    the kernel would not give the same result."""
