"""Find the first module and op at which two sides differ by more than their dtype explains.

Four runs of the same first batches are compared: both sides; an oracle, which is side A's code in
fp64; and for each side a baseline, which is side A's code, eager, in that side's own precision. A
tensor of a side diverges if its error against the oracle exceeds what `judge.steps.numerics` allows
a candidate over its baseline, on two batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from safetensors.numpy import save_file

from ratchet.base import Json
from ratchet.base.errors import GuardError, RatchetError
from ratchet.guard.compare.workloads import WorkloadSide
from ratchet.guard.numerics.recorder import FACTORY, OF_OUTPUT
from ratchet.judge.steps.arms import ArmProcess
from ratchet.judge.steps.numerics import FP32_FLOOR, GradientFile, ParameterCheck, judge_gradients

Part = Literal["weights", "forward", "loss", "backward", "parameters", "losses"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DivergentOp:
    """The first op inside a module that computes something else."""

    op: str
    index: int  # Its place among the module's ops
    expected: str  # The baseline's op at this place; empty if the baseline has no more ops
    error: float | None
    """Relative to the baseline's output; None where the two ops are not the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NonFiniteOp:
    """The first op that made a NaN, or an infinity out of finite numbers."""

    side: str
    op: str
    kind: str
    module: str
    part: str
    step: int
    inputs: tuple[str, ...]
    place: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Divergence:
    """The first place where a side leaves what its dtype explains."""

    side: str  # `A` or `B`
    part: Part
    module: str  # Name in the model; a parameter's or a step's where the part says so
    kind: str  # Class of the module
    error: float  # Norm of the difference from the oracle's tensor, over the norm of that tensor
    allowed_error: float  # The largest error that the side's dtype explains
    baseline_error: float  # The error of side A's code, eager, in the side's dtype
    scale: float  # Size along the oracle's tensor, relative, minus one: 0.01 is 1 % too large
    detail: str
    op: DivergentOp | None = None
    between: tuple[str, ...] = ()
    """The two places between which a gradient goes wrong in the module's own code; empty if its
    input's gradient is what goes wrong."""

    @property
    def owner(self) -> str:
        """Return the name of the module whose output, gradient or parameter this is."""
        return owner_of(self.module, self.part)


def owner_of(name: str, part: Part) -> str:
    """Return the module of a recorded name: `layer#1` is a second call, `layer.weight` its own."""
    module = name.partition("#")[0].removesuffix(OF_OUTPUT)
    return module.rpartition(".")[0] or module if part == "parameters" else module


@dataclass(frozen=True, kw_only=True, slots=True)
class NumericsResult:
    titles: tuple[str, str]
    divergence: Divergence | None
    not_finite: NonFiniteOp | None
    oracle: str  # `fp64`, or `fp32` where the model cannot run in fp64
    compared: int  # Number of tensors that were compared
    losses: tuple[tuple[float, ...], tuple[float, ...]]  # Loss of each step, of A and B
    largest: tuple[tuple[str, float], ...] = ()
    """The modules whose output errs most in B, each with its error against the oracle."""
    warnings: tuple[str, ...] = ()
    folder: str = ""  # Where the script that reproduces it lies; empty if there is none
    reproduces: bool | None = None  # True if the script was seen to reproduce it
    turn: str = ""
    extra: dict[str, object] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        return 1 if self.divergence is not None or self.not_finite is not None else 0

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "exit_code": self.exit_code}


BATCHES = 2  # A divergence must show on each: one tensor of hundreds may be off by chance
LOSS_STEPS = 8
LOSS_FACTOR = 4.0
"""Factor by which a loss may be farther from the oracle than the baseline's worst so far."""
MOST_LARGEST = 5
EPSILON = {"fp32": 2.0**-23, "bf16_autocast": 2.0**-8, "bf16_master": 2.0**-8}
OP_FACTOR = 8.0
PARTS: tuple[Literal["forward", "backward", "parameters"], ...] = (
    "forward",
    "backward",
    "parameters",
)
EXACT: Mapping[str, Json] = {"precision": "fp32", "compile_mode": None}


class Recording(Protocol):
    """A recorder, in a process of its own or in this one."""

    def call(self, method: str, **arguments: object) -> Json: ...


OpenRecorder = Callable[[str, Mapping[str, Json], WorkloadSide], AbstractContextManager[Recording]]


def recorder_process(
    name: str, arguments: Mapping[str, object], side: WorkloadSide
) -> AbstractContextManager[Recording]:
    """Start a recorder in a process of its own."""
    return ArmProcess(side.spec(name, FACTORY, arguments))


@dataclass(frozen=True, kw_only=True, slots=True)
class _RecordedRun:
    folder: Path
    said: Mapping[str, Json]
    arguments: Mapping[str, Json]
    losses: tuple[float, ...]

    def file(self, part: str, index: int) -> Path:
        return self.folder / f"{part}-{index}.safetensors"


class Finder:
    """Compares the numerics of two sides; files go to `folder`."""

    def __init__(
        self,
        a: WorkloadSide,
        b: WorkloadSide,
        folder: Path,
        *,
        steps: int = LOSS_STEPS,
        open_recorder: OpenRecorder = recorder_process,
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._sides = {"A": a, "B": b}
        self._folder, self._steps = folder, steps
        self._open, self._on = open_recorder, on_progress
        self.oracle_dtype = "fp64"
        self.compared = 0
        self.warnings: list[str] = []

    def find(self) -> NumericsResult:
        """Record all runs and compare them; GuardError if the sides are not the same model."""
        runs = {name: self._record(name, self._arguments(name)) for name in self._sides}
        report = NumericsResult(
            titles=(self._sides["A"].title, self._sides["B"].title),
            divergence=None,
            not_finite=None,
            oracle=self.oracle_dtype,
            compared=0,
            losses=(runs["A"].losses, runs["B"].losses),
        )
        broken = self._not_finite(runs)
        if broken is not None:
            return replace(report, not_finite=broken)
        weights = _different_weights(runs["A"], runs["B"])
        if weights is not None:
            return replace(report, divergence=weights)
        oracle = self._oracle()
        found: Divergence | None = None
        for name in runs:
            base = self._baseline(name, runs)
            if base is runs[name]:
                continue
            found = self._tensors(name, runs[name], base, oracle)
            found = found or _loss_curve(name, runs[name], base, oracle)
            if found is not None:
                found = self._with_op(found, runs[name], base)
                break
        return replace(
            report,
            divergence=found,
            oracle=self.oracle_dtype,
            compared=self.compared,
            largest=_largest(runs["B"], oracle),
            warnings=tuple(self.warnings),
        )

    def recorder(self, name: str) -> AbstractContextManager[Recording]:
        """Open the recorder of a side (A, B) or of the code that a side is held against (base)."""
        return self._opened(name, self._arguments(name))

    def side(self, name: str) -> WorkloadSide:
        """Return a side, or A, whose code the oracle and the baselines run."""
        return self._sides.get(name, self._sides["A"])

    def _arguments(self, name: str) -> dict[str, Json]:
        return {**self.side(name).arguments(), "double": False}

    def _opened(
        self, name: str, arguments: Mapping[str, Json]
    ) -> AbstractContextManager[Recording]:
        return self._open(name, arguments, self.side(name))

    def _record(self, name: str, arguments: Mapping[str, Json]) -> _RecordedRun:
        self._on(f"recording {name}")
        folder = self._folder / name
        with self._opened(name, arguments) as arm:
            said = arm.call("record", folder=str(folder), batches=BATCHES)
            if not said["forward"]:
                title = self.side(name).title
                raise GuardError(f"{title}: no module's output was seen, so none is compared")
            losses = tuple(float(one) for one in arm.call("losses", steps=self._steps))
        return _RecordedRun(folder=folder, said=said, arguments=arguments, losses=losses)

    def _oracle(self) -> _RecordedRun:
        plain = {**self._arguments("A"), "changes": dict(EXACT), "recipe": None}
        plain["options"]["device"] = "cpu"
        try:
            return self._record("oracle", {**plain, "double": True})
        except RatchetError as error:
            self.oracle_dtype = "fp32"
            self.warnings.append(f"the reference is fp32, as fp64 fails: {error}")
            return self._record("oracle", plain)

    def _baseline(self, name: str, runs: Mapping[str, _RecordedRun]) -> _RecordedRun:
        """Return A's code, eager, in the precision of a side: a run of its own, or a side."""
        precision = runs[name].said["precision"]
        for other in runs:
            same = runs[other].said["precision"] == precision and runs[other].said["eager"]
            side, first = self._sides[other], self._sides["A"]
            as_a = (side.workload, side.options) == (first.workload, first.options)
            if same and side.recipe is None and (other == "A" or as_a):
                return runs[other]
        changes = {"precision": precision, "compile_mode": None}
        arguments = {**self._arguments("A"), "changes": changes, "recipe": None}
        return self._record(f"baseline of {name}", arguments)

    def _tensors(
        self, name: str, run: _RecordedRun, base: _RecordedRun, oracle: _RecordedRun
    ) -> Divergence | None:
        for part in PARTS:
            wrong: list[dict[str, ParameterCheck]] = []
            for index in range(BATCHES):
                files = [one.file(part, index) for one in (oracle, base, run)]
                checks = _checks(files, self._folder / "common", own_scale=part == "forward")
                self.compared += len(checks) if index == 0 else 0
                wrong.append({one.name: one for one in checks if one.ratio > 1})
            both = [one for one in wrong[0] if all(one in other for other in wrong)]
            if both:
                order = list(run.said.get(part) or reversed(wrong[0]))
                first = min(both, key=lambda one: order.index(one) if one in order else 0)
                return _placed(name, part, wrong[0][first], order, run.said)
        return None

    def _not_finite(self, runs: Mapping[str, _RecordedRun]) -> NonFiniteOp | None:
        for name in runs:
            finite = all(map(math.isfinite, runs[name].losses))
            if finite and not any(part != "forward" for part, _ in runs[name].said["not_finite"]):
                continue
            self._on(f"looking for the first NaN of {name}")
            arguments = dict(runs[name].arguments)
            if not runs[name].said["eager"]:
                # Only eager ops can be watched.
                arguments["changes"] = {**arguments["changes"], "compile_mode": None}
            with self._opened(name, arguments) as arm:
                found = arm.call("hunt", steps=self._steps)
            if found is None:
                found = {"op": "", "kind": "NaN", "module": "", "part": "compiled code",
                         "step": 0, "inputs": [], "place": ""}  # fmt: skip
            return NonFiniteOp(side=name, **{**found, "inputs": tuple(found["inputs"])})
        return None

    def _with_op(self, found: Divergence, run: _RecordedRun, base: _RecordedRun) -> Divergence:
        """Add the first op inside the module, where both sides run one op after the other."""
        if found.part not in ("forward", "backward") or not run.said["eager"]:
            return found
        self._on(f"looking at the ops of {found.module}")
        ops = []
        for one in (base, run):
            path, backward = one.folder / "ops.safetensors", found.part == "backward"
            with self._opened(one.folder.name, one.arguments) as arm:
                names = arm.call("ops", path=str(path), module=found.owner, backward=backward)
            ops.append((list(names), path))
        precision = str(run.said["precision"])
        limit = max(FP32_FLOOR, OP_FACTOR * EPSILON.get(precision, 0.0))
        return replace(found, op=first_op(ops[0], ops[1], limit))


def _loss_curve(
    name: str, run: _RecordedRun, base: _RecordedRun, oracle: _RecordedRun
) -> Divergence | None:
    exact, usual, new = oracle.losses, base.losses, run.losses
    step = first_wrong_loss(exact, usual, new)
    if step is None:
        return None
    error = abs(new[step] - exact[step]) / (abs(exact[step]) or 1.0)
    usual_error = abs(usual[step] - exact[step]) / (abs(exact[step]) or 1.0)
    return Divergence(
        side=name,
        part="losses",
        module=f"step {step}",
        kind="loss",
        error=error,
        allowed_error=_allowed_loss(exact, usual, step) / (abs(exact[step]) or 1.0),
        baseline_error=usual_error,
        scale=0.0,
        detail="the first step's gradients agree, and the losses that follow do not: "
        "look at the optimizer's update",
    )


def first_op(
    base: tuple[list[str], Path], new: tuple[list[str], Path], limit: float
) -> DivergentOp | None:
    """Return the first op that differs in its name, its shape or its output."""
    (expected, base_path), (names, new_path) = base, new
    if not names:
        return None
    before, after = GradientFile(base_path), GradientFile(new_path)
    for index, op in enumerate(names):
        other = expected[index] if index < len(expected) else ""
        if op != other:
            return DivergentOp(op=op, index=index, expected=other, error=None)
        key = f"{index:06d}"
        one, two = before.read(key), after.read(key)
        if one.shape != two.shape:
            return DivergentOp(op=op, index=index, expected=other, error=None)
        finite = np.isfinite(one) & np.isfinite(two)
        norm = float(np.linalg.norm(one[finite]))
        error = float(np.linalg.norm((two - one)[finite])) / (norm or 1.0)
        if error > limit:
            return DivergentOp(op=op, index=index, expected=other, error=error)
    return None


def first_wrong_loss(
    exact: Sequence[float], usual: Sequence[float], new: Sequence[float]
) -> int | None:
    """Return the first step whose loss is farther from the oracle than the dtype explains."""
    for step, value in enumerate(new):
        if abs(value - exact[step]) > _allowed_loss(exact, usual, step):
            return step
    return None


def _allowed_loss(exact: Sequence[float], usual: Sequence[float], step: int) -> float:
    worst = max(abs(one - two) for one, two in zip(usual[: step + 1], exact, strict=False))
    # Rounding differences of honest fp32 steps grow from update to update.
    return max(LOSS_FACTOR * worst, FP32_FLOOR * (step + 1) * abs(exact[step]))


def _checks(files: Sequence[Path], scratch: Path, *, own_scale: bool) -> list[ParameterCheck]:
    """Judge the tensors that oracle, baseline and side all have; those with other shapes fail.

    With `own_scale`, each is divided by its norm in the oracle. The judge grants every tensor an
    absolute error in units of all of them, which would hide errors of small activations.
    """
    opened = [GradientFile(path) for path in files]
    names = sorted(set.intersection(*(set(one.entries) for one in opened)))
    names = [one for one in names if all(np.isfinite(x.read(one)).all() for x in opened[:2])]
    if not names:
        return []
    scales = {name: float(np.linalg.norm(opened[0].read(name))) if own_scale else 1.0
              for name in names}  # fmt: skip
    scratch.mkdir(exist_ok=True)
    made = [scratch / f"{at}.safetensors" for at in range(3)]
    for path, one in zip(made, opened, strict=True):
        scaled = {
            name: (one.read(name) / (scales[name] or 1.0)).reshape(one.entries[name].shape)
            for name in names
        }
        save_file(scaled, path)
    reference, baseline, candidate = made
    return list(judge_gradients(reference, baseline, candidate).parameters)


def _placed(
    side: str, part: Part, check: ParameterCheck, order: Sequence[str], said: Mapping[str, Json]
) -> Divergence:
    """Return the divergence of a tensor, at the module whose code makes it.

    The gradient of a module's output is made by the code that uses the output: it lies in the
    module that called it, between it and what was right before. The gradient of the model's own
    output is made by the loss.
    """
    module = check.name
    between: tuple[str, ...] = ()
    if part == "backward" and OF_OUTPUT in check.name:
        child = owner_of(check.name, part)
        module = said["callers"][child]
        if not module:
            part, module = "loss", "the loss"
        else:
            before = [owner_of(one, part) for one in order[: order.index(check.name)]
                      if OF_OUTPUT not in one]  # fmt: skip
            beside = [one for one in before if said["callers"].get(one) == module]
            outside = "its output" if f"{module}{OF_OUTPUT}" in order else "the loss"
            between = (beside[-1] if beside else outside, child)
    return Divergence(
        side=side,
        part=part,
        module=module,
        kind=said["modules"].get(owner_of(module, part), ""),
        error=check.error,
        allowed_error=check.allowed_error,
        baseline_error=check.baseline_error,
        scale=check.scale,
        detail=check.problem or "",
        between=between,
    )


def _different_weights(a: _RecordedRun, b: _RecordedRun) -> Divergence | None:
    """Return the first parameter that the two sides begin with differently."""
    first, second = a.said["weights"], b.said["weights"]
    shared = [name for name in first if name in second]
    fewer = min(len(first), len(second))
    if 2 * len(shared) <= fewer or not {*a.said["forward"]} & {*b.said["forward"]}:
        raise GuardError(
            f"the two sides share {len(shared)} of {fewer} parameters by name: --numerics compares "
            "two versions of one model"
        )
    for name in first:
        if second.get(name) != first[name]:
            nan = math.nan
            return Divergence(
                side="B", part="weights", module=name,
                kind=a.said["modules"].get(name.rpartition(".")[0], ""),
                error=nan, allowed_error=0.0, baseline_error=0.0, scale=nan,
                detail="the initial weights differ" if name in second else "B has no such weight",
            )  # fmt: skip
    return None


def _largest(run: _RecordedRun, oracle: _RecordedRun) -> tuple[tuple[str, float], ...]:
    """Return the modules whose output errs most against the oracle."""
    exact, new = (GradientFile(one.file("forward", 0)) for one in (oracle, run))
    errors: list[tuple[str, float]] = []
    for name in run.said["forward"]:
        if name in exact.entries and exact.entries[name].shape == new.entries[name].shape:
            one, two = exact.read(name), new.read(name)
            norm = float(np.linalg.norm(one))
            if norm and np.isfinite(two).all() and np.isfinite(one).all():
                errors.append((name, float(np.linalg.norm(two - one)) / norm))
    return tuple(sorted(errors, key=lambda one: -one[1])[:MOST_LARGEST])
