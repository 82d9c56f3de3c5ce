"""A correct kernel and the problem it answers."""

from __future__ import annotations

from dataclasses import dataclass

from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.problems.problem import Problem


@dataclass(frozen=True, kw_only=True, slots=True)
class Honest:
    """A correct kernel and the problem it answers."""

    name: str
    kernel: Kernel
    problem: Problem
