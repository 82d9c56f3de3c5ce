"""Findings: what could be won, with the evidence and what tries it. One finding a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ratchet.trace.advice import (
    communication,
    compile_breaks,
    data_loading,
    fusible,
    host_bound,
    precision,
    recompute,
    small_kernels,
    synchronisation,
)
from ratchet.trace.advice.finding import Finding

if TYPE_CHECKING:
    from ratchet.trace.report import Report

__all__ = ["FINDINGS", "Finding", "advise"]

FINDINGS: tuple[Callable[[Report], Finding | None], ...] = (
    communication.find,
    compile_breaks.find,
    data_loading.find,
    fusible.find,
    host_bound.find,
    precision.find,
    recompute.find,
    small_kernels.find,
    synchronisation.find,
)


def advise(report: Report) -> tuple[Finding, ...]:
    """The findings that apply, the one that would give most time first."""
    found = [finding for find in FINDINGS if (finding := find(report)) is not None]
    return tuple(sorted(found, key=lambda finding: -finding.gain))
