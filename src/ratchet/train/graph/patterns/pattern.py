"""The pattern interface."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from ratchet.train.graph.scope import Scope
from ratchet.train.graph.sites import CapturedSite


@dataclass(frozen=True, kw_only=True, slots=True)
class Pattern:
    """Call sites of one form that a library kernel can take."""

    name: str
    """The pattern's name, and the kernel's name in `ratchet.judge.kernels.library.LIBRARY`."""
    place: int
    """Its place in running order, lowest first, with gaps for new ones."""
    find: Callable[[Node], bool]
    """Return True if this node is the site's anchor; must be cheap and free of side effects."""
    install: Callable[[Node, Scope], None]
    """Replace the site with the kernel. If the kernel would not give the same result, raise
    Declined before anything is replaced."""
    sizes: Callable[[CapturedSite], dict[str, Any]]
    """Return the fields of WorkloadShapes that a site knows."""
