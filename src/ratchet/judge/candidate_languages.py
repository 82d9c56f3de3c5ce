"""Which worker runs a kernel of a language."""

from __future__ import annotations

from typing import Final

from ratchet.kernels.kernel import Language

LANGUAGES: Final[tuple[Language, ...]] = ("cpp", "torch", "triton")
"""What can be judged at all."""
WITH_TORCH: Final[tuple[Language, ...]] = ("torch", "triton")
"""Python's: their worker imports torch, and is the only one that can use a GPU."""
