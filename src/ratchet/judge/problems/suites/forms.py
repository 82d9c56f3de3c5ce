"""Forms: a suite's problem built from sizes for each tier, hidden variations and gradients."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import Tensor

from ratchet.base.errors import KernelError
from ratchet.judge.problems.problem import Case, Problem, Task, TensorSpec, Tier
from ratchet.judge.problems.tolerance import Tolerance

Make = Callable[..., tuple[TensorSpec, ...]]
"""(*sizes) -> the inputs of the forward, drawn from `normal` and contiguous."""
TIERS: Final[tuple[Tier, ...]] = ("ci", "cpu", "gpu")
VARIATIONS: Final = (
    ("shifted", "contiguous"),
    ("heavy_tailed", "strided"),
    ("outliers", "contiguous"),
    ("tiny", "transposed"),
    ("large", "contiguous"),
)
"""Distribution and layout of the hidden cases."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """One computation: its reference, its inputs and its sizes at each tier."""

    name: str
    module: str  # The family's module, which defines a function of that name
    function: str = ""  # The function in the module, if it has another name
    make: Make
    sizes: Mapping[Tier, tuple[int, ...]]
    ragged: tuple[int, ...]
    """Sizes of the hidden cases, which divide evenly into no vectors or threads."""
    scalars: tuple[float, ...] = ()
    task: Task = "own"
    libraries: tuple[str, ...] = ()
    tolerance: Tolerance = field(default_factory=Tolerance)
    check: str = ""
    variations: tuple[tuple[str, str], ...] = VARIATIONS
    varied: tuple[int, ...] = (0,)  # Inputs whose distribution and layout the hidden cases change


def problem(form: Form) -> Problem:
    """Return the form's problem: one timed case per tier, and hidden cases."""
    cases = [
        Case(
            name=tier,
            inputs=form.make(*form.sizes[tier]),
            scalars=form.scalars,
            timed=True,
            tier=tier,
        )
        for tier in TIERS
    ]
    ragged = form.make(*form.ragged)
    cases.append(Case(name="hidden ragged", inputs=ragged, scalars=form.scalars, hidden=True))
    for distribution, layout in form.variations:
        cases.append(
            Case(
                name=f"hidden {distribution}, {layout}",
                inputs=_varied(ragged, form.varied, distribution, layout),
                scalars=form.scalars,
                hidden=True,
            )
        )
    return Problem(
        name=form.name,
        reference=f"{form.module}:{form.function or form.name}",
        cases=tuple(cases),
        tolerance=form.tolerance,
        task=form.task,
        libraries=form.libraries,
        check=form.check,
    )


def backward(form: Form, *, outputs: Make | None = None, kept: Sequence[int] | None = None) -> Form:
    """Return the gradient's form: the incoming gradients come before the forward's inputs.

    `outputs` returns the specs of the forward's outputs (*sizes -> specs), which the incoming
    gradients share; by default there is one, like the first input. `kept` names the forward's
    inputs that the gradient depends on (default: all).
    """

    def incoming(*sizes: int) -> tuple[TensorSpec, ...]:
        return form.make(*sizes)[:1] if outputs is None else outputs(*sizes)

    def make(*sizes: int) -> tuple[TensorSpec, ...]:
        given = form.make(*sizes)
        return (*incoming(*sizes), *(given if kept is None else [given[place] for place in kept]))

    count = len(incoming(*form.ragged))
    return replace(
        form,
        name=f"{form.name}_backward",
        make=make,
        varied=(0,) if kept is not None else tuple(place + count for place in form.varied),
        check="",
    )


def paired(
    forms: Iterable[Form], *, outputs: Make | None = None, kept: Sequence[int] | None = None
) -> list[Form]:
    """Return each form, followed by its gradient's."""
    pairs = ((form, backward(form, outputs=outputs, kept=kept)) for form in forms)
    return [one for pair in pairs for one in pair]


def in_bfloat16(form: Form, *, keep: Sequence[int] = ()) -> Form:
    """Return the same computation in bf16, as a problem of its own, `name_bf16`.

    Inputs in fp32 become bf16, except those at the positions `keep`, such as the gradient of a
    loss. The reference is the same function: torch sums bf16 inputs in fp32, and a loss is computed
    in fp32 from bf16 logits.
    """

    def make(*given: int) -> tuple[TensorSpec, ...]:
        return tuple(
            replace(spec, dtype="bfloat16")
            if spec.dtype == "float32" and place not in keep
            else spec
            for place, spec in enumerate(form.make(*given))
        )

    forward = form.name.removesuffix("_backward")
    ending = form.name.removeprefix(forward)
    return replace(form, name=f"{forward}_bf16{ending}", function=form.name, make=make)


def _varied(
    specs: tuple[TensorSpec, ...], places: tuple[int, ...], distribution: str, layout: str
) -> tuple[TensorSpec, ...]:
    varied = list(specs)
    for place in places:
        own = specs[place]
        kept = own.layout if own.in_place else layout
        varied[place] = replace(own, distribution=distribution, layout=kept)
    return tuple(varied)


def real(*shape: int, dtype: str = "float32", **more: Any) -> TensorSpec:
    return TensorSpec(shape=shape, dtype=dtype, **more)


def uniform(*shape: int, low: float, high: float, **more: Any) -> TensorSpec:
    """Return an fp32 input of real numbers from `low` to below `high`."""
    return real(*shape, distribution="uniform", low=low, high=high, **more)


def whole(*shape: int, below: int, low: int = 0, dtype: str = "int64") -> TensorSpec:
    """Return an input of integers from `low` to below `below`."""
    return real(*shape, dtype=dtype, distribution="integers", low=float(low), high=float(below))


def sizes(
    ci: tuple[int, ...], cpu: tuple[int, ...], gpu: tuple[int, ...]
) -> dict[Tier, tuple[int, ...]]:
    return {"ci": ci, "cpu": cpu, "gpu": gpu}


# Gradients of a reference by torch's autograd: the rival that a training step runs.

Forward = Callable[..., tuple[Tensor, ...]]


def gradient_of(forward: Forward, *, inputs: Sequence[int], outputs: int = 1) -> Forward:
    """Return the backward of a reference: f(*incoming, *tensors, scalars) -> gradients.

    `incoming` are the gradients of the forward's first `outputs` outputs, with those outputs'
    shapes and dtypes; `tensors` are all of the forward's inputs. The result holds the gradients of
    the inputs at the positions `inputs`, in that order. Further outputs have no incoming gradient.
    Raises KernelError: at a call, if a position is not a real-valued input of the forward.
    """

    def gradient(*given: Tensor | Sequence[float]) -> tuple[Tensor, ...]:
        *tensors, scalars = given
        incoming, own = tensors[:outputs], list(tensors[outputs:])
        _check(own, inputs)
        with torch.enable_grad():
            for place in inputs:
                own[place] = own[place].detach().requires_grad_()  # type: ignore[union-attr]
            answers = forward(*own, scalars)[:outputs]
            wanted = [own[place] for place in inputs]
            return torch.autograd.grad(answers, wanted, incoming)  # type: ignore[arg-type]

    gradient.__signature__ = _signature(forward, outputs)  # type: ignore[attr-defined]
    return gradient


def _signature(forward: Forward, outputs: int) -> inspect.Signature:
    """The forward's names, after those of the incoming gradients."""
    names = ["grad"] if outputs == 1 else [f"grad_{place}" for place in range(outputs)]
    plain = inspect.Parameter.POSITIONAL_OR_KEYWORD
    incoming = [inspect.Parameter(name, plain) for name in names]
    own = inspect.signature(forward).parameters.values()
    return inspect.Signature([*incoming, *(one for one in own if one.name not in names)])


def _check(own: Sequence[Tensor | Sequence[float]], inputs: Sequence[int]) -> None:
    for place in inputs:
        if not 0 <= place < len(own):
            raise KernelError(
                f"gradient_of: there is no input {place} after the incoming gradients, only "
                f"{len(own)} inputs: give the gradients of the outputs first, then every input"
            )
        if not own[place].is_floating_point():  # type: ignore[union-attr]
            raise KernelError(
                f"gradient_of: input {place} is not real, so it has no gradient: leave it out"
            )


def wide(x: Tensor) -> Tensor:
    """Return bf16 as fp32; float64 stays float64."""
    return x if x.dtype == torch.float64 else x.float()


Tensors = Sequence[Tensor]
Scalars = Sequence[float]  # The type of every reference's last argument
