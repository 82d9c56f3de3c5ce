"""The static profile: what a kernel compiles to on GPUs that are not here."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ratchet.judge.static_profile.architectures import (
        ARCHITECTURES,
        TARGETS,
        find_architectures,
    )
    from ratchet.judge.static_profile.inspection import all_compiled, find_action, inspect_kernel

__all__ = [
    "ARCHITECTURES",
    "TARGETS",
    "all_compiled",
    "find_action",
    "find_architectures",
    "inspect_kernel",
]

# Imported when first asked for: sandboxes hold parts of this package, and never `inspection`.
_HOMES = {
    "ARCHITECTURES": "architectures",
    "TARGETS": "architectures",
    "all_compiled": "inspection",
    "find_action": "inspection",
    "find_architectures": "architectures",
    "inspect_kernel": "inspection",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
