"""Paired timing: runs arms, and turns their samples into answers."""

from __future__ import annotations

from ratchet.measure.arm import Arm, Timing
from ratchet.measure.estimate import (
    WIDEST,
    Answer,
    ArmTime,
    Comparison,
    Floor,
    aa_floor,
    answer_of,
    compare,
    interval,
    summarise,
)
from ratchet.measure.rounds import run_rounds
from ratchet.measure.samples import Sample

__all__ = [
    "WIDEST",
    "Answer",
    "Arm",
    "ArmTime",
    "Comparison",
    "Floor",
    "Sample",
    "Timing",
    "aa_floor",
    "answer_of",
    "compare",
    "interval",
    "run_rounds",
    "summarise",
]
