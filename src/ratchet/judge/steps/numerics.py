"""Compare a changed training step with the baseline: first-step gradients, and losses by seed.

Gradients are judged for each parameter against a reference of higher precision, in two ways:

* the relative error in norm is at most twice that of the baseline's precision;
* the error's component along the reference (a wrong scale) lies between zero and the baseline's
  own, within its noise. Honest bf16 arithmetic is off by 0.6-1.5 % in norm in each parameter, so a
  gradient that is 1 % too large hides in it. The component along the reference is a sum over all
  elements and is five to ten times quieter. If tokens change experts, its noise is that of the few
  parts that make up the baseline's error.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ratchet.base import Json
from ratchet.base.errors import JudgeError

# Read gradients from .safetensors files, without torch, one parameter at a time.
#
# The format: eight bytes of header length (little endian), a JSON header that gives each tensor's
# dtype, shape and byte range, then the bytes (https://github.com/huggingface/safetensors,
# "Format"). safetensors' own numpy reader does not know bfloat16.

ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
MAX_HEADER_BYTES = 100 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """The place of one tensor in the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class GradientFile:
    """The gradients of one step, by parameter name. Raises JudgeError for a damaged file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.entries = _entries(self._bytes)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise JudgeError(
                f"{path}: cannot be read as a .safetensors file of gradients ({error}); write it "
                "again with safetensors.torch.save_file"
            ) from error

    def read(self, name: str) -> NDArray[np.float64]:
        """Return one gradient as a flat fp64 array."""
        entry = self.entries[name]
        raw = self._bytes[entry.begin : entry.end]
        if entry.dtype == "BF16":
            bits = np.frombuffer(raw, dtype="<u2").astype(np.uint32) << 16
            return bits.view(np.float32).astype(np.float64)
        kinds = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
        return np.frombuffer(raw, dtype=kinds[entry.dtype]).astype(np.float64)


def _entries(data: mmap.mmap) -> dict[str, Entry]:
    length = int.from_bytes(data[:8], "little")
    if not 2 <= length <= min(MAX_HEADER_BYTES, len(data) - 8):
        raise ValueError(f"the header claims {length} bytes")
    header = json.loads(data[8 : 8 + length])
    if not isinstance(header, dict):
        raise ValueError("the header is not a JSON object")
    start = 8 + length
    return {
        name: _entry(fields, start, len(data))
        for name, fields in header.items()
        if name != "__metadata__"
    }


def _entry(fields: dict[str, Json], start: int, size: int) -> Entry:
    dtype, shape = fields["dtype"], tuple(int(extent) for extent in fields["shape"])
    begin, end = (start + int(offset) for offset in fields["data_offsets"])
    if dtype not in ITEM_BYTES:
        raise ValueError(f"dtype {dtype} is not a gradient's dtype")
    if not start <= begin <= end <= size or end - begin != ITEM_BYTES[dtype] * math.prod(shape):
        raise ValueError("a tensor's bytes do not match its shape")
    return Entry(dtype=dtype, shape=shape, begin=begin, end=end)


ERROR_FACTOR = 2.0  # A parameter may have this many times the error of the baseline's precision

FP32_FLOOR = 1e-4
"""Relative error that is always allowed: two honest fp32 gradients differ by the order of their
sums. A sum of n signed terms is off by about eps * sqrt(n) relative to its value. With eps 6e-8, n
a few thousand tokens, and some tens of such sums behind a gradient, that is 1e-6 to 2e-5 (9e-7 was
measured on a four-layer transformer against fp64). A planted 1 % is 100 times this."""

ABSOLUTE_FLOOR = 1e-5
"""The same for gradients that are zero except for rounding (a key's bias in attention, an expert
without tokens), in units of the root mean square over all elements of all parameters."""

NOISE_ERROR = 0.5
"""A parameter with a larger baseline error only holds rounding noise, which may grow tenfold."""
NOISE_FACTOR = 10.0

SCALE_NOISE = 0.15
"""Least ratio assumed of scale error to error in norm. Measured over the 38 parameters of a
four-layer transformer: root mean square 0.17 under bf16 autocast, 0.21 in pure bf16."""
COARSE_ERROR, MOST_PARTS = 0.05, 64
"""A matrix with a larger baseline error, and at most this many rows or columns, is the weight of a
router: a rounding sends a few tokens to another expert. Each such token adds a matrix of rank one
to the error. So few parts do not average out as roundings do, and the scale scatters more. Measured
for the router of the last layer of moe-42m, error 11 %: ratios of -0.40 to +0.32 in seven honest
ways to run the step, where the parts give 0.27."""
MOST_OF_PARTS = 0.8
"""Those parts widen a scale's interval by at most this share of the baseline's error."""
SCALE_FACTOR = 2.5
"""A scale may lie this many times its usual noise outside of zero to the baseline's own."""

FINAL_STEPS = 10
MIN_LOSS_WIDTH = 1e-3
"""The seed interval is widened by at least this share of the loss on each side."""
MEMORISED = 0.05
"""Share of its first loss below which a copy has memorised its batches. The rest then varies by its
own size from seed to seed: 0.007 to 0.016 for a vision transformer in fp32 that began at 2.3, and
0.007 to 0.031 with bf16 weights."""
LEARNED = 0.01  # Least widening of such an interval, as a share of the first loss


@dataclass(frozen=True, kw_only=True, slots=True)
class ParameterCheck:
    """One parameter's gradient; errors are relative to the norm of the reference."""

    name: str
    error: float
    baseline_error: float
    allowed_error: float
    scale: float
    """Projection on the reference, minus one: +0.01 is a gradient that is 1 % too large."""
    baseline_scale: float
    allowed_scale: tuple[float, float]
    problem: str = ""  # Why it was not compared: missing, extra, another shape, not finite

    @property
    def ratio(self) -> float:
        """Measured over allowed, the worse of both checks; passes up to 1."""
        if self.problem:
            return math.inf
        return max(_ratio(self.error, self.allowed_error), self.scale_ratio)

    @property
    def scale_ratio(self) -> float:
        """The scale error over its side of the allowed interval."""
        return _ratio(abs(self.scale), abs(self.allowed_scale[1 if self.scale > 0 else 0]))


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientCheck:
    """The answer on first-step gradients."""

    passed: bool
    worst_parameter: str
    worst_ratio: float  # Measured over allowed of the worst parameter: above 1 fails
    detail: str
    parameters: tuple[ParameterCheck, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class LossCheck:
    """The answer on losses: the candidate's final losses and the interval they must lie in."""

    passed: bool
    low: float
    high: float
    values: tuple[float, ...]  # Final loss of the candidate for each seed
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Measured:
    name: str
    count: int
    reference_norm: float
    error_norm: float
    baseline_error_norm: float
    scale: float
    baseline_scale: float
    parts_noise: float
    """The scale's noise if parts of rank one of the error had random signs; 0 for many parts."""


def judge_gradients(reference: Path, baseline: Path, candidate: Path) -> GradientCheck:
    """Compare each parameter's first-step gradient; three .safetensors files, any float dtype.

    `reference` is fp32 or fp64, `baseline` the same step in the precision that the candidate
    claims. Passes if no parameter is missing, extra, of another shape or not finite, and each stays
    inside both limits of this module. Raises JudgeError if the reference or baseline is unusable.
    """
    files = {"reference": reference, "baseline": baseline, "candidate": candidate}
    opened = {role: GradientFile(path) for role, path in files.items()}
    _check_baseline(opened["reference"], opened["baseline"])
    problems = _structural_problems(opened["reference"], opened["candidate"])
    measured: list[_Measured] = []
    for name in sorted(opened["reference"].entries):
        if name not in problems:
            found = _measure(name, opened)
            if isinstance(found, str):
                problems[name] = found
            else:
                measured.append(found)
    checks = [*_limit(measured), *(_unusable(name, why) for name, why in problems.items())]
    return _conclude(checks)


def _check_baseline(reference: GradientFile, baseline: GradientFile) -> None:
    if not reference.entries:
        raise JudgeError("the reference holds no gradients; save them after the backward pass")
    problems = _structural_problems(reference, baseline)
    if problems:
        name, why = next(iter(problems.items()))
        raise JudgeError(f"the baseline's gradient '{name}' {why}: nothing can be judged by it")


def _structural_problems(reference: GradientFile, other: GradientFile) -> dict[str, str]:
    problems: dict[str, str] = {}
    for name, entry in reference.entries.items():
        if name not in other.entries:
            problems[name] = "is missing"
        elif other.entries[name].shape != entry.shape:
            shape, wanted = list(other.entries[name].shape), list(entry.shape)
            problems[name] = f"has shape {shape}, not {wanted}"
    extra = sorted(set(other.entries) - set(reference.entries))
    return problems | {name: "is not in the reference" for name in extra}


def _measure(name: str, files: Mapping[str, GradientFile]) -> _Measured | str:
    """Return the norms of one parameter, or why its candidate cannot be compared."""
    exact, usual, new = (files[role].read(name) for role in ("reference", "baseline", "candidate"))
    if not (np.isfinite(exact).all() and np.isfinite(usual).all()):
        raise JudgeError(f"the reference's or baseline's gradient '{name}' is not finite")
    if not np.isfinite(new).all():
        return "is not finite"
    shape = files["reference"].entries[name].shape
    return _Measured(
        name=name,
        count=exact.size,
        reference_norm=_norm(exact),
        error_norm=_norm(new - exact),
        baseline_error_norm=_norm(usual - exact),
        scale=_projection(new, exact),
        baseline_scale=_projection(usual, exact),
        parts_noise=_parts_noise(exact, usual - exact, shape),
    )


def _parts_noise(
    exact: NDArray[np.float64], error: NDArray[np.float64], shape: Sequence[int]
) -> float:
    """Return how far the scale scatters if each part of rank one of the error had a random sign.

    That is the root of the summed squares of the parts' projections on the reference; 0 unless the
    gradient is a matrix with few rows or columns and a coarse error.
    """
    rows, square = shape[0] if shape else 1, _dot(exact, exact)
    few = len(shape) > 1 and 1 < min(rows, exact.size // max(rows, 1)) <= MOST_PARTS
    if not few or _norm(error) <= COARSE_ERROR * math.sqrt(square):
        return 0.0
    left, sizes, right = np.linalg.svd(error.reshape(rows, -1), full_matrices=False)
    along = sizes * np.sum((left.T @ exact.reshape(rows, -1)) * right, axis=1)
    return _norm(along) / square if square else 0.0


def _limit(measured: Sequence[_Measured]) -> list[ParameterCheck]:
    """Set each parameter's limits, from its own baseline error and the noise seen over all."""
    elements = sum(entry.count for entry in measured)
    total = math.fsum(entry.reference_norm**2 for entry in measured)
    unit = math.sqrt(total / elements) if elements else 0.0
    noise = _scale_noise(measured)
    return [_limit_one(entry, unit, noise) for entry in measured]


def _limit_one(entry: _Measured, unit: float, noise: float) -> ParameterCheck:
    norm = entry.reference_norm or 1.0
    absolute = ABSOLUTE_FLOOR * unit * math.sqrt(entry.count) / norm
    baseline_error = entry.baseline_error_norm / norm
    factor = NOISE_FACTOR if baseline_error > NOISE_ERROR else ERROR_FACTOR
    relative = FP32_FLOOR if entry.reference_norm else 0.0
    allowed = max(factor * baseline_error, relative, absolute)
    return ParameterCheck(
        name=entry.name,
        error=entry.error_norm / norm,
        baseline_error=baseline_error,
        allowed_error=allowed,
        scale=entry.scale,
        baseline_scale=entry.baseline_scale,
        allowed_scale=_allowed_scale(entry, baseline_error, max(FP32_FLOOR, absolute), noise),
    )


def _allowed_scale(
    entry: _Measured, baseline_error: float, floor: float, noise: float
) -> tuple[float, float]:
    if baseline_error > NOISE_ERROR or not entry.reference_norm:
        return -math.inf, math.inf
    own = max(noise, 1 / math.sqrt(entry.count))  # few elements average little
    of_parts = min(SCALE_FACTOR * entry.parts_noise, MOST_OF_PARTS * baseline_error)
    margin = max(SCALE_FACTOR * own * baseline_error, of_parts, floor)
    return min(0.0, entry.baseline_scale) - margin, max(0.0, entry.baseline_scale) + margin


def _scale_noise(measured: Sequence[_Measured]) -> float:
    """Return the scale error for each unit of error in norm, over the baseline's parameters."""
    ratios = [
        entry.baseline_scale * entry.reference_norm / entry.baseline_error_norm
        for entry in measured
        if 0 < entry.baseline_error_norm <= NOISE_ERROR * entry.reference_norm
    ]
    if not ratios:
        return SCALE_NOISE
    return max(SCALE_NOISE, math.sqrt(math.fsum(ratio**2 for ratio in ratios) / len(ratios)))


def _conclude(checks: Sequence[ParameterCheck]) -> GradientCheck:
    worst = max(checks, key=lambda check: check.ratio)
    failed = [check for check in checks if check.ratio > 1]
    head = f"{len(failed)} of {len(checks)} parameters fail; worst: " if failed else "worst: "
    return GradientCheck(
        passed=not failed,
        worst_parameter=worst.name,
        worst_ratio=worst.ratio,
        detail=head + _words(worst),
        parameters=tuple(checks),
    )


def _words(check: ParameterCheck) -> str:
    if check.problem:
        return f"{check.name} {check.problem}"
    low, high = check.allowed_scale
    return (
        f"{check.name}: error {check.error:.2e} (at most {check.allowed_error:.2e}; baseline "
        f"{check.baseline_error:.2e}), scale {check.scale:+.2e} ({low:+.2e} to {high:+.2e})"
    )


def _unusable(name: str, why: str) -> ParameterCheck:
    nan = math.nan
    return ParameterCheck(
        name=name,
        error=nan,
        baseline_error=nan,
        allowed_error=nan,
        scale=nan,
        baseline_scale=nan,
        allowed_scale=(nan, nan),
        problem=why,
    )


def judge_losses(
    baseline: Sequence[Sequence[float]], candidate: Sequence[Sequence[float]]
) -> LossCheck:
    """Compare losses, seeds x steps each; the final loss is the mean of the last ten steps.

    Each of the candidate's final losses must lie in the range of the baseline's, extended on each
    side by its own width (at least 0.1 % of the loss): the range of three seeds is narrower than
    the true spread. Too good fails like too bad. If the baseline's final losses are under 5 % of
    its first ones, the copies have memorised their batches, and the width is at least 1 % of the
    first loss. A candidate with a loss that is not finite, or with other seeds or steps, fails.
    Such a baseline raises JudgeError.
    """
    if len(baseline) < 2 or not all(len(steps) for steps in baseline):
        raise JudgeError(f"{len(baseline)} seeds of the baseline: at least two must be run")
    before = tuple(_final(steps) for steps in baseline)
    if not all(map(math.isfinite, before)):
        raise JudgeError("the baseline's own loss is not finite: nothing can be judged by it")
    width = max(max(before) - min(before), _least_width(baseline, before))
    low, high = min(before) - width, max(before) + width
    values = tuple(_final(steps) if len(steps) else math.nan for steps in candidate)
    passed, detail = _losses_answer(baseline, candidate, values, low, high)
    return LossCheck(passed=passed, low=low, high=high, values=values, detail=detail)


def _least_width(baseline: Sequence[Sequence[float]], before: Sequence[float]) -> float:
    final = abs(float(np.mean(before)))
    first = abs(float(np.mean([steps[0] for steps in baseline])))
    least = LEARNED * first if math.isfinite(first) and final < MEMORISED * first else 0.0
    return max(MIN_LOSS_WIDTH * final, least)


def _losses_answer(
    baseline: Sequence[Sequence[float]],
    candidate: Sequence[Sequence[float]],
    values: Sequence[float],
    low: float,
    high: float,
) -> tuple[bool, str]:
    if [len(steps) for steps in candidate] != [len(steps) for steps in baseline]:
        return False, "the candidate has other seeds or steps than the baseline"
    if not all(np.isfinite(np.asarray(steps)).all() for steps in candidate):
        return False, "a loss of the candidate is not finite"
    outside = [value for value in values if not low <= value <= high]
    shown = ", ".join(f"{value:.4f}" for value in values)
    verb = "lie" if not outside else f"do not all lie ({len(outside)} outside)"
    return not outside, f"final losses {shown} {verb} in {low:.4f} to {high:.4f}"


def _final(steps: Sequence[float]) -> float:
    return float(np.mean(np.asarray(steps[-FINAL_STEPS:], dtype=np.float64)))


def _norm(values: NDArray[np.float64]) -> float:
    return math.sqrt(_dot(values, values))


def _projection(values: NDArray[np.float64], reference: NDArray[np.float64]) -> float:
    """Return <values, reference> / <reference, reference> - 1; 0 for a zero reference."""
    square = _dot(reference, reference)
    return _dot(values - reference, reference) / square if square else 0.0


def _dot(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Sum pairwise: exact enough for any length, without waiting for BLAS threads."""
    return float(np.sum(first * second))


def _ratio(value: float, allowed: float) -> float:
    if value == 0 or math.isinf(allowed):
        return 0.0
    return value / allowed if allowed else math.inf
