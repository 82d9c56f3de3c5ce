"""Lower bounds on the calls of a step's kernels on a GPU that is not here, by its paper figures.

A call reads its inputs once, writes its outputs once and does the operations of its products; the
bound is the larger of those bytes over the memory's bandwidth and those operations over the peak
of their dtype. It leaves out latency, launches, caches, and arithmetic that is no product.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ratchet.base.devices.catalogue import CatalogueDevice
from ratchet.base.devices.ceilings import Bound, Roofline
from ratchet.base.errors import RatchetError
from ratchet.judge.kernels.library import LIBRARY
from ratchet.judge.problems.case import TensorSpec
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.references import LeastWork, least_work
from ratchet.train.graph.capture import shapes_of_each
from ratchet.train.graph.scope import CapturedSite

PEAKS: Final[Mapping[str, tuple[str, ...]]] = {
    "bf16": ("matrix_bf16",),
    "fp16": ("matrix_fp16",),
    "fp32": ("matrix_fp32", "vector_fp32"),
}
"""The catalogue's rates that a dtype's products may reach."""
OTHER_BATCH: Final = "hidden batch 3"
"""A region's case at another batch than the captured one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetSite:
    """Calls of one entry at the same sizes, in one step."""

    shapes: Mapping[str, tuple[int, ...]]
    """By the op's argument; a region's inputs are numbered."""
    calls: int
    flops: float | None = None
    """Operations of one call's products; half of a causal attention's are left out."""
    size_bytes: int | None = None
    """Inputs and outputs of one call."""
    bound_s: float | None = None
    """Lower bound of one call; None if the catalogue or the reference does not tell."""
    bound_by: Bound | None = None


def whole_bound_s(sites: Sequence[TargetSite]) -> float | None:
    """Return the lower bound of all calls in a step; None if one has none."""
    found = [one.calls * one.bound_s for one in sites if one.bound_s is not None]
    return sum(found) if found and len(found) == len(sites) else None


def sites_of_entries(
    sites: Sequence[CapturedSite], device: CatalogueDevice | None
) -> dict[str, list[TargetSite]]:
    """Return the calls of each entry of the library's kernels that a step makes at these sites."""
    found: dict[str, list[TargetSite]] = {}
    for site, shapes in shapes_of_each(sites):
        if site.pattern == "adamw":  # a verdict is at a few of the shapes, a step updates all
            shapes = replace(shapes, parameters=tuple(site.shapes.values()))
        for problem in LIBRARY[site.pattern].problems(shapes):
            if _is_called(site, problem.name):
                case = next(one for one in problem.cases if one.timed)
                work = _work_of(problem, case.inputs, case.scalars)
                if work is not None:
                    work = replace(work, flops=work.flops * _seen(site))
                one = TargetSite(shapes=site.shapes, calls=site.count)
                found.setdefault(problem.name, []).append(bounded(one, work, device))
    return found


def _is_called(site: CapturedSite, entry: str) -> bool:
    """Return whether a site calls an entry: a norm with a residual has entries of its own."""
    ops = [one for one in (site.pattern, f"add_{site.pattern}") if entry.startswith(f"{one}_")]
    return not ops or site.kernel in ops


def _seen(site: CapturedSite) -> float:
    """Return the share of a reference's products that a kernel must compute: a mask hides some."""
    if not site.scalars.get("causal"):
        return 1.0
    queries, keys = site.shapes["q"][-2], site.shapes["k"][-2]
    return (keys + 1) / (2 * keys) if queries == keys else 1.0


def bounded(site: TargetSite, work: LeastWork | None, device: CatalogueDevice | None) -> TargetSite:
    """Return a site with its work and its bound on a device."""
    if work is None:
        return site
    site = replace(site, flops=work.flops, size_bytes=work.size_bytes)
    if device is None or (roof := _roof(device, work.dtype)) is None:
        return site
    return replace(
        site,
        bound_s=roof.time_bound_s(work.flops, work.size_bytes),
        bound_by=roof.bound(work.flops, work.size_bytes),
    )


def _roof(device: CatalogueDevice, dtype: str) -> Roofline | None:
    """Return what the catalogue says of a device; None if it lacks a figure."""
    peaks = [found for one in PEAKS[dtype] if (found := device.peak_flops_per_s(one))]
    bandwidth = device.memory_bytes_per_s()
    if not peaks or not bandwidth:
        return None
    return Roofline(flops_per_s=max(peaks), bytes_per_s=bandwidth)


def region_site(
    problem: Problem, calls: int, batch: tuple[int, int] | None, device: CatalogueDevice | None
) -> TargetSite | None:
    """Return a region's calls at the step's batch; None if its sizes there are not known.

    `batch` is the one it was captured at and the step's; None if the two are the same.
    """
    case = problem.cases[0]
    specs = case.inputs if batch is None else at_batch(problem, *batch)
    if specs is None:
        return None
    shapes = {f"input {place}": one.shape for place, one in enumerate(specs)}
    work = _work_of(problem, specs, case.scalars)
    return bounded(TargetSite(shapes=shapes, calls=calls), work, device)


def at_batch(problem: Problem, captured: int, wanted: int) -> tuple[TensorSpec, ...] | None:
    """Return the inputs at another batch, along the line through the captured one and a hidden one.

    None if the region has no case at another batch.
    """
    other = next((one for one in problem.cases if one.name == OTHER_BATCH), None)
    if other is None:
        return None
    step = int(OTHER_BATCH.rpartition(" ")[2]) - captured

    def sizes(one: TensorSpec, beside: TensorSpec) -> Iterator[int]:
        for size, more in zip(one.shape, beside.shape, strict=True):
            yield size + (more - size) * (wanted - captured) // step

    pairs = zip(problem.cases[0].inputs, other.inputs, strict=True)
    return tuple(replace(one, shape=tuple(sizes(one, beside))) for one, beside in pairs)


def _work_of(
    problem: Problem, inputs: Sequence[TensorSpec], scalars: tuple[float, ...]
) -> LeastWork | None:
    """Return the work of a call; None if the reference needs values to tell."""
    try:
        return least_work(problem, inputs, scalars)
    except (RuntimeError, TypeError, NotImplementedError, RatchetError):
        return None
