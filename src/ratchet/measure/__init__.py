"""Paired timing: runs arms, and turns their samples into answers."""

from __future__ import annotations

from ratchet.measure.arm import Arm, Timing
from ratchet.measure.estimate import (
    Answer,
    ArmTime,
    Comparison,
    Floor,
    aa_floor,
    compare,
    summarise,
)
from ratchet.measure.rounds import run_rounds
from ratchet.measure.samples import Sample

__all__ = [
    "Answer",
    "Arm",
    "ArmTime",
    "Comparison",
    "Floor",
    "Sample",
    "Timing",
    "aa_floor",
    "compare",
    "run_rounds",
    "summarise",
]
