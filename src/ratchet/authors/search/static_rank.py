"""Rank Triton kernels where there is no GPU: by what they compile to for AMD. Nothing is measured.

The order is that of the bound on the time on an MI300 (`judge.static_profile.bound`), then of
spilled registers, then of occupancy. It is an order to look at kernels in, and no speed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

TARGET: Final = "gfx942"


def static_rank(static: Mapping[str, Any] | None) -> tuple[float, float, float]:
    """Return bound in seconds, spills and lost occupancy: the smaller, the better.

    `static` is a verdict's static profile. A kernel without one comes last.
    """
    found = ((static or {}).get("targets") or {}).get(TARGET)
    if not found or found.get("error") or not found.get("kernels"):
        return (float("inf"),) * 3
    times = [float(one["time_s"]) for one in found.get("bounds", ())]
    spills = sum(float(one.get("spills") or 0) for one in found["kernels"])
    lost = [
        1 - float(one["occupancy_waves"]) / float(one["max_waves"])
        for one in found["kernels"]
        if one.get("occupancy_waves") and one.get("max_waves")
    ]
    return min(times, default=float("inf")), spills, max(lost, default=1.0)


def static_words(rank: tuple[float, float, float]) -> str:
    """Return a rank in words, for the reason of an answer."""
    bound_s, spills, lost = rank
    if bound_s == float("inf"):
        return "unmeasured: there is no GPU here, and no static profile for AMD"
    return (
        f"unmeasured: there is no GPU here; on {TARGET} at least {1e6 * bound_s:.3g} us by its "
        f"static profile, {spills:.0f} registers spilled, {1 - lost:.0%} occupancy"
    )
