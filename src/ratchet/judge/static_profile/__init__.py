"""The static profile: what a kernel compiles to on GPUs that are not here."""

from __future__ import annotations

from ratchet.judge.static_profile.architectures import ARCHITECTURES, TARGETS
from ratchet.judge.static_profile.inspection import all_compiled, inspect_kernel

__all__ = ["ARCHITECTURES", "TARGETS", "all_compiled", "inspect_kernel"]
