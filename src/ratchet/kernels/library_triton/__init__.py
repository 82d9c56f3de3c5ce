"""The shipped kernels in Triton, for AMD's and NVIDIA's GPUs: one self-contained source a file.

Nothing here imports triton or torch: a kernel is text, run where the judge runs candidates. An
entry has the name of the problem that it answers and is called as that problem's reference is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ratchet.kernels.kernel import Kernel

__all__ = ["ENTRIES", "source_path", "triton_kernels"]

ENTRIES: Final[Mapping[str, tuple[str, ...]]] = {
    "rms_norm": (
        "rms_norm_forward",
        "rms_norm_backward",
        "add_rms_norm_forward",
        "add_rms_norm_backward",
    ),
    "layer_norm": (
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
    "attention_forward": ("attention_forward",),
    "attention_backward": ("attention_backward",),
}
"""The entries of each source."""


def source_path(name: str) -> Path:
    """Where the source of that name lies."""
    return Path(__file__).parent / f"{name}.py"


def triton_kernels() -> dict[str, Kernel]:
    """Every kernel by its entry, which is the name of the problem that it answers."""
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
