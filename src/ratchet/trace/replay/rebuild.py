"""Arguments for a recorded call: tensors of the recorded sizes, strides and types.

Only the process that replays imports this, because it imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import torch

from ratchet.trace.replay.recorded import Recorded

DTYPES = {
    "float": torch.float32, "double": torch.float64, "c10::half": torch.float16,
    "c10::bfloat16": torch.bfloat16, "int": torch.int32, "long int": torch.int64,
    "long": torch.int64, "short int": torch.int16, "short": torch.int16, "bool": torch.bool,
    "unsigned char": torch.uint8, "signed char": torch.int8, "char": torch.int8,
    "c10::float8_e4m3fn": torch.float8_e4m3fn, "c10::float8_e5m2": torch.float8_e5m2,
    "c10::float8_e4m3fnuz": torch.float8_e4m3fnuz, "c10::float8_e5m2fnuz": torch.float8_e5m2fnuz,
    "c10::complex<float>": torch.complex64, "c10::complex<double>": torch.complex128,
}  # fmt: skip
"""torch's types by the names that the profiler writes, in lower case."""
REFUSED = frozenset({"aten::from_file", "aten::save", "aten::record_stream"})
"""Ops that touch more than their tensors."""
_ROWS_OF_FIRST = ("embedding", "embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
_CLASSES = ("nll_loss", "nll_loss_nd", "nll_loss_forward", "nll_loss_backward", "nll_loss2d",
            "cross_entropy_loss")  # fmt: skip
_OTHER_COUNT = "no overload"


class Unbuildable(Exception):
    """The reason why a call cannot be built again, as a clause."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """A function, its arguments, and the memory that its tensors take."""

    call: Callable[..., object]
    arguments: list[object]
    keywords: dict[str, object]
    size_bytes: int


def build(recorded: Recorded, device: str, most_bytes: int) -> Built:
    """Build the call with new tensors on `device`; Unbuildable, with the reason, if it cannot."""
    if not recorded.op.startswith("aten::"):
        raise Unbuildable("it is not an aten op")
    if recorded.op in REFUSED:
        raise Unbuildable("it touches more than its tensors")
    name = recorded.op.removeprefix("aten::")
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        raise Unbuildable(f"torch {torch.__version__} has no such op")
    whys = []
    for overload in packet.overloads():
        one = getattr(packet, overload)
        try:
            plans = _plan(one._schema, recorded)
        except Unbuildable as why:
            whys.append(str(why))
            continue
        needed = sum(plan.size_bytes for plan in plans)
        if needed > most_bytes:
            raise Unbuildable(f"its tensors take {needed / 2**30:.1f} GiB, more than is free")
        schema = one._schema.arguments
        values = [plan.make(device) for plan in plans]
        pairs = list(zip(schema, values, strict=True))
        return Built(
            call=one,
            arguments=[value for argument, value in pairs if not argument.kwarg_only],
            keywords={a.name: value for a, value in pairs if a.kwarg_only},
            size_bytes=needed,
        )
    # An overload with the right number of inputs has the more useful reason.
    said = [why for why in whys if not why.startswith(_OTHER_COUNT)] or whys
    raise Unbuildable(said[0] if said else "it has no overload")


@dataclass(frozen=True, kw_only=True, slots=True)
class _InputPlan:
    make: Callable[[str], object]
    size_bytes: int = 0


def _plan(schema: torch.FunctionSchema, recorded: Recorded) -> list[_InputPlan]:
    arguments = schema.arguments
    count = len(recorded.types)
    if len(arguments) != count:
        raise Unbuildable(f"{_OTHER_COUNT} in torch {torch.__version__} takes {count} inputs")
    if len(recorded.dims) != count:
        raise Unbuildable("the trace does not hold the sizes of every input")
    return [_argument(argument, at, recorded) for at, argument in enumerate(arguments)]


def _argument(argument: torch.Argument, at: int, recorded: Recorded) -> _InputPlan:
    kind, optional = argument.type, False
    if kind.kind() == "OptionalType":
        kind, optional = kind.getElementType(), True
    written = recorded.types[at]
    value = recorded.values[at] if recorded.values and at < len(recorded.values) else ""
    takes = kind.kind()
    if takes == "TensorType":
        if written.lower() in DTYPES:
            return _tensor(argument, at, recorded)
        if written == "" and optional:
            return _InputPlan(make=lambda _: None)
        raise Unbuildable(f"{argument.name} is a tensor, but the trace has {written or 'nothing'}")
    if takes == "ListType" and kind.getElementType().kind() in ("TensorType", "OptionalType"):
        if written == "" and optional:
            return _InputPlan(make=lambda _: None)
        raise Unbuildable("traces do not hold the types of a list's tensors")
    if written.lower() in DTYPES:
        raise Unbuildable(f"{argument.name} is not a tensor, but the trace has {written}")
    if takes == "DeviceObjType":
        return _InputPlan(make=lambda device: torch.device(device))
    if value == "":
        if optional:
            return _InputPlan(make=lambda _: None)
        if argument.has_default_value():
            default = argument.default_value
            return _InputPlan(make=lambda _: default)
        raise Unbuildable(f"the value of {argument.name} is not in the trace")
    found = _value(takes, kind, value, argument.name)
    return _InputPlan(make=lambda _: found)


def _value(takes: str, kind: object, text: str, name: str) -> object:
    if takes == "StringType":
        return text
    plain = text.replace("True", "true").replace("False", "false")
    try:
        # The profiler writes a whole float as `0.`.
        value = json.loads(plain if not plain.endswith(".") else plain + "0")
    except ValueError:
        raise Unbuildable(f"the value of {name} is {text!r}, which is not a number") from None
    if takes == "ListType":
        if not isinstance(value, list):
            value = [value]
        return value
    if isinstance(value, list):
        raise Unbuildable(f"{name} is not a list, but the trace has {text}")
    if takes == "BoolType" and not isinstance(value, bool):
        return bool(value)
    if takes == "FloatType":
        return float(value)
    if takes in ("IntType", "SymIntType") and not isinstance(value, int):
        raise Unbuildable(f"{name} is a whole number, but the trace has {text}")
    return value


def _tensor(argument: torch.Argument, at: int, recorded: Recorded) -> _InputPlan:
    dtype = DTYPES[recorded.types[at].lower()]
    sizes = recorded.dims[at]
    strides = recorded.strides[at] if recorded.strides and at < len(recorded.strides) else None
    if not _whole(sizes):
        raise Unbuildable(f"the sizes of {argument.name} are not in the trace")
    if strides is None or not _whole(strides) or len(strides) != len(sizes):
        strides = _contiguous(sizes)
    entries = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)) if sizes else 1
    entries = 0 if 0 in sizes else entries
    bound = _bound(argument.name, at, recorded)

    def make(device: str) -> torch.Tensor:
        flat = _filled(entries, dtype, bound, device)
        return flat.as_strided(sizes, strides) if entries else flat.reshape(sizes)

    return _InputPlan(make=make, size_bytes=entries * dtype.itemsize)


def _filled(entries: int, dtype: torch.dtype, bound: int, device: str) -> torch.Tensor:
    """Draw values between 0.5 and 1.5, or whole numbers below the bound."""
    if dtype == torch.bool:
        return torch.randint(0, 2, (entries,), device=device, dtype=torch.bool)
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.randint(0, max(bound, 1), (entries,), device=device).to(dtype)
    if dtype.itemsize == 1:
        return torch.rand(entries, device=device).add_(0.5).to(dtype)
    return torch.rand(entries, device=device, dtype=dtype).add_(0.5)


def _bound(name: str, at: int, recorded: Recorded) -> int:
    """Return the bound below which whole numbers are valid indices into the other inputs."""
    op = recorded.op.removeprefix("aten::")
    sizes = [list(d) for d in recorded.dims if _whole(d) and d]
    others = [list(d) for i, d in enumerate(recorded.dims) if i != at and _whole(d) and d]
    if op in _ROWS_OF_FIRST and sizes:
        return int(sizes[0][0])
    if op in _CLASSES:
        wide = [d for d in others if len(d) >= 2]
        return int(wide[0][1]) if wide else 1
    if "embedding" in op and "backward" in op:
        counts = [v for v in recorded.values or () if v.isdigit() and int(v) > 1]
        return int(counts[0]) if counts else 1
    if name in ("index", "indices") and others:
        dim = next((v for v in recorded.values or () if v.lstrip("-").isdigit()), "")
        if dim and -len(others[0]) <= int(dim) < len(others[0]):
            return int(others[0][int(dim)])
        return max(prod(map(int, others[0][-2:])), 1) if "pool" in op else int(min(others[0]))
    return min((n for d in sizes for n in d if n > 0), default=1)


def _contiguous(sizes: Sequence[int]) -> list[int]:
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step *= max(size, 1)
    return strides[::-1]


def _whole(entry: object) -> bool:
    return isinstance(entry, list | tuple) and all(type(n) is int and n >= 0 for n in entry)
