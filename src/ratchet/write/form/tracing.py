"""From a reference to a graph of core ATen ops with symbolic sizes, by torch's make_fx.

`LoweredCall` is an op of that graph as its lowering sees it; `lowers` registers a lowering.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._sympy import functions

from ratchet.judge.problems.case import Case
from ratchet.judge.problems.inputs import dtype_named
from ratchet.write.form import Node, Shape, UnsupportedOp
from ratchet.write.form.build import cast, constant, expanded, position
from ratchet.write.form.extent import Extent, larger, named, product_of, smaller, whole


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    """Return the output, and the logarithm of each row's sum of exponentials in fp32."""
    if dropout_p or query.shape[1] != key.shape[1]:
        return NotImplemented
    scores = _scores(query, key, is_causal, attn_mask, scale)
    most = scores.amax(-1, keepdim=True)
    powers = torch.exp(scores - most)
    total = powers.sum(-1, keepdim=True)
    output = torch.matmul(powers / total, value.float()).to(query.dtype)
    return output, (most + torch.log(total)).squeeze(-1)


def _backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    """Return the gradients of query, key and value (Dao et al., "FlashAttention", 2022, app. B)."""
    if dropout_p or query.shape[1] != key.shape[1]:
        return NotImplemented
    given = grad_out.float()
    shares = torch.exp(
        _scores(query, key, is_causal, attn_mask, scale) - logsumexp.float().unsqueeze(-1)
    )
    of_value = torch.matmul(shares.transpose(-2, -1), given)
    of_shares = torch.matmul(given, value.float().transpose(-2, -1))
    moved = (given * out.float()).sum(-1, keepdim=True)
    of_scores = shares * (of_shares - moved) * _factor(query, scale)
    of_query = torch.matmul(of_scores, key.float())
    of_key = torch.matmul(of_scores.transpose(-2, -1), query.float())
    return of_query.to(query.dtype), of_key.to(key.dtype), of_value.to(value.dtype)


def _scores(
    query: Tensor, key: Tensor, is_causal: bool, attn_mask: Tensor | None, scale: float | None
) -> Tensor:
    """Return the scaled and masked products of rows in fp32."""
    factor = _factor(query, scale)
    scores: Tensor = torch.matmul(query.float(), key.float().transpose(-2, -1)) * factor
    if is_causal:
        seen = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
        scores = torch.where(seen, scores, float("-inf"))
    if attn_mask is None:
        return scores
    if attn_mask.dtype == torch.bool:
        return torch.where(attn_mask, scores, float("-inf"))
    return scores + attn_mask


def _factor(query: Tensor, scale: float | None) -> Any:
    return 1.0 / torch.sym_sqrt(query.shape[-1]) if scale is None else scale


KEPT: Final = (
    *("mm", "bmm", "addmm", "baddbmm", "convolution", "convolution_backward", "cat"),
    *("max_pool2d_with_indices", "max_pool3d_with_indices"),
)
"""Ops that stay whole, although Inductor decomposes some of their uses."""


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A reference's graph, and what its symbolic sizes are."""

    graph: fx.Graph
    shapes: tuple[tuple[Extent, ...], ...]
    sizes: SizeReader


COMBINED: Final[tuple[tuple[Any, Callable[[Extent, Extent], Extent]], ...]] = (
    (sympy.Add, operator.add),
    (sympy.Mul, operator.mul),
    (functions.FloorDiv | functions.CleanDiv, operator.floordiv),
    (functions.Mod | functions.PythonMod | sympy.Mod, operator.mod),
    (functions.Max | sympy.Max, larger),
    (functions.Min | sympy.Min, smaller),
)
"""Functions of sizes of sympy and torch, as functions of extents."""


class SizeReader:
    """Translates torch's symbolic sizes to extents."""

    def __init__(self, environment: ShapeEnv) -> None:
        self._environment = environment
        self._divided = _divided(environment)

    def extent(self, value: object) -> Extent:
        if isinstance(value, bool | int):
            return whole(int(value))
        assert isinstance(value, torch.SymInt)
        return self.translated(self._environment.replace(value.node.expr))

    def shape(self, value: Tensor) -> tuple[Extent, ...]:
        return tuple(self.extent(size) for size in value.shape)

    def translated(self, expression: sympy.Basic) -> Extent:
        """Return the extent of a sympy expression; an UnsupportedOp for anything else."""
        expression = self._environment.replace(expression)
        if isinstance(expression, sympy.Integer):
            return whole(int(expression))
        if isinstance(expression, sympy.Symbol):
            return self._divided.get(expression.name, named(expression.name))
        parts = [self.translated(one) for one in _arguments(expression)]
        if isinstance(expression, sympy.Pow) and isinstance(expression.exp, sympy.Integer):
            return functools.reduce(operator.mul, parts[:1] * int(expression.exp), whole(1))
        for kinds, combine in COMBINED:
            if isinstance(expression, kinds):
                return functools.reduce(combine, parts)
        raise UnsupportedOp(f"size {type(expression).__name__}", str(expression))


def traced(
    reference: Callable[..., Iterable[Tensor]],
    case: Case,
    static: frozenset[tuple[int, int]] = frozenset(),
) -> Traced:
    """Trace a reference with tensors like a case's.

    All sizes are symbols of their own but those of the dimensions (input, axis) in `static`.
    """
    environment = ShapeEnv(duck_shape=False)
    mode = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    fakes = []
    for place, spec in enumerate(case.inputs):
        empty = torch.empty(spec.shape, dtype=dtype_named(spec.dtype))
        dynamic: Any = StatelessSymbolicContext(
            dynamic_sizes=[
                DimDynamic.STATIC if (place, dim) in static else DimDynamic.DYNAMIC
                for dim in range(empty.dim())
            ]
        )
        fakes.append(mode.from_tensor(empty, symbolic_context=dynamic))
    scalars = tuple(case.scalars)

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        with sdpa_kernel(SDPBackend.MATH):
            return tuple(reference(*tensors, scalars))

    table = decompositions()
    with torch.enable_grad():
        module = make_fx(run, decomposition_table=table, tracing_mode="symbolic")(*fakes)
    schemas = (getattr(node.target, "_schema", None) for node in module.graph.nodes)
    if any(schema is not None and schema.is_mutable for schema in schemas):
        plain = torch.func.functionalize(module, remove="mutations_and_views")
        with torch.no_grad():
            module = make_fx(plain, decomposition_table=table, tracing_mode="symbolic")(*fakes)
    module.graph.eliminate_dead_code()
    sizes = SizeReader(environment)
    return Traced(
        graph=module.graph, shapes=tuple(sizes.shape(fake) for fake in fakes), sizes=sizes
    )


def decompositions() -> Mapping[OpOverload, Callable[..., object]]:
    """Return torch's core ATen decompositions with Inductor's additions, and attention's."""
    from torch._inductor.decomposition import select_decomp_table

    table = dict(select_decomp_table())
    for op in list(table):
        if isinstance(op, torch._ops.OpOverload) and op.overloadpacket.__name__ in KEPT:
            del table[op]
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    return table | {attention.default: _forward, backward.default: _backward}


def _divided(environment: ShapeEnv) -> dict[str, Extent]:
    """Return sizes that the reference takes to be multiples of a number, as such multiples."""
    factors: dict[str, int] = {}
    for remainder in environment.divisible:
        symbol, divisor = _arguments(remainder)[:2]
        if isinstance(symbol, sympy.Symbol) and isinstance(divisor, sympy.Integer):
            known = factors.get(symbol.name, 1)
            factors[symbol.name] = int(sympy.ilcm(known, int(divisor)))
    return {name: named(f"{name}_{factor}") * factor for name, factor in factors.items()}


def _arguments(expression: sympy.Basic) -> Sequence[sympy.Basic]:
    found: Sequence[sympy.Basic] = expression.args
    return found


Value = Any  # A resolved argument: a Node, an Extent, a number, None, or a list of these
Lowerer = Callable[..., Value]
OPS: Final[dict[str, Lowerer]] = {}
"""Lowerings by ATen's name, with or without the overload: f(call, *args, **kwargs)."""
F = TypeVar("F", bound=Lowerer)


def lowers(*names: str) -> Callable[[F], F]:

    def register(function: F) -> F:
        for name in names:
            OPS[name] = function
        return function

    return register


class LoweredCall:
    """One op of the graph as its lowering sees it: the shape and dtype that torch gave it."""

    def __init__(self, node: fx.Node, sizes: SizeReader) -> None:
        target = node.target
        is_aten = isinstance(target, OpOverload)  # such as aten.add.Tensor
        self.name = str(target) if is_aten else getattr(target, "__name__", str(target))
        self._value: Any = node.meta.get("val")
        self._sizes = sizes
        self._given = [one.meta.get("val") for one in node.args if isinstance(one, fx.Node)]

    @property
    def contiguous_throughout(self) -> bool:
        """Return whether the first argument and the result are contiguous and as large."""
        both = (self._given[0], self._value)
        if not all(isinstance(one, Tensor) and one.is_contiguous() for one in both):
            return False
        first, second = (product_of(self._sizes.shape(one)) for one in both if one is not None)
        return first == second

    @property
    def shape(self) -> Shape:
        return self._sizes.shape(self._tensor())

    @property
    def dtype(self) -> str:
        return name_of(self._tensor().dtype)

    @property
    def count(self) -> int:
        return len(self._value)

    def part(self, place: int) -> tuple[Shape, str]:
        tensor = self._value[place]
        return self._sizes.shape(tensor), name_of(tensor.dtype)

    def unsupported(self, why: str = "") -> UnsupportedOp:
        return UnsupportedOp(self.name, why)

    def _tensor(self) -> Tensor:
        if not isinstance(self._value, Tensor):
            raise self.unsupported("its result is no tensor")
        return self._value


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def as_node(value: Value, dtype: str) -> Node:
    """Return a tensor or a Python number as a node; numbers take `dtype`."""
    if isinstance(value, Node):
        return value
    if isinstance(value, Extent):
        known = value.constant
        return constant(known, dtype) if known is not None else cast(position(value), dtype)
    return constant(value, dtype)


def known(call: LoweredCall, value: Value, what: str) -> int:
    """Return an extent's number; an UnsupportedOp if it depends on the sizes."""
    number = whole(value).constant
    if number is None:
        raise call.unsupported(f"{what} depends on the sizes")
    return number


def full_like(call: LoweredCall, node: Node) -> Node:
    """Return a node in the shape and dtype of the op's result."""
    return expanded(cast(node, call.dtype), call.shape)
