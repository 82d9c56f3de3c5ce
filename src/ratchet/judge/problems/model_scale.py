"""Shrinking of a KernelBench file to fit a machine: its batch first, then its sizes.

Sizes are integers assigned to names at the top of the file. They are changed in its text, and keep
divisors that a kernel may count on, such as the 128 of its blocks: powers of two first. Fake
tensors, which have shapes but no values, show the cost of a change and whether it breaks the model.
No clock is asked: the same file has the same sizes on the same number of cores, however busy they
are. Operations and bytes do not tell the time of many small operators, of a convolution in float64
or of sorting, so these are counted apart, at nominal rates.
"""

from __future__ import annotations

import contextlib
import math
import operator
import re
import sys
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from ratchet.judge.problems.assigned_sizes import DRAWN, is_batch, rewritten, sizes
from ratchet.judge.problems.model_file import on_cores, run_source
from ratchet.judge.problems.model_state import flatten
from ratchet.judge.problems.references import FlopCount
from ratchet.judge.problems.tolerance import widen

Kwargs = Mapping[str, Any] | None
AUTO_FLOPS = 3e8
AUTO_BYTES = 32 << 20  # Budget of `auto` for each core: some three milliseconds of one call
AUTO_CASE_BYTES = 8 << 20
"""Budget for a case's inputs, state and outputs: a verdict fills memory for some 70 calls."""
EMULATED_FLOPS, EMULATED_BYTES, EMULATED_CASE_BYTES = 4e7, 16 << 20, 4 << 20
"""Budget of an emulated call: a plain kernel's multiplication takes some ten instructions, and the
emulator executes some ten million of a wave in a second."""
AUTO_SLOW_S = 0.036
"""Budget of each core for the slow work of a call in float64, of which a verdict has some 30."""
MOST_STEPS = 40  # Most sizes to try
MOST_OPERATORS, MOST_WIDE_OPERATORS = 2000, 4000
"""Most operators of a call, and of one in float64, where a network of many steps has no operator of
its own: each takes some microseconds."""
CONVOLVED_S, GROUP_S = 5e-10, 1e-4
"""Nominal seconds of one core for an operation of a convolution in float64, and for each group of
each sample: torch has a plain loop over matrix products there (1.7 to 4.6 Gflop/s on two Zen cores,
where float32 reaches 80 to 190)."""
SORTED_S = 1e-7
SORTING = re.compile(r"sort|argsort|msort|median|nanmedian|kthvalue|topk|mode|_?unique\w*|bincount")
"""Operators that take some SORTED_S for each element of their input."""
FIRST_STEP = 8
"""Divisor of a size while a call has more operators: to count them takes over a second."""
RANDOM_FACTORIES = (torch.rand, torch.randn, torch.randint)
OF_TRUTH = re.compile(r"eq|ne|lt|le|gt|ge|is\w+|logical_\w+|signbit")
"""Elementwise operators whose results have another dtype."""
ROWWISE = ("_softmax", "_log_softmax", "_safe_softmax")
NOT_META = re.compile(r"LSTM|numpy|cuda|\bcpu\b")
"""Things that only fake tensors know: oneDNN's LSTM as one operator, tensors placed by name, which
would have values, of any size."""
SMALLEST_BATCH, SMALLEST_SIZE = 4, 8
KEPT_POWER = 128
"""A size stays a multiple of this power of two, or of a smaller one, if it was: kernels have blocks
of up to so many elements."""
MOST_TRIED = 1000  # Smaller sizes that are compared for the divisors that they keep
MOST_OVER = {"auto": 30.0, "emulated": 60.0}
"""A call at a file's own sizes may take this many times the budget, if nothing is timed there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Cost of one call: operations of products, bytes that all operators write, peak bytes held."""

    flops: float
    bytes: float
    held_bytes: float  # Inputs, state, and twice the largest result
    case_bytes: float  # Inputs, state and outputs
    slow_s: float = 0.0  # Nominal seconds of one core for convolutions and sorting in float64

    def over(self, budget: Cost) -> float:
        return max(
            self.flops / budget.flops,
            self.bytes / budget.bytes,
            self.case_bytes / budget.case_bytes,
            self.slow_s / budget.slow_s,
        )


def auto_budget(threads: int) -> Cost:
    """Return the budget of a call on this machine under `auto`."""
    return Cost(
        flops=AUTO_FLOPS * threads,
        bytes=AUTO_BYTES * threads,
        held_bytes=0.0,
        case_bytes=AUTO_CASE_BYTES,
        slow_s=AUTO_SLOW_S * threads,
    )


def emulated_budget(threads: int) -> Cost:
    """Return the budget of a call whose kernel is emulated."""
    return Cost(
        flops=EMULATED_FLOPS,
        bytes=EMULATED_BYTES,
        held_bytes=0.0,
        case_bytes=EMULATED_CASE_BYTES,
        slow_s=AUTO_SLOW_S * threads,
    )


def share_of(cost: Cost, factor: float) -> Cost:
    """Return the budget that shrinks a problem's cost by `factor`."""
    return Cost(
        flops=max(1.0, cost.flops * factor),
        bytes=cost.bytes * factor,
        held_bytes=0.0,
        case_bytes=math.inf,
        slow_s=math.inf,
    )


def measure(text: str, most_operators: float = MOST_OPERATORS) -> Cost | None:
    """Return the cost of one call of a file's model; None if shapes alone cannot tell.

    It is infinite if the call has too many operators.
    """
    for shapes_only in (_fake,) if NOT_META.search(text) else (_meta, _fake):
        try:
            with shapes_only(), on_cores(text):
                return _cost_of_call(run_source(text), most_operators)
        except _TooManyOperators:
            return Cost(flops=math.inf, bytes=math.inf, held_bytes=0.0, case_bytes=math.inf)
        except Exception:  # any error of the file; real tensors will report it
            continue
    return None


def _cost_of_call(module: types.ModuleType, most_operators: float) -> Cost:
    """Return the cost of a call in the model's own precision, with its slow work in float64."""
    model = module.Model(*module.get_init_inputs())
    inputs = module.get_inputs()
    counter = _Bytes(most_operators)
    with torch.no_grad(), FlopCount() as flops, counter:
        outputs = flatten(model(*inputs))
    given = [one for one in inputs if isinstance(one, Tensor)]
    fixed = sum(_bytes(one) for one in (*given, *model.state_dict().values()))
    return Cost(
        flops=flops.total,
        bytes=float(fixed + counter.total + sum(_bytes(one) for one in outputs)),
        held_bytes=float(fixed + 2 * counter.largest),
        case_bytes=float(fixed + sum(_bytes(one) for one in outputs)),
        slow_s=_slow_s(module, most_operators),
    )


def _slow_s(module: types.ModuleType, most_operators: float) -> float:
    """Return the slow work of a call in float64; 0 if the model fails there, as the judge says."""
    counter = _SlowWork(max(most_operators, MOST_WIDE_OPERATORS))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # fake tensors cannot take another type for their own
    try:
        model = module.Model(*module.get_init_inputs())
        with torch.no_grad(), counter:
            model(*(widen(one) if isinstance(one, Tensor) else one for one in module.get_inputs()))
    except _TooManyOperators:
        raise
    except Exception:  # whatever a file raises
        return 0.0
    finally:
        torch.set_default_dtype(before)
    return counter.total_s


@contextlib.contextmanager
def _meta() -> Iterator[None]:
    """Let factories make meta tensors, which are quick, but mix with no tensor that has values.

    torch's shape functions import torch._dynamo to be left out of graphs that nobody compiles here,
    and sympy for sizes that are no plain numbers. Both imports take longer than all else.
    """
    missing = {name: module for name, module in STAND_INS.items() if name not in sys.modules}
    sys.modules.update(missing)
    try:
        shapes = _Shapes()  # type: ignore[no-untyped-call]
        with torch.device("meta"), _Undrawn(), shapes:
            yield
    finally:
        for name in missing:
            del sys.modules[name]


class _Shapes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that answers common operators on meta tensors of one real dtype by itself.

    torch's own shape functions for them are in Python: they take a millisecond, and import sympy.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, operator: Any, types: object, args: Sequence[object] = (), kwargs: Kwargs = None
    ) -> object:
        tensors = [one for one in args if isinstance(one, Tensor)]
        if (
            not kwargs
            and tensors
            and tensors[0].is_floating_point()
            and all(one.is_meta and one.dtype == tensors[0].dtype for one in tensors)
        ):
            shape = _shape_of(operator, tensors)
            if shape is not None and not operator._schema.is_mutable:
                return tensors[0].new_empty(shape)
            if shape == tensors[0].shape:
                return tensors[0]
        return operator(*args, **(kwargs or {}))


def _shape_of(operator: Any, tensors: Sequence[Tensor]) -> tuple[int, ...] | None:
    """Return the shape of an operator's only result, which has its operands' dtype, or None."""
    name = operator._opname
    if name in ROWWISE and operator._overloadname == "default":
        return tuple(tensors[0].shape)
    if name in ("mm", "addmm") and operator._overloadname == "default":
        left, right = tensors[-2:]
        if left.ndim == right.ndim == 2 and left.shape[1] == right.shape[0]:
            return (left.shape[0], right.shape[1])
        return None
    if torch.Tag.pointwise not in operator.tags or OF_TRUTH.fullmatch(name):
        return None
    if len(operator._schema.returns) != 1:
        return None
    return np.broadcast_shapes(*(one.shape for one in tensors))


def _stand_in(name: str, **functions: object) -> types.ModuleType:
    """Return a module with these functions. Calls of others raise: then fake tensors are used."""
    module = types.ModuleType(name)

    def missing(called: str) -> Callable[..., None]:
        def raises(*_: object, **__: object) -> None:
            raise RuntimeError(f"the stand-in for {name} has no {called}")

        return raises

    module.__dict__.update(functions, __getattr__=missing)
    return module


STAND_INS = {
    one.__name__: one
    for one in (
        _stand_in("torch._dynamo", disable=lambda function, *_, **__: function),
        _stand_in(
            "torch.fx.experimental.symbolic_shapes",
            expect_true=bool,
            guard_or_true=bool,
            guard_or_false=bool,
            guard_size_oblivious=bool,
            statically_known_true=bool,
            guarding_hint_or_throw=int,
            sym_eq=operator.eq,
            sym_and=lambda *those: all(those),
            sym_or=lambda *those: any(those),
            is_nested_int=lambda _: False,
        ),
    )
}


class _Undrawn(TorchFunctionMode):
    """A mode in which random tensors are only allocated.

    torch's own shape functions for them import sympy, which takes half a second.
    """

    def __torch_function__(
        self, function: Any, types: object, args: Sequence[Any] = (), kwargs: Kwargs = None
    ) -> object:
        kwargs = kwargs or {}
        if function in RANDOM_FACTORIES and args and set(kwargs) <= {"dtype", "device"}:
            if function is torch.randint:
                return torch.empty(args[-1], dtype=kwargs.get("dtype", torch.int64))
            return torch.empty(*args, **kwargs)
        return function(*args, **kwargs)


def _fake() -> contextlib.AbstractContextManager[object]:
    """Let all tensors be fake ones. Their import of torch._dynamo takes longer than torch's own."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def fit(
    text: str, cost: Cost, budget: Cost, most_operators: float = MOST_OPERATORS
) -> tuple[str, Cost]:
    """Return the text with smaller sizes, within the budget if possible, and its cost."""
    values: dict[str, int] = {}
    found = {size.name: size.value for size in sizes(text)}
    fixed: set[str] = set()
    for _ in range(MOST_STEPS):
        if cost.over(budget) <= 1:
            break
        now = {**found, **values}
        name = _next(now, fixed)
        if name is None:
            break
        for names in _together(name, now):
            over = cost.over(budget) ** (1 / len(names))
            others = {now[one] for one in now if found[one] != found[name]}
            trial = values | dict.fromkeys(
                names, _smaller(name, now[name], found[name], over, others)
            )
            smaller = measure(rewritten(text, trial), most_operators)
            if smaller is not None and (smaller.bytes < cost.bytes or cost.bytes == math.inf):
                values, cost = trial, smaller
                break
        else:
            fixed.add(name)  # the change breaks the model, or the number is no size
    return rewritten(text, values), cost


def _together(name: str, now: Mapping[str, int]) -> list[list[str]]:
    """Yield a size alone, then with all equal sizes, since shapes may have to match."""
    equal = [one for one in now if now[one] == now[name]]
    return [[name], equal] if len(equal) > 1 else [[name]]


def _next(now: Mapping[str, int], fixed: set[str]) -> str | None:
    """Return the size to shrink: the batch until it is small, then the largest that has a name."""
    batches = [one for one in now if is_batch(one) and one not in fixed]
    for name in batches:
        if now[name] > SMALLEST_BATCH:
            return name
    others = [one for one in now if not is_batch(one) and one not in fixed]
    open_ones = [one for one in others if now[one] > SMALLEST_SIZE]
    named = [one for one in open_ones if not one.startswith(DRAWN)]
    return max(named or open_ones, key=lambda one: now[one]) if open_ones else None


def _smaller(name: str, value: int, was: int, over: float, others: Collection[int]) -> int:
    """Return a smaller size with as many divisors of the file's as can be, powers of two first.

    It is no size of `others` if it can be helped, so that no two sizes are mistaken for each other.
    """
    if is_batch(name):
        least, most = SMALLEST_BATCH, max(SMALLEST_BATCH, min(value - 1, int(value / over)))
    else:
        divided = value // (FIRST_STEP if math.isinf(over) else 2)
        least, most = SMALLEST_SIZE, max(SMALLEST_SIZE, divided)
    power = math.gcd(was, KEPT_POWER)
    while power > most:
        power //= 2
    tried = range(most - most % power, max(least, most // 4) - 1, -power)[:MOST_TRIED]

    def worth(one: int) -> tuple[int, ...]:
        kept = math.gcd(one, was)
        return one not in others, 2 * one > most, kept & -kept, kept, one  # `&`: its power of two

    return max(tried or (most,), key=worth)


class _TooManyOperators(Exception):
    """A model calls too many operators."""


class _Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that counts operators, up to the most that can be waited for."""

    def __init__(self, most_operators: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._most = most_operators
        self.operators = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import torch._dynamo, which takes longer than torch itself

    def __torch_dispatch__(
        self, operator: Any, types: object, args: Sequence[object] = (), kwargs: Kwargs = None
    ) -> object:
        self.operators += 1
        if self.operators > self._most:
            raise _TooManyOperators
        results = operator(*args, **(kwargs or {}))
        self.add(operator, args, results)
        return results

    def add(self, operator: object, args: Sequence[object], results: object) -> None:
        raise NotImplementedError


class _Bytes(_Counted):  # type: ignore[no-untyped-call]
    """A mode that counts the bytes that every operator writes."""

    def __init__(self, most_operators: float) -> None:
        super().__init__(most_operators)
        self.total = self.largest = 0

    def add(self, operator: Any, args: Sequence[object], results: object) -> None:
        """Add the bytes of all results but views."""
        for one in tree_leaves(results):
            if isinstance(one, Tensor) and not operator.is_view:
                self.total += _bytes(one)
                self.largest = max(self.largest, _bytes(one))


class _SlowWork(_Counted):  # type: ignore[no-untyped-call]
    """A mode that adds up the nominal time of what operations and bytes do not tell."""

    def __init__(self, most_operators: float) -> None:
        super().__init__(most_operators)
        self.total_s = 0.0

    def add(self, operator: Any, args: Sequence[Any], results: object) -> None:
        """Add the time of a convolution, or of sorting."""
        packet = operator._overloadpacket
        if packet is torch.ops.aten.convolution:
            samples, groups = args[0].shape[0], args[8]
            flops = flop_registry[packet](*args, out_val=results)
            self.total_s += CONVOLVED_S * flops + GROUP_S * samples * groups
        elif SORTING.fullmatch(packet.__name__):
            self.total_s += SORTED_S * args[0].numel()


class Names(_Counted):  # type: ignore[no-untyped-call]
    """A mode that keeps the names of all operators."""

    def __init__(self) -> None:
        super().__init__(math.inf)
        self.found: set[str] = set()

    def add(self, operator: object, args: Sequence[object], results: object) -> None:
        self.found.add(str(operator))


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
