"""Cases of a problem, their inputs, and a model's form. Imports no torch.

This file tells nothing about right answers or tolerances, since the sandbox of the static profile,
which draws inputs, holds it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ratchet.base.errors import KernelError
from ratchet.judge.abi import DTYPE_CODES

LONG_SUM, STATED_SUM = "long sum", "long sum of a larger case"
"""The names of a hidden case with a sum that the judge made longer: to a length that it chose,
which convicts no kernel, or to one that a case of another tier has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Structure:
    """The structure that all draws of one input of a problem's file share."""

    zeros: bool = False  # Some elements are always zero: a triangle, a diagonal, a band
    symmetric: bool = False  # The last two dimensions form a symmetric matrix
    definite: bool = False  # That matrix is positive definite
    codes: bool = False  # Integers, or few distinct values: masks, labels, signs
    sign: int = 0  # -1: never above zero; 1: always clearly above zero
    normalised: int | None = None
    """The dimension, counted from the end, over which the values sum to one (probabilities)."""
    log_normalised: int | None = None
    """The same for the exponentials of the values (logarithms of probabilities)."""

    def words(self) -> str:
        """Return the structure in words; empty if there is none."""
        found = {
            "zeros": self.zeros,
            "symmetry": self.symmetric and not self.definite,
            "positive definiteness": self.definite,
            "values": self.codes,
            "sign": self.sign != 0,
            "sums of one": self.normalised is not None,
            "sums of one over the exponentials": self.log_normalised is not None,
        }
        return ", ".join(name for name, there in found.items() if there)


DISTRIBUTIONS: Final = (
    "normal",
    "shifted",
    "heavy_tailed",
    "outliers",
    "specials",
    "zeros",
    "ones",
    "tiny",
    "large",
    "uniform",
    "positive",
    "integers",
    "from_file",
    "from_file_signed",
    "from_file_shifted",
    "from_file_large",
    "from_file_heavy_tailed",
    "from_file_uneven",
    "from_file_zero_rows",
    "state",
)
"""`outliers` plants a few values of 1000, and `specials` inf, -inf and NaN, for references that
define the result. `from_file` are values that a problem's file draws itself, unchanged or varied.
`state` are the parameters and buffers of its model."""
FROM_FILE: Final = tuple(name for name in DISTRIBUTIONS if name.startswith("from_file"))
UNSCALED: Final = ("uniform", "integers", "state")
BYTE_RANGES: Final = {"int8": (-128.0, 127.0), "uint8": (0.0, 255.0), "bool": (0.0, 1.0)}
LAYOUTS: Final = ("contiguous", "transposed", "strided", "broadcast", "heads")

Tier = Literal["ci", "cpu", "gpu"]
Scale = float | Literal["auto", "emulated"] | None
"""Shrinks a problem in KernelBench's form: to this machine, to its emulator, or by a factor."""
Task = Literal["own", "any"]  # `own`: the work must run in the kernel's own code, not in a library


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """One input: its shape, dtype, distribution and memory layout."""

    shape: tuple[int, ...]
    dtype: str
    """torch's name: float32, bfloat16, float16, float64, float8_e4m3fn, float8_e5m2, int64, int32,
    int8, uint8 or bool. Real distributions are drawn in float32 and rounded to the dtype (e4m3
    saturates at 448). Integers below 0 or above 127 need `integers` with their range."""
    distribution: str = "normal"  # One of DISTRIBUTIONS
    layout: str = "contiguous"
    """One of LAYOUTS: `transposed` swaps the last two dimensions in memory, `strided` leaves
    gaps between rows, `broadcast` repeats the first row with stride 0, `heads` is a
    [B, H, T, D] view of [B, T, H, D] memory."""
    low: float | None = None
    high: float | None = None
    """Bounds of `uniform` ([low, high)) and `integers` (low inclusive, high exclusive)."""
    deviation: float = 1.0
    """Factor of the values of a real distribution: the standard deviation of `normal`. It is 1 for
    `uniform`, `integers`, `state` and what a file draws."""
    in_place: bool = False
    """The kernel changes this tensor; its new value is an output of the reference."""

    def __post_init__(self) -> None:
        _one_of("dtype", self.dtype, tuple(DTYPE_CODES))
        _one_of("distribution", self.distribution, DISTRIBUTIONS)
        _one_of("layout", self.layout, LAYOUTS)
        if self.distribution in ("uniform", "integers") and (self.low is None or self.high is None):
            raise KernelError(f"{self.distribution} inputs need low and high: give both")
        scales = self.distribution not in (*UNSCALED, *FROM_FILE)
        if not 0 < self.deviation < math.inf or (self.deviation != 1 and not scales):
            raise KernelError(
                f"deviation {self.deviation} of {self.distribution} values: give a number above 0, "
                "and 1 where the distribution has its own scale"
            )
        least, most = BYTE_RANGES.get(self.dtype, (-math.inf, math.inf))
        if self.distribution == "integers" and not (
            least <= float(self.low or 0) and float(self.high or 0) - 1 <= most
        ):
            raise KernelError(
                f"integers from {self.low} to below {self.high} are not all {self.dtype}: it holds "
                f"{least:.0f} to {most:.0f}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One set of inputs for a problem."""

    name: str
    inputs: tuple[TensorSpec, ...]
    scalars: tuple[float, ...] = ()
    timed: bool = False  # The judge times this case
    hidden: bool = False  # Authors do not see this case
    grown: bool = False
    """Not of the problem's own sizes: a kernel need not take them. If it does, it may not be
    inexact where the problem states as long a sum elsewhere (STATED_SUM)."""
    tier: Tier = "cpu"
    """Size class: `ci` takes milliseconds, `gpu` fills an accelerator. Hidden cases count at every
    tier."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SizeChange:
    """A size of a problem's file that was shrunk to fit."""

    name: str
    old: int
    new: int

    def words(self) -> str:
        return f"{self.name} {self.old} to {self.new}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelForm:
    """Constructor and call of the model in a KernelBench file.

    The inputs of the problem's cases are the model's state, then the tensors of its call.
    """

    init: str  # The constructor's arguments, as the Python literal of a list
    arguments: tuple[str | None, ...]
    """Arguments of a call: None for a tensor, else a Python literal."""
    state: tuple[str, ...]
    """Names of the parameters and buffers that the harness sets, in the order of the inputs, and
    then `attributes`."""
    training: bool = True  # The model's mode; KernelBench leaves models in training mode
    structures: tuple[Structure, ...] = ()
    """Structure that hidden variations keep, for each tensor of the call."""
    attributes: tuple[str, ...] = ()
    """Names of the state's tensors that the model draws at random and keeps as plain attributes or
    as non-persistent buffers. A kernel need not have them."""
    drawn: tuple[str, ...] = ()
    """The digest of each part's first values, drawn by the constructor under WEIGHTS_SEED."""
    shrunk: tuple[SizeChange, ...] = ()
    """The sizes of the file that `--scale` changed; those that a kernel's file repeats follow."""
    alone: bool | None = None
    """True if the model returns a tensor by itself, False if in a tuple; None if it may vary."""
    frozen: bool = False
    """True if the state keeps the values that the model's constructor draws under one seed."""


def _one_of(what: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise KernelError(f"unknown {what} {value!r}: use one of {', '.join(known)}")
