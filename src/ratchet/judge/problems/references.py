"""The arithmetic of a call, counted as torch's FlopCounterMode does it and without its import.

Its first call imports torch._dynamo, which takes longer than torch itself.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop, sdpa_flop

from ratchet.judge.problems.case import LONG_SUM, STATED_SUM
from ratchet.judge.problems.inputs import build, dtype_named
from ratchet.judge.problems.problem import Case, Problem, Reference, TensorSpec
from ratchet.judge.problems.tolerance import coded, same_bits


def forward_flops(query: Any, key: Any, value: Any, *args: Any, out_val: Any, **kw: Any) -> int:
    """Return the operations of fused attention; shapes are [batch, heads, length, size]."""
    return int(sdpa_flop(query.shape, _with_heads_of(query, key), _with_heads_of(query, value)))


def backward_flops(
    grad: Any, query: Any, key: Any, value: Any, *args: Any, out_val: Any, **kw: Any
) -> int:
    groups = _with_heads_of(query, key), _with_heads_of(query, value)
    return int(sdpa_backward_flop(grad.shape, query.shape, *groups))


def _with_heads_of(query: Any, tensor: Any) -> tuple[int, ...]:
    """Return the shape of keys or values with the query's heads: torch 2.11 counts no groups."""
    return (tensor.shape[0], query.shape[1], *tensor.shape[2:])


aten = torch.ops.aten
ATTENTION: Final[dict[Any, Any]] = {
    aten._scaled_dot_product_flash_attention: forward_flops,
    aten._scaled_dot_product_flash_attention_backward: backward_flops,
    aten._scaled_dot_product_efficient_attention: forward_flops,
    aten._scaled_dot_product_efficient_attention_backward: backward_flops,
    aten._scaled_dot_product_cudnn_attention: forward_flops,
    aten._scaled_dot_product_cudnn_attention_backward: backward_flops,
}
"""Formulas for the fused attention of GPUs, whose heads may have groups."""


class FlopCount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the operations of products and convolutions in what runs under it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0.0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, so dynamo need not be told to look away

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Run an operator, or what it is composed of, and count it."""
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):  # torch's operators of higher order
            return func(*args, **kwargs)
        packet = func._overloadpacket
        formula = ATTENTION.get(packet) or flop_registry.get(packet)
        if formula is None and func.namespace == "aten":
            with self:
                composed = func.decompose(*args, **kwargs)
            if composed is not NotImplemented:
                return composed
        output = func(*args, **kwargs)
        if formula is not None:
            self.total += float(formula(*args, **kwargs, out_val=output))
        return output


NARROW: Final = {"bfloat16": "bf16", "float16": "fp16"}
"""Dtypes of inputs whose products run at a higher rate, by the catalogue's names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeastWork:
    """The work that one call cannot do without."""

    flops: float  # Operations of products and convolutions; a multiply-add counts as two
    size_bytes: int  # Bytes of the inputs, read once, and of the outputs, written once
    dtype: str
    """The catalogue's name of the narrowest float among the inputs: `bf16`, `fp16` or `fp32`."""


def least_work(
    problem: Problem, inputs: Sequence[TensorSpec], scalars: tuple[float, ...] = ()
) -> LeastWork:
    """Count what the reference does on inputs of these shapes, on tensors without values.

    Raises what the reference raises on such tensors, as where it reads values.
    """
    reference = problem.load_reference()
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True), FlopCount() as counted:
        given = [torch.empty(one.shape, dtype=dtype_named(one.dtype)) for one in inputs]
        read_bytes = sum(map(_bytes, given))
        outputs = reference(*given, scalars)
        moved_bytes = read_bytes + sum(map(_bytes, outputs))
    narrow = [NARROW[one.dtype] for one in inputs if one.dtype in NARROW]
    return LeastWork(
        flops=counted.total, size_bytes=moved_bytes, dtype=narrow[0] if narrow else "fp32"
    )


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


# Check that an answer depends on every input: a kernel need not read one without effect.

Draw = Callable[[Case, int], list[Tensor]]
FIRST, OTHERS = 5, (6, 7)
"""Number of seeds: an input may be drawn equal once, or change nothing once."""
FIXED: Final = ("zeros", "ones")  # Distributions that always give the same values


def inert_input(
    reference: Reference, cases: Iterable[Case], draw: Draw, *, first: int = 0
) -> int | None:
    """Return the first input from position `first` on that changes no output of any case, or None.

    Tensors that are changed in place are exempt, since they may only be written. An input without
    effect on one case (a factor of zeros) may have one on the next, so cases are drawn until every
    input has shown an effect.
    """
    suspects: set[int] | None = None
    tried: set[int] = set()
    for case in cases:
        if suspects is None:
            rest = enumerate(case.inputs[first:], first)
            suspects = {index for index, spec in rest if not spec.in_place}
        if any(case.inputs[index].distribution not in FIXED for index in suspects):
            varied, effective = _effects(reference, case, draw, suspects)
            tried |= varied
            suspects -= effective
    return min((suspects or set()) & tried, default=None)


def _effects(
    reference: Reference, case: Case, draw: Draw, suspects: set[int]
) -> tuple[set[int], set[int]]:
    """Return the suspects that drew other values, and those of them that changed an output."""

    def outputs(tensors: Sequence[Tensor]) -> list[Tensor]:
        return [one.clone() for one in reference(*(t.clone() for t in tensors), case.scalars)]

    start = draw(case, FIRST)
    before = outputs(start)
    varied: set[int] = set()
    effective: set[int] = set()
    for seed in OTHERS:
        if suspects <= effective:
            break
        others = draw(case, seed)
        for index in sorted(suspects - effective):
            if _same(others[index], start[index]):
                continue
            varied.add(index)
            after = outputs([*start[:index], others[index], *start[index + 1 :]])
            if len(before) != len(after) or not all(map(_same, before, after)):
                effective.add(index)
    return varied, effective


def _same(one: Tensor, other: Tensor) -> bool:
    if coded(one.dtype):
        return same_bits(one, other)
    return torch.equal(one.nan_to_num(), other.nan_to_num())


# A hidden case with a long sum, for problems in half precision that state short ones.
#
# A sum of two blocks in half precision is as good as one in float32. Over many blocks it is not.
# So a dimension over which the reference sums is made longer: one whose growth in two inputs
# leaves every output's shape as it was.

HALF: Final = ("float16", "bfloat16")
LENGTH: Final = 4096
MOST_ELEMENTS: Final = 2 << 20  # Elements of the inputs of such a case: it may be emulated


def with_long_sum(problem: Problem) -> Problem:
    """Return the problem with such a case, if it has a sum in half precision that is shorter.

    Call it where the problem's file may run.
    """
    visible = [case for case in problem.cases if not case.hidden]
    halves = [case for case in visible if any(one.dtype in HALF for one in case.inputs)]
    if problem.check or not halves or any(one.in_place for one in halves[0].inputs):
        return problem
    smallest = min(halves, key=lambda case: sum(math.prod(one.shape) for one in case.inputs))
    found = _longer(problem.load_reference(), smallest)
    if found is None:
        return problem
    sizes = [max(one.shape, default=0) for case in halves for one in case.inputs]
    name = STATED_SUM if max(sizes) >= LENGTH else LONG_SUM
    return replace(problem, cases=(*problem.cases, replace(found, name=name)))


def _longer(reference: Reference, case: Case) -> Case | None:
    """Return the case with a longer sum; None if no dimension of two inputs is one."""
    shapes = _shapes(reference, case, case.inputs)
    places = [
        (at, dimension)
        for at, spec in enumerate(case.inputs)
        if spec.dtype in HALF
        for dimension in range(len(spec.shape))
    ]
    for one, other in itertools.combinations(places, 2):
        length = case.inputs[one[0]].shape[one[1]]
        same = case.inputs[other[0]].shape[other[1]] == length
        if one[0] == other[0] or not same or not 1 < length < LENGTH:
            continue
        inputs = list(case.inputs)
        for at, dimension in (one, other):
            inputs[at] = _with_length(inputs[at], dimension, length * -(-LENGTH // length))
        if sum(math.prod(one.shape) for one in inputs) > MOST_ELEMENTS:
            continue
        if shapes is not None and _shapes(reference, case, inputs) == shapes:
            return replace(case, inputs=tuple(inputs), timed=False, hidden=True, grown=True)
    return None


def _with_length(spec: TensorSpec, dimension: int, length: int) -> TensorSpec:
    shape = list(spec.shape)
    shape[dimension] = length
    return replace(spec, shape=tuple(shape))


def _shapes(
    reference: Reference, case: Case, inputs: Sequence[TensorSpec]
) -> list[tuple[int, ...]] | None:
    """Return the shapes of the reference's outputs; None if it rejects these inputs."""
    try:
        with torch.no_grad():
            outputs = reference(*build(tuple(inputs), 1, "cpu"), case.scalars)
    except Exception:  # whatever a file raises
        return None
    return [tuple(one.shape) for one in outputs if isinstance(one, Tensor)]
