"""A step's kernels on a GPU that is not here, and what of its time can be predicted.

Kernels are sampled at the step's own sizes and played by the emulator's clock. Products that the
vendor's library runs take the planner's time. The rest of the step has no prediction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from ratchet.amd.emulator.estimates import prediction, total_time
from ratchet.base.devices.ceilings import Bound
from ratchet.judge.verdict import PredictedTime
from ratchet.train.workloads.config import AUTOCAST
from ratchet.train.workloads.fake import StepProduct

ProductTimes = Callable[[str, Sequence[StepProduct]], float | None]
"""The seconds of all of a step's bf16 products on a device; None if the device is not planned."""
PRODUCT_SPAN: Final = (0.8, 1.2)
"""Factors of the interval of the planner's products: on seven large products of two traces of
MI300X, its formula erred by -17 to +25 % (docs/how-to/plan.md)."""
NO_SIZES: Final = "they are not known"
HEAD: Final = "linear_cross_entropy"
NEVER: Final = (
    "element-wise operations, copies and sums outside of these kernels, the start of launches, and "
    "the host"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetSite:
    """Calls of one entry at the same sizes, in one step."""

    shapes: Mapping[str, tuple[int, ...]]  # By the op's argument; a region's inputs are numbered
    calls: int
    flops: float | None = None
    """Operations of one call's products; half of a causal attention's are left out."""
    size_bytes: int | None = None  # Inputs and outputs of one call
    bound_s: float | None = None
    """Lower bound of one call; None if the catalogue or the reference does not tell."""
    bound_by: Bound | None = None
    predicted: PredictedTime | None = None  # Of one call, by the emulator's clock
    no_prediction: str = ""


def whole_bound_s(sites: Sequence[TargetSite]) -> float | None:
    """Return the lower bound of all calls in a step; None if one has none."""
    found = [one.calls * one.bound_s for one in sites if one.bound_s is not None]
    return sum(found) if found and len(found) == len(sites) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetKernel:
    """A kernel that a step would run on a target: its calls, their bound, an emulated verdict."""

    library: str
    """The kernel of the library, or `region` for a kernel written for the step's own graphs."""
    entry: str
    sites: tuple[TargetSite, ...]  # Its calls in one step, at the step's own sizes on the target
    status: str  # The verdict's status, at the library's test sizes and the step's dtype
    reason: str
    device: str = ""  # The largest device of the catalogue that runs the target's code
    emulated_bound_s: float | None = None
    """Lower bound of one call there at the test sizes, from the counts of the emulator."""
    estimated_speedup: float | None = None

    @property
    def calls(self) -> int:
        return sum(one.calls for one in self.sites)

    @property
    def step_bound_s(self) -> float | None:
        """Return the lower bound of all its calls in one step; estimated, never measured."""
        return whole_bound_s(self.sites)

    @property
    def step_predicted(self) -> PredictedTime | None:
        times = [one.predicted for one in self.sites for _ in range(one.calls)]
        return total_time(times)

    @property
    def no_prediction(self) -> str:
        """Return why one of its calls has no predicted time; empty if all have one."""
        if not self.sites:
            return NO_SIZES
        return next((one.no_prediction for one in self.sites if one.no_prediction), "")

    def to_json(self) -> dict[str, object]:
        time = self.step_predicted
        about = {
            "calls": self.calls,
            "step_bound_s": self.step_bound_s,
            "no_prediction": self.no_prediction,
        }
        return {**asdict(self), **about, "step_predicted": None if time is None else asdict(time)}


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedStep:
    """The parts of a step that were predicted, with their interval; never measured."""

    kernels: PredictedTime | None  # of the library, all their calls in a step
    products: PredictedTime | None  # of the vendor's library, by the planner
    covered: float | None
    """Share of the operations of products and attention that the predicted parts do."""
    left_out: tuple[str, ...]

    @property
    def predicted(self) -> PredictedTime | None:
        """The sum of both parts; None if nothing was predicted."""
        return total_time([one for one in (self.kernels, self.products) if one is not None])

    def to_json(self) -> dict[str, object]:
        whole = self.predicted
        return {**asdict(self), "predicted": None if whole is None else asdict(whole)}


def predicted_step(
    kernels: Sequence[TargetKernel],
    products: Sequence[StepProduct],
    product_times: ProductTimes,
    *,
    device: str,
    precision: str,
) -> PredictedStep:
    """Return the sum of the predicted parts, and what they leave out."""
    ours = [one for one in kernels if one.library != "region"]
    known = [one for one in ours if one.step_predicted is not None]
    left_out = [one.entry for one in ours if one not in known]
    if any(one.library == "region" for one in kernels):
        left_out.append("kernels for the step's own regions, which may do parts of the others")
    # A kernel that multiplies by the head takes the three products of tokens, words and features.
    head = [one for one in ours if one.entry == HEAD and one.status == "correct"]
    taken = [
        sorted((math.prod(site.shapes["x"][:-1]), *site.shapes["weight"]))
        for one in head
        for site in one.sites
    ]
    library = [one for one in products if sorted((one.rows, one.columns, one.inner)) not in taken]
    planned = product_times(device, library) if library and precision in AUTOCAST else None
    if not products:
        left_out.append("products of the vendor's library: known of built-in workloads alone")
    elif planned is None and library:
        left_out.append(f"products of the vendor's library: no planned rate for {precision} there")
    attention = [one for one in ours if one.library == "attention"]
    whole = _flops(products) + _calls_flops(attention)
    done = _flops(library) if planned is not None else 0.0
    done += _calls_flops(one for one in attention if one in known)
    if all(one in known for one in head):
        done += _flops(products) - _flops(library)
    return PredictedStep(
        kernels=total_time([one.step_predicted for one in known]),
        products=None if planned is None else prediction(device, planned, PRODUCT_SPAN),
        covered=done / whole if whole else None,
        left_out=(*left_out, NEVER),
    )


def _flops(products: Iterable[StepProduct]) -> float:
    return sum(2.0 * one.rows * one.columns * one.inner * one.count for one in products)


def _calls_flops(kernels: Iterable[TargetKernel]) -> float:
    return sum(site.calls * (site.flops or 0.0) for one in kernels for site in one.sites)
