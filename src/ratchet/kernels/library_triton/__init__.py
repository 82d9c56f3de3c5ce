"""The shipped Triton kernels for AMD and NVIDIA GPUs, each file one self-contained source.

This package imports neither triton nor torch: a kernel is text that runs in the judge's sandbox. An
entry has the name of its problem and the signature of the problem's reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ratchet.kernels.kernel import Kernel

__all__ = ["ENTRIES", "source_path", "triton_kernels"]

ENTRIES: Final[Mapping[str, tuple[str, ...]]] = {
    "norms": (
        "rms_norm_forward",
        "rms_norm_backward",
        "add_rms_norm_forward",
        "add_rms_norm_backward",
        "layer_norm_forward",
        "layer_norm_backward",
        "add_layer_norm_forward",
        "add_layer_norm_backward",
    ),
    "gated_activation": ("gated_activation_forward", "gated_activation_backward"),
    "adamw": ("adamw_step", "gradient_square_sum"),
    "rope": ("rope_forward", "rope_backward"),
    "linear_cross_entropy": ("linear_cross_entropy",),
    "cross_entropy_rows": ("cross_entropy_rows",),
    "attention": ("attention_forward", "attention_backward"),
}
"""The entries of each source."""


def source_path(name: str) -> Path:
    """Return the path of the source of that name."""
    return Path(__file__).parent / f"{name}.py"


def triton_kernels() -> dict[str, Kernel]:
    """Return every kernel by its entry, which is the name of its problem."""
    return {
        entry: Kernel(
            name=f"{name}:{entry}:triton",
            language="triton",
            source=source_path(name).read_text(encoding="utf-8"),
            entry=entry,
        )
        for name, entries in ENTRIES.items()
        for entry in entries
    }
