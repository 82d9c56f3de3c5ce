"""A problem: a pure computation to be rewritten as a kernel, and how to judge an answer."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ratchet.errors import KernelError
from ratchet.kernels.tolerance import Tolerance

if TYPE_CHECKING:
    from torch import Tensor

DISTRIBUTIONS: Final = (
    "normal",
    "shifted",
    "heavy_tailed",
    "outliers",
    "zeros",
    "ones",
    "tiny",
    "large",
    "uniform",
    "positive",
    "integers",
)
LAYOUTS: Final = ("contiguous", "transposed", "strided", "broadcast", "heads")

Reference = Callable[..., "tuple[Tensor, ...]"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """One input: its shape, dtype, how its values are drawn and how it lies in memory."""

    shape: tuple[int, ...]
    dtype: str
    """torch's name: float32, bfloat16, float64, int64, int32, bool, uint8, float16."""
    distribution: str = "normal"
    """One of DISTRIBUTIONS."""
    layout: str = "contiguous"
    """One of LAYOUTS: `transposed` swaps the last two dimensions in memory, `strided` leaves
    gaps between rows, `broadcast` repeats the first row with stride 0, `heads` is a
    [B, H, T, D] view of [B, T, H, D] memory."""
    low: float | None = None
    high: float | None = None
    """Bounds of `uniform` ([low, high)) and `integers` (low inclusive, high exclusive)."""
    in_place: bool = False
    """The kernel changes this tensor; its new value is an output of the reference."""

    def __post_init__(self) -> None:
        _one_of("distribution", self.distribution, DISTRIBUTIONS)
        _one_of("layout", self.layout, LAYOUTS)
        if self.distribution in ("uniform", "integers") and (self.low is None or self.high is None):
            raise KernelError(f"{self.distribution} inputs need low and high: give both")


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One set of inputs for a problem."""

    name: str
    inputs: tuple[TensorSpec, ...]
    scalars: tuple[float, ...] = ()
    timed: bool = False
    """The speed is judged on this case."""
    hidden: bool = False
    """Authors do not see this case."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A reference, the cases it is judged on, and how far an answer may lie from the oracle."""

    name: str
    """For a problem of the library: the entry of the kernels that answer it."""
    reference: str
    """"module:function", called as f(*tensors, scalars); returns a tuple: the new values of
    in-place tensors in input order, then the outputs. It must also run on float64 inputs."""
    cases: tuple[Case, ...]
    tolerance: Tolerance = field(default_factory=Tolerance)

    @property
    def hash(self) -> str:
        """sha256 (hex) over cases, tolerance and the text of the reference's module."""
        content = [self.reference, _module_text(self.reference), self.as_json()]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def load_reference(self) -> Reference:
        """The reference function; a KernelError where the module or function is not there."""
        module_name, _, function = self.reference.partition(":")
        try:
            found: Reference = getattr(importlib.import_module(module_name), function)
        except (ImportError, AttributeError) as error:
            raise KernelError(
                f"reference {self.reference!r} cannot be loaded ({error}): "
                "give it as module:function"
            ) from error
        return found

    def build_inputs(self, case: Case, seed: int) -> list[Tensor]:
        """The inputs of `case`, drawn from `seed`: the same seed gives the same values."""
        from ratchet.kernels.inputs import build

        return build(case.inputs, seed)

    def as_json(self) -> dict[str, Any]:
        """A JSON object from which `from_json` makes an equal problem."""
        return asdict(self)

    @staticmethod
    def from_json(document: dict[str, Any]) -> Problem:
        """The problem that `as_json` wrote; a KernelError where it is not one."""
        try:
            return Problem(
                name=document["name"],
                reference=document["reference"],
                cases=tuple(_case_from_json(case) for case in document["cases"]),
                tolerance=Tolerance(**document["tolerance"]),
            )
        except (KeyError, TypeError) as error:
            raise KernelError(
                f"this is not a problem's JSON ({error!r}): write it again"
            ) from error


def _case_from_json(document: dict[str, Any]) -> Case:
    inputs = tuple(
        TensorSpec(**{**spec, "shape": tuple(spec["shape"])}) for spec in document["inputs"]
    )
    return Case(**{**document, "inputs": inputs, "scalars": tuple(document["scalars"])})


def _one_of(what: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise KernelError(f"{what} {value!r} is not known: use one of {', '.join(known)}")


def _module_text(reference: str) -> str:
    module_name = reference.partition(":")[0]
    try:
        spec = importlib.util.find_spec(module_name)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        raise KernelError(
            f"reference {reference!r} names no module that can be found: give module:function"
        )
    return Path(spec.origin).read_text(encoding="utf-8")
