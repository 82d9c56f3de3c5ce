"""Paired timing: runs arms, and turns their samples into answers."""

from __future__ import annotations

from ratchet.measure.arm import Arm, Timing
from ratchet.measure.estimate import (
    Answer,
    Comparison,
    Floor,
    Summary,
    aa_floor,
    compare,
    summarise,
)
from ratchet.measure.looks import Looks
from ratchet.measure.rounds import run_rounds
from ratchet.measure.samples import Sample

__all__ = [
    "Answer",
    "Arm",
    "Comparison",
    "Floor",
    "Looks",
    "Sample",
    "Summary",
    "Timing",
    "aa_floor",
    "compare",
    "run_rounds",
    "summarise",
]
