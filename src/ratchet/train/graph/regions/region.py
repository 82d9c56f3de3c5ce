"""A region of a workload's compiled graphs, as a problem with its worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ratchet.judge.problems.problem import Problem

Direction = Literal["forward", "backward"]
RegionKind = Literal["fused", "product"]
REGION = "region:"
"""Start of the name that stands for a region among the kernels of a step's config."""
TimedBy = Literal["inductor", "estimate"]
OVERLAPPED = 0.25
"""Likely share won of a region that shares operations with a more promising one, which would take
them out of the step's graphs."""
BEYOND_REACH = 0.25
"""Part of a product's gap to its roofline that is likely won beyond the step's best product."""


def region_name(key: str) -> str:
    """Return the name of a region's kernel in a step's config."""
    return f"{REGION}{key}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Region:
    """One distinct region; equal regions of a step are counted."""

    key: str
    """Hex SHA-256 of the graph, shapes, strides, dtypes and kind of device."""
    kind: RegionKind
    """`fused`: pointwise, reduction and view operations. `product`: a matrix product, convolution
    or attention with the pointwise operations around it, which may also belong to a fused region.
    """
    problem: Problem
    count: int
    """Sites in one step."""
    direction: Direction
    """The first site's direction."""
    ops: tuple[str, ...]
    """Names of the operations that compute, in order, without views."""
    bytes: int
    """Compulsory traffic of one site: every input read once, every output written once."""
    flops: float
    """Operations of one site's products, convolutions and attention; the rest counts as free."""
    floor_s: float
    """Roofline time of one site at the measured ceilings."""
    time_s: float
    """Time of one site now."""
    timed_by: TimedBy
    """`inductor`: measured as torch.compile's default compiles the region alone. `estimate`: its
    time op by op, scaled as in the regions that were measured."""
    where: str
    """Path of the first site's module; empty if the graph does not tell."""
    reach_s: float = 0.0
    """Time of one site at the share of its roofline that the step's best product reaches."""
    overlapped: bool = False
    """True if a more promising region has some of its operations."""

    @property
    def gain_s(self) -> float:
        """Return the seconds of a step that can still be won: count times (time - floor)."""
        return self.count * max(0.0, self.time_s - self.floor_s)

    @property
    def likely_s(self) -> float:
        """Return the part of `gain_s` that is likely won.

        A product seldom gets closer to its roofline than the best product of the same step.
        """
        reach_s = min(self.time_s, max(self.reach_s, self.floor_s))
        beyond_s = BEYOND_REACH * (reach_s - self.floor_s)
        part = OVERLAPPED if self.overlapped else 1.0
        return part * self.count * max(0.0, self.time_s - reach_s + beyond_s)

    def as_json(self) -> dict[str, object]:
        return {
            "key": self.key,
            "kind": self.kind,
            "name": self.problem.name,
            "count": self.count,
            "direction": self.direction,
            "ops": list(self.ops),
            "bytes": self.bytes,
            "flops": self.flops,
            "floor_s": self.floor_s,
            "time_s": self.time_s,
            "timed_by": self.timed_by,
            "gain_s": self.gain_s,
            "likely_s": self.likely_s,
            "where": self.where,
            "problem": self.problem.as_json(),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class RegionReport:
    """The regions of a workload, and what was left out."""

    regions: tuple[Region, ...]
    """The most time that can still be won first."""
    notes: tuple[str, ...] = ()
    """One line for each part of the graphs that has no region, with the reason."""
