"""A problem: a pure computation to be rewritten as a kernel, and how to judge an answer."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from ratchet.errors import KernelError
from ratchet.kernels.abi import DTYPE_CODES
from ratchet.kernels.structure import Structure
from ratchet.kernels.tolerance import OutputCheck, Tolerance

if TYPE_CHECKING:
    from torch import Tensor

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
    "state",
)
"""`outliers` plants a few values of 1000, `specials` inf, -inf and NaN: for references that define
what becomes of them. What a problem's file draws itself is `from_file`, as it is or varied; `state`
are the parameters and buffers of its model."""
BYTE_RANGES: Final = {"int8": (-128.0, 127.0), "uint8": (0.0, 255.0), "bool": (0.0, 1.0)}
LAYOUTS: Final = ("contiguous", "transposed", "strided", "broadcast", "heads")

Reference = Callable[..., "tuple[Tensor, ...]"]
Tier = Literal["ci", "cpu", "gpu"]
Task = Literal["own", "any"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """One input: its shape, dtype, how its values are drawn and how it lies in memory."""

    shape: tuple[int, ...]
    dtype: str
    """torch's name: float32, bfloat16, float16, float64, float8_e4m3fn, float8_e5m2, int64, int32,
    int8, uint8 or bool. Real distributions are drawn in float32 and rounded to the dtype (e4m3
    saturates at 448); whole numbers below 0 or above 127 want `integers` in their range."""
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
        _one_of("dtype", self.dtype, tuple(DTYPE_CODES))
        _one_of("distribution", self.distribution, DISTRIBUTIONS)
        _one_of("layout", self.layout, LAYOUTS)
        if self.distribution in ("uniform", "integers") and (self.low is None or self.high is None):
            raise KernelError(f"{self.distribution} inputs need low and high: give both")
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
    timed: bool = False
    """The speed is judged on this case."""
    hidden: bool = False
    """Authors do not see this case."""
    tier: Tier = "cpu"
    """The smallest machine it is meant for: `ci` takes milliseconds, `gpu` fills an accelerator.
    Hidden cases are judged at every tier."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelForm:
    """How the model of a file in KernelBench's format is built and called.

    The inputs of the problem's cases are its state, then the tensors that it is called with.
    """

    init: str
    """The constructor's arguments, a Python literal: a list."""
    arguments: tuple[str | None, ...]
    """Of a call: None where a tensor stands, else a Python literal."""
    state: tuple[str, ...]
    """Names of the parameters and buffers that the harness sets, in the order of the inputs, and
    then `attributes`."""
    training: bool = True
    """The mode it is in: KernelBench leaves models in training mode."""
    structures: tuple[Structure, ...] = ()
    """Of each tensor that it is called with: what hidden variations keep."""
    attributes: tuple[str, ...] = ()
    """Of the state, the tensors that the model draws at random and keeps as plain attributes, or
    in buffers that are not persistent. A kernel need not have them."""


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
    task: Task = "any"
    """`own`: the work must run in the candidate's own code; `any`: however it gets done."""
    libraries: tuple[str, ...] = ()
    """Library work that an `own` problem allows by name, such as `matmul`."""
    check: str = ""
    """"module:function" of the problem's own check, for outputs with several right answers (ties
    in routing, codes): f(inputs, got, own, oracle, scalars) -> one OutputCheck an output. Without
    it the tolerance decides."""
    text: str = ""
    """The source of the file that the problem was read from. Its reference and check are then
    looked up in there, and it is run in worker processes only."""
    model: ModelForm | None = None
    """For a file in KernelBench's format."""
    notes: tuple[str, ...] = ()
    """What was done to a file's problem so that it can be judged here: sizes, the mode."""
    fault: str = ""
    """Why it cannot be judged: the judge refuses it."""

    def at(self, tier: Tier) -> Problem:
        """The same problem with the cases of one tier and all hidden ones."""
        kept = tuple(case for case in self.cases if case.tier == tier or case.hidden)
        if all(case.hidden for case in kept):
            raise KernelError(f"problem {self.name!r} has no case of tier {tier!r}")
        return replace(self, cases=kept)

    def varied(self, case: Case) -> tuple[Case, ...]:
        """`case` with the values of each hidden case: its sizes, dtypes and layouts, and for every
        real input the distribution that the hidden case has there."""
        found: dict[tuple[TensorSpec, ...], Case] = {}
        for hidden in self.cases:
            if not hidden.hidden or len(hidden.inputs) != len(case.inputs):
                continue
            inputs = tuple(map(_with_values, case.inputs, hidden.inputs))
            if inputs != case.inputs:
                name = f"{case.name}, values of {hidden.name}"
                varied = replace(case, name=name, inputs=inputs, timed=False, hidden=True)
                found.setdefault(inputs, varied)
        return tuple(found.values())

    def check_outputs(
        self,
        case: Case,
        inputs: Sequence[Tensor],
        got: Sequence[Tensor],
        own: Sequence[Tensor],
        oracle: Sequence[Tensor],
    ) -> list[OutputCheck]:
        """Compare the outputs of one call on `inputs`, in order; `oracle` is float64."""
        if not self.check:
            return self.tolerance.check_all(got, own, oracle)
        cores = ([tensor.cpu() for tensor in given] for given in (inputs, got, own, oracle))
        found = self._function(self.check)(*cores, case.scalars)
        return list(found)

    @property
    def hash(self) -> str:
        """sha256 (hex) over cases, tolerance and the text of the reference's module."""
        named = () if self.text else (self.reference, self.check)
        texts = [reference_text(name) for name in named if name]
        content = [self.reference, *texts, self.as_json()]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def load_reference(self) -> Reference:
        """The reference function; a KernelError where the module or function is not there."""
        if self.model is not None:
            from ratchet.kernels.model_file import model_of

            return model_of(self.text, self.model).reference
        found: Reference = self._function(self.reference)
        return found

    def compile_reference(self) -> Reference:
        """The reference under torch.compile in its default mode; compiles at the first call."""
        import torch
        import torch._inductor.config

        torch._inductor.config.compile_threads = 1  # the family must be able to stand still
        if self.model is not None:
            from ratchet.kernels.model_file import model_of

            return model_of(self.text, self.model).compiled()
        compiled: Reference = torch.compile(self.load_reference())
        return compiled

    def _function(self, name: str) -> Callable[..., Any]:
        if not self.text:
            return load_function(name)
        from ratchet.kernels.source_module import source_module

        found = getattr(source_module(self.text), name.rpartition(":")[2], None)
        if not callable(found):
            raise KernelError(f"the problem's file defines no function {name!r}: name one it has")
        return found  # type: ignore[no-any-return]

    def build_inputs(self, case: Case, seed: int) -> list[Tensor]:
        """The inputs of `case`, drawn from `seed`: the same seed gives the same values."""
        if self.model is not None:
            from ratchet.kernels.model_file import model_of

            return model_of(self.text, self.model).draw(case, seed)
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
                task=document["task"],
                libraries=tuple(document["libraries"]),
                check=document["check"],
                text=document.get("text", ""),
                model=_model_from_json(document.get("model")),
                notes=tuple(document.get("notes", ())),
                fault=document.get("fault", ""),
            )
        except (KeyError, TypeError) as error:
            raise KernelError(
                f"this is not a problem's JSON ({error!r}): write it again"
            ) from error


def load_function(name: str) -> Callable[..., Any]:
    """The function of "module:function"; a KernelError where it is not there."""
    module_name, _, function = name.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module_name), function)
    except (ImportError, AttributeError) as error:
        raise KernelError(
            f"reference {name!r} cannot be loaded ({error}): give it as module:function"
        ) from error
    return found


def _case_from_json(document: dict[str, Any]) -> Case:
    inputs = tuple(
        TensorSpec(**{**spec, "shape": tuple(spec["shape"])}) for spec in document["inputs"]
    )
    return Case(**{**document, "inputs": inputs, "scalars": tuple(document["scalars"])})


def _model_from_json(document: dict[str, Any] | None) -> ModelForm | None:
    if document is None:
        return None
    arguments, state = tuple(document["arguments"]), tuple(document["state"])
    structures = tuple(Structure(**one) for one in document.get("structures", ()))
    return ModelForm(
        **{
            **document,
            "arguments": arguments,
            "state": state,
            "structures": structures,
            "attributes": tuple(document.get("attributes", ())),
        }
    )


def _with_values(spec: TensorSpec, other: TensorSpec) -> TensorSpec:
    """A spec with another's distribution, where both draw real numbers alike."""
    if spec.dtype != other.dtype or _kind(spec.distribution) != _kind(other.distribution):
        return spec
    return replace(spec, distribution=other.distribution)


def _kind(distribution: str) -> str:
    if distribution.startswith("from_file"):
        return "from_file"
    return distribution if distribution in ("uniform", "integers", "state") else "real"


def _one_of(what: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise KernelError(f"{what} {value!r} is not known: use one of {', '.join(known)}")


def reference_text(reference: str) -> str:
    """The source of the module that a "module:function" names; a KernelError if there is none."""
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
