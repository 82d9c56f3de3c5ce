"""Rank Triton kernels where there is no GPU: by the machine code that AMD's compiler makes.

The order is that of the bound by the emulator's counts (`judge.emulator.estimates.bound`),
then of spilled registers, then of occupancy. Nothing is measured: it is an order to look at kernels
in, and no speed.
"""

from __future__ import annotations

from typing import Final

from ratchet.judge.verdict import Screening, Verdict

TARGET: Final = "gfx942"


def target_for(language: str | None, target: str | None, *, on_gpu: bool) -> str | None:
    """Return the GPU whose machine code is emulated for a run's kernels; None to run them."""
    never_here = language == "hip" or (language == "triton" and not on_gpu)
    return target or (TARGET if never_here else None)


def screening_of(verdict: Verdict, target: str | None) -> Screening:
    """Return the estimate that a verdict gives before the one that counts."""
    speedup = verdict.speedup.vs_reference
    rank = () if speedup or target is None else static_rank(verdict, target)
    right = verdict.status in ("proven", "correct")
    words = static_words(rank, target) if target and len(rank) == 3 else verdict.reason
    return Screening(
        kernel_hash=verdict.kernel_hash,
        status="screened" if right else verdict.status,
        reason=words if right else verdict.reason,
        ratio=None if speedup is None else speedup.ratio,
        low=None if speedup is None else speedup.low,
        high=None if speedup is None else speedup.high,
        static_rank=rank if right else (),
        evidence=tuple(
            f"{one.check}: {one.detail}"
            for one in verdict.evidence
            if one.passed is False or (target and one.check.startswith("hottest lines"))
        ),
    )


def static_rank(verdict: Verdict, target: str) -> tuple[float, float, float]:
    """Return bound in seconds, spills and lost occupancy: the smaller, the better.

    The bound is the sum over the visible cases, on the target's fastest device. A kernel without
    one comes last.
    """
    found = ((verdict.static or {}).get("targets") or {}).get(target) or {}
    kernels = found.get("kernels") or ()
    cases = [[one.time_s for one in case.bounds] for case in verdict.emulated]
    if not cases or not all(cases):
        return (float("inf"),) * 3
    lost = [
        1 - float(one["occupancy_waves"]) / float(one["max_waves"])
        for one in kernels
        if one.get("occupancy_waves") and one.get("max_waves")
    ]
    spills = sum(float(one.get("spills") or 0) for one in kernels)
    return sum(min(times) for times in cases), spills, max(lost, default=1.0)


def static_words(rank: tuple[float, float, float], target: str) -> str:
    """Return a rank in words, for the reason of an answer."""
    bound_s, spills, lost = rank
    if bound_s == float("inf"):
        return f"emulated on {target}, and nothing is known of its time"
    return (
        f"emulated: on {target} at least {1e6 * bound_s:.3g} us (estimated), "
        f"{spills:.0f} registers spilled, {1 - lost:.0%} occupancy"
    )
