"""A problem: a pure computation to rewrite as a kernel, and the rule for judging an answer."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ratchet.base.errors import KernelError
from ratchet.judge.problems.case import (
    DISTRIBUTIONS,
    LAYOUTS,
    Case,
    ModelForm,
    Task,
    TensorSpec,
    Tier,
)
from ratchet.judge.problems.tolerance import OutputCheck, Tolerance

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ratchet.judge.problems.model_file import ModelFile

__all__ = [
    "DISTRIBUTIONS",
    "JUDGED_AT",
    "LARGEST_FIRST",
    "LAYOUTS",
    "MORE_TIME",
    "Case",
    "ModelForm",
    "Problem",
    "Reference",
    "Task",
    "TensorSpec",
    "Tier",
    "load_function",
    "reference_text",
]

Reference = Callable[..., "tuple[Tensor, ...]"]
MORE_TIME: Final = "give it more time (--time-limit of judge, --budget of write and optimize)"
LARGEST_FIRST: Final[tuple[Tier, ...]] = ("gpu", "cpu", "ci")
JUDGED_AT: Final[tuple[Tier, ...]] = ("cpu", "ci", "gpu")
"""Default tiers: a problem is judged at the first of these that it has, and on a GPU at
the first of `LARGEST_FIRST`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A reference, the cases to judge, and the tolerance."""

    name: str  # Entry of the kernels that answer it, for a problem of the library
    reference: str
    """"module:function", called as f(*tensors, scalars); returns a tuple: the new values of
    in-place tensors in input order, then the outputs. It must also run on float64 inputs."""
    cases: tuple[Case, ...]
    tolerance: Tolerance = field(default_factory=Tolerance)
    task: Task = "any"
    """`own`: the work must run in the candidate's own code; `any`: libraries may do it."""
    libraries: tuple[str, ...] = ()
    """Library work that an `own` problem allows by name, such as `matmul`."""
    check: str = ""
    """"module:function" of the problem's own check, for outputs with several right answers (ties
    in routing, codes): f(inputs, got, own, oracle, scalars) -> one OutputCheck per output. Without
    it, the tolerance decides."""
    text: str = ""
    """Source of the problem's file. If it is set, the reference and the check are looked up in it,
    and it runs in worker processes only."""
    model: ModelForm | None = None  # The model's form, for a file in KernelBench's format
    notes: tuple[str, ...] = ()
    """Changes to a file's problem that make it fit this machine: sizes, the mode."""
    fault: str = ""  # Reason why the judge refuses it; empty if it is fine

    @property
    def tiers(self) -> tuple[Tier, ...]:
        there = {case.tier for case in self.cases if not case.hidden}
        return tuple(tier for tier in LARGEST_FIRST if tier in there)

    def at(self, *tiers: Tier) -> Problem:
        """Return the problem with the first of `tiers` that it has, and all hidden cases.

        Raises KernelError: it has none of these tiers.
        """
        tier = next((one for one in tiers if one in self.tiers), None)
        if tier is None:
            has = f"it has {', '.join(self.tiers)}" if self.tiers else "all of its cases are hidden"
            asked = " or ".join(repr(one) for one in tiers)
            raise KernelError(f"problem {self.name!r} has no case of tier {asked}: {has}")
        kept = tuple(case for case in self.cases if case.tier == tier or case.hidden)
        return replace(self, cases=kept)

    def untimed(self) -> Problem:
        """The same problem, to be judged for its answers alone."""
        return replace(self, cases=tuple(replace(case, timed=False) for case in self.cases))

    def varied(self, case: Case) -> tuple[Case, ...]:
        """Return `case` with the values of each hidden case: its own sizes, dtypes and layouts, and
        for every real input the hidden case's distribution."""
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
        """Hex SHA-256 of the cases, the tolerance and the text of the reference's module."""
        named = () if self.text else (self.reference, self.check)
        texts = [reference_text(name) for name in named if name]
        content = [self.reference, *texts, self.as_json()]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def load_reference(self) -> Reference:
        """Return the reference function; a KernelError if the module or function is missing."""
        if (file := self._model_file()) is not None:
            return file.reference
        found: Reference = self._function(self.reference)
        return found

    def load_timed(self) -> Reference:
        """Return the reference as it is timed: a model alone, called like a `ModelNew`."""
        file = self._model_file()
        return self.load_reference() if file is None else file.timed()

    def is_same_in_modes(self, inputs: Sequence[Tensor]) -> bool:
        """Return whether a model answers these inputs alike in training and evaluation mode."""
        file = self._model_file()
        return file is not None and file.is_same_in_modes(inputs)

    def compile_reference(self) -> Reference:
        """Return the reference under torch.compile's default mode; the first call compiles."""
        import torch
        import torch._inductor.config

        torch._inductor.config.compile_threads = 1  # the judge must be able to stop the family
        if (file := self._model_file()) is not None:
            return file.compiled()
        compiled: Reference = torch.compile(self.load_reference())
        return compiled

    def _model_file(self) -> ModelFile | None:
        if self.model is None:
            return None
        from ratchet.judge.problems.model_file import model_of

        return model_of(self.text, self.model)

    def _function(self, name: str) -> Callable[..., Any]:
        if not self.text:
            return load_function(name)
        from ratchet.judge.problems.model_file import source_module

        found = getattr(source_module(self.text), name.rpartition(":")[2], None)
        if not callable(found):
            raise KernelError(
                f"the problem's file defines no function {name!r}: name one that it defines"
            )
        return found  # type: ignore[no-any-return]

    def build_inputs(
        self, case: Case, seed: int, device: torch.device | str = "cpu"
    ) -> list[Tensor]:
        """Draw the inputs of `case` on the device; there the same seed gives the same values."""
        if (file := self._model_file()) is not None:
            return file.draw(case, seed)
        from ratchet.judge.problems.inputs import build

        return build(case.inputs, seed, device)

    def as_json(self) -> dict[str, object]:
        """Return a JSON object; `from_json` makes an equal problem of it."""
        return asdict(self)

    @staticmethod
    def from_json(document: dict[str, object]) -> Problem:
        """Return the problem that `as_json` wrote; a KernelError for anything else."""
        try:
            return msgspec.convert(document, Problem)
        except msgspec.ValidationError as error:
            raise KernelError(f"this is not a problem's JSON ({error}): write it again") from error


def load_function(name: str) -> Callable[..., Any]:
    """Return the function of "module:function"; a KernelError if it is missing."""
    module_name, _, function = name.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module_name), function)
    except (ImportError, AttributeError) as error:
        raise KernelError(
            f"reference {name!r} cannot be loaded ({error}): give it as module:function"
        ) from error
    return found


def _with_values(spec: TensorSpec, other: TensorSpec) -> TensorSpec:
    """Return a spec with another's distribution, if both draw real numbers."""
    if spec.dtype != other.dtype or _kind(spec.distribution) != _kind(other.distribution):
        return spec
    return replace(spec, distribution=other.distribution, deviation=other.deviation)


def _kind(distribution: str) -> str:
    if distribution.startswith("from_file"):
        return "from_file"
    return distribution if distribution in ("uniform", "integers", "state") else "real"


def reference_text(reference: str) -> str:
    """Return the source of the module of "module:function"; a KernelError if there is none."""
    module_name, colon, function = reference.partition(":")
    if module_name == "__main__":
        raise KernelError(
            f"reference {reference!r} is in the running script or notebook, which no other process "
            "may run again: put it into a file of its own, and give ratchet.judge that file with "
            f"its PROBLEM, or the reference as MODULE:{function}"
        )
    if not colon:
        raise KernelError(
            f"reference {reference!r} names a function of the problem's own file, which is "
            "unknown here: give that file, the PROBLEM imported from it, or module:function"
        )
    try:
        spec = importlib.util.find_spec(module_name)
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        raise KernelError(
            f"reference {reference!r} names no module that can be found: give module:function"
        )
    text = _source_of(spec)
    if text is None:
        raise KernelError(
            f"reference {reference!r} names a module without Python source ({spec.origin}): call "
            "it from a function in a .py file, and name that function"
        )
    return text


def _source_of(spec: ModuleSpec) -> str | None:
    """Return the text of a module; None if it is compiled, or not valid in its encoding."""
    try:
        if isinstance(spec.loader, InspectLoader):
            return spec.loader.get_source(spec.name)
        if spec.origin is not None and spec.origin.endswith(".py"):  # such as pytest's own loader
            return importlib.util.decode_source(Path(spec.origin).read_bytes())
    except (ImportError, SyntaxError, OSError, UnicodeDecodeError):
        return None
    return None
