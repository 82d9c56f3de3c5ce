"""The problem of a region: a file in Ratchet's form, with a timed case and hidden ones."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from torch import Tensor
from torch.fx import Node

from ratchet.judge.abi import DTYPE_CODES
from ratchet.judge.problems.case import Case, TensorSpec
from ratchet.judge.problems.inputs import build
from ratchet.judge.problems.model_file import run_source
from ratchet.judge.problems.problem import Problem
from ratchet.judge.problems.tolerance import widen
from ratchet.train.graph.regions.cut import PRODUCTS, REDUCTIONS, Cut, op_name
from ratchet.train.graph.regions.form import RegionForm

PLAIN_SCALE = 32.0  # Largest standard deviation of values that a normal distribution stands for
LEAST_SCALE = 4.0**-4
"""Least standard deviation that values are drawn with: smaller ones are gradients, and a gradient
grows as a whole with the one it comes from."""
OFF_POWERS = 0.2
ZEROS = 0.01  # Share of zeros from which they count as a mask's, such as of a ReLU
SAMPLE = 1 << 16  # Elements that are looked at, evenly spread; integers are looked at in full


@dataclass(frozen=True, kw_only=True, slots=True)
class Values:
    """The known facts about one tensor's finite values."""

    low: float
    high: float
    deviation: float = 0.0
    zeros: float = 0.0  # Share of the values that are zero


def values_of_tensor(tensor: Tensor) -> Values | None:
    """Return the range and the spread of a tensor; None if it has no finite value or is complex."""
    if not tensor.numel() or tensor.is_complex():
        return None
    if not tensor.dtype.is_floating_point:
        flat = tensor.to(torch.int64)
        return Values(low=float(flat.min()), high=float(flat.max()))
    flat = tensor.reshape(-1)
    flat = flat[:: max(1, flat.numel() // SAMPLE)].float()
    flat = flat[torch.isfinite(flat)]
    if not flat.numel():
        return None
    return Values(
        low=float(flat.min()),
        high=float(flat.max()),
        deviation=float(flat.std(correction=0)),
        zeros=float((flat == 0).float().mean()),
    )


def spec_for(shape: tuple[int, ...], dtype: str, values: Values | None) -> TensorSpec:
    """Return a spec that draws values like the captured ones.

    Real values of both signs are drawn from a normal distribution, whose deviation is a power of 4,
    so that equal regions of two models are drawn alike; values of one sign, such as a saved 1/std,
    from the range they were in. Products of values that are all drawn around 1 would be far larger
    than in the step, and exp and tanh of large values take up to ten times as long as others.
    """
    integers = partial(TensorSpec, shape=shape, dtype=dtype, distribution="integers")
    if dtype == "bool":
        return integers(low=0.0, high=2.0)
    if not getattr(torch, dtype).is_floating_point:
        low, high = (values.low, values.high) if values else (0.0, 0.0)
        most = float(torch.iinfo(getattr(torch, dtype)).max) + 1.0  # exclusive bounds
        return integers(low=min(low, 0.0), high=min(high + 1.0, most))
    plain = TensorSpec(shape=shape, dtype=dtype)
    if values is None or values.low == values.high == 0:
        return plain
    if values.low < 0 < values.high and values.deviation <= PLAIN_SCALE:
        # The steps lie apart from powers of 2, which many weights are initialised with.
        bounded = min(16.0, max(LEAST_SCALE, values.deviation))
        return replace(plain, deviation=4.0 ** round(math.log(bounded, 4) + OFF_POWERS))
    if values.zeros > ZEROS:
        return plain
    return ranged(plain, values)


def ranged(spec: TensorSpec, values: Values | None) -> TensorSpec:
    """Return a spec of real numbers that draws evenly from the captured range, widened to powers
    of two; integers and unknown values are drawn as before."""
    if values is None or spec.distribution == "integers" or values.low == values.high == 0:
        return spec
    if values.low >= 0:
        low, high = _power(values.low, up=False), _power(values.high, up=True)
    elif values.high <= 0:
        low, high = -_power(-values.low, up=True), -_power(-values.high, up=False)
    else:
        high = max(_power(-values.low, up=True), _power(values.high, up=True))
        low = -high
    return replace(spec, distribution="uniform", low=low, high=high, deviation=1.0)


def _power(value: float, *, up: bool) -> float:
    """Return the next power of two above, or at most `value`; above is strictly above."""
    if value == 0:
        return 0.0
    exponent = math.floor(math.log2(value))
    return 2.0 ** (exponent + 1 if up else exponent)


Reference = Callable[..., tuple[Tensor, ...]]
Sound = Callable[[tuple[TensorSpec, ...]], bool]
"""Returns True if a case is fit to judge an answer by."""
SHOWN = 3  # Operations in a problem's name
HIDDEN_BATCHES = (1, 3)
VARIATIONS = (
    ("normal", "contiguous"),
    ("shifted", "contiguous"),
    ("heavy_tailed", "strided"),
    ("large", "contiguous"),
)
"""Distribution and layout of hidden cases, for the inputs that are drawn from `normal`.

Each input has a deviation of 1 in them: one that is small beside another in the step counts here.
"""
MOST_LOST = 0.05
"""Largest error of the reference against float64, in norm: beyond it a case says nothing."""
MOST_DIMENSIONS = 6  # Limit of a tensor in the interface of C++ kernels
SEED = 11


class Unfit(Exception):
    """A region that makes no problem, with the reason."""


def problem_of(
    cut: Cut, form: RegionForm, values: Mapping[Node, Values | None], batch: int
) -> Problem:
    """Return the region's problem; raise Unfit with the reason if there is none.

    `values` tells how each input was in the captured step, `batch` is its batch size.
    """
    _check_forms(cut, form)
    head = header(form)
    reference = run_source(f"{head}\n\n{form.reference}\n").reference
    is_sound = cache(partial(_is_sound, reference))
    specs = _fitting(is_sound, form, values, batch)
    name = name_of(cut, form)
    cases = [Case(name="captured", inputs=specs, timed=True)]
    cases += _hidden(is_sound, form, specs, batch)
    problem = Problem(name=name, reference="reference", cases=tuple(cases))
    return replace(problem, text=_file(head, form, problem))


def name_of(cut: Cut, form: RegionForm) -> str:
    """Return a name that is an identifier: the main operations and the start of the key."""
    counted = dict.fromkeys(op_name(node).strip("_") for node in cut.computing)
    heavy = (one for one in map(op_name, cut.computing) if one in PRODUCTS or one in REDUCTIONS)
    shown = [*dict.fromkeys(one.strip("_") for one in heavy)]
    shown += [one for one in counted if one not in shown and one != "convert_element_type"]
    words = "_".join(shown[:SHOWN]).removeprefix("scaled_dot_product_")
    return re.sub(r"\W", "_", f"{words or 'region'}_{form.key[:8]}")


def _check_forms(cut: Cut, form: RegionForm) -> None:
    for node in (*form.outputs, *(one.node for one in form.inputs)):
        value = node.meta["val"]
        dtype = str(value.dtype).removeprefix("torch.")
        if dtype not in DTYPE_CODES:
            raise Unfit(f"it has a tensor of dtype {dtype}")
        if value.dim() > MOST_DIMENSIONS:
            raise Unfit(f"it has a tensor of {value.dim()} dimensions, at most 6 are passed")
        if not value.numel():
            raise Unfit("it has an empty tensor")
    if not form.inputs:
        raise Unfit("it reads nothing")
    for node in cut.computing:
        if any(one.node in _read_for_their_shape(node) for one in form.inputs):
            raise Unfit("it reads a tensor for its shape alone")


def _read_for_their_shape(node: Node) -> list[object]:
    """Return the tensors of a convolution's gradient whose values no wanted gradient needs."""
    if op_name(node) != "convolution_backward":
        return []
    _, image, weight, *_, wanted = node.args
    assert isinstance(wanted, (list, tuple))
    return [one for one, needed in ((weight, wanted[0]), (image, wanted[1])) if not needed]


# Values


def _fitting(
    is_sound: Sound, form: RegionForm, values: Mapping[Node, Values | None], batch: int
) -> tuple[TensorSpec, ...]:
    """Return the inputs' specs: the first choice whose results are finite."""
    first = tuple(spec_for(one.shape, one.dtype, values.get(one.node)) for one in form.inputs)
    second = tuple(
        ranged(spec, values.get(one.node)) for spec, one in zip(first, form.inputs, strict=True)
    )
    for specs in dict.fromkeys((first, second)):
        small = resized(specs, form, batch, min(HIDDEN_BATCHES[1], batch)) or specs
        if is_sound(small) or is_sound(specs):
            return specs
    raise Unfit("its results are not finite, or rounding leaves nothing of them")


def resized(
    specs: Sequence[TensorSpec],
    form: RegionForm,
    batch: int,
    other: int,
    *,
    with_integers: bool = False,
) -> tuple[TensorSpec, ...] | None:
    """Return the inputs for another batch size; None if the region has none.

    `with_integers` also scales the range of integers, which may count rows of the batch.
    """
    if not form.scales:
        return None

    def scaled(spec: TensorSpec, factors: tuple[int | None, ...]) -> TensorSpec:
        pairs = zip(spec.shape, factors, strict=True)
        shape = tuple(size if times is None else times * other for size, times in pairs)
        high = spec.high
        if with_integers and spec.distribution == "integers" and high is not None:
            high = max(1.0, high * other // batch)
        return replace(spec, shape=shape, high=high)

    return tuple(scaled(spec, one.factors) for spec, one in zip(specs, form.inputs, strict=True))


def _is_sound(reference: Reference, specs: Sequence[TensorSpec]) -> bool:
    """Return whether the reference gives finite results that rounding does not swamp."""
    inputs = build(specs, SEED)
    try:
        with torch.no_grad():
            own = reference(*inputs, ())
            wide = reference(*(widen(one) for one in inputs), ())
    except (RuntimeError, IndexError):
        return False
    return all(map(_close, own, wide))


def _close(own: Tensor, wide: Tensor) -> bool:
    if not own.dtype.is_floating_point:
        return True
    exact = wide.double()
    if not bool(torch.isfinite(own).all()) or not bool(torch.isfinite(exact).all()):
        return False
    lost = torch.linalg.vector_norm(own.double() - exact)
    return bool(lost <= MOST_LOST * torch.linalg.vector_norm(exact))


def _hidden(
    is_sound: Sound, form: RegionForm, specs: tuple[TensorSpec, ...], batch: int
) -> Iterator[Case]:
    """Yield other batch sizes, then other distributions and layouts, where the reference holds."""
    smallest = specs
    for other in HIDDEN_BATCHES:
        for with_integers in (False, True):
            found = resized(specs, form, batch, other, with_integers=with_integers)
            if found is not None and other != batch and is_sound(found):
                smallest = found if smallest is specs else smallest
                yield Case(name=f"hidden batch {other}", inputs=found, hidden=True)
                break
    for distribution, layout in VARIATIONS:
        varied = tuple(
            replace(spec, distribution=distribution, layout=layout, deviation=1.0)
            if spec.distribution == "normal"
            else spec
            for spec in smallest
        )
        if varied != smallest and is_sound(varied):
            yield Case(name=f"hidden {distribution}, {layout}", inputs=varied, hidden=True)


# The file


def header(form: RegionForm) -> str:
    """Return the text above the reference."""
    used = [name for name in ("aten", "prims") if f"{name}." in form.reference]
    lines = ["from __future__ import annotations", "", "import torch"]
    if "prims" in used:
        import torch._prims

        names = re.findall(r"\bprims\.(\w+)", form.reference)
        known = all(hasattr(torch._prims, name) for name in names)
        home = "torch._prims" if known else "torch._inductor.inductor_prims"  # Inductor's own
        lines.append(f"import {home}  # registers torch.ops.prims")
    lines += ["", "from ratchet import Case, Problem, TensorSpec", ""]
    lines += [f"{name} = torch.ops.{name}" for name in used]
    return "\n".join(lines)


def _file(head: str, form: RegionForm, problem: Problem) -> str:
    cases = "\n".join(f"        {_case(case)}," for case in problem.cases)
    return (
        f'"""A region of a compiled training step, key {form.key}."""\n\n{head}\n\n\n'
        f"{form.reference}\n\n\n"
        f"PROBLEM = Problem(\n    name={problem.name!r},\n    reference={problem.reference!r},\n"
        f"    cases=(\n{cases}\n    ),\n)\n"
    )


def _case(case: Case) -> str:
    inputs = "\n".join(f"                {_spec(spec)}," for spec in case.inputs)
    flag = "timed" if case.timed else "hidden"
    return (
        f"Case(\n            name={case.name!r},\n            {flag}=True,\n"
        f"            inputs=(\n{inputs}\n            ),\n        )"
    )


def _spec(spec: TensorSpec) -> str:
    parts = [f"shape={spec.shape!r}", f"dtype={spec.dtype!r}"]
    if spec.distribution != "normal":
        parts.append(f"distribution={spec.distribution!r}")
    if spec.deviation != 1.0:
        parts.append(f"deviation={spec.deviation!r}")
    if spec.layout != "contiguous":
        parts.append(f"layout={spec.layout!r}")
    if spec.low is not None:
        parts.append(f"low={spec.low!r}, high={spec.high!r}")
    return f"TensorSpec({', '.join(parts)})"
