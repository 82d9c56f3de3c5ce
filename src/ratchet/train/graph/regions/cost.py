"""The cost of a region: compulsory bytes, operations, the floor at the ceilings, its time now."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils.flop_counter import flop_registry

from ratchet.base.devices.ceilings import Ceilings, best_of, roofline
from ratchet.base.errors import DeviceError
from ratchet.train.graph.regions.cut import Cut, reads_rows
from ratchet.train.workloads.flops import FUSED

DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16"}
CALLS, CALLS_S = 20, 0.3
"""Calls of a compiled region, and the time that they may take."""


def moved_bytes(cut: Cut) -> int:
    """Return the least traffic of one call: inputs read once, outputs written once.

    Of a tensor that is only a table to read rows from, the rows that are read count.
    """
    read = sum(min(_held(node), _gathered(node, cut)) for node in cut.inputs)
    return read + sum(_held(node) for node in cut.outputs)


def _held(node: Node) -> int:
    """Return the bytes of a tensor's elements; one that is broadcast holds each once."""
    value: Tensor = node.meta["val"]
    sizes = (s for s, step in zip(value.shape, value.stride(), strict=True) if step)
    return math.prod(sizes) * value.dtype.itemsize


def _gathered(node: Node, cut: Cut) -> int:
    """Return the bytes that the region takes out of a table; the whole if it reads it otherwise."""
    users = [user for user in node.users if user in cut.nodes]
    if not users or not all(reads_rows(user, node) for user in users):
        return _held(node)
    return sum(_held(user) for user in users)


def flops_of(cut: Cut) -> float:
    """Return the operations of the region's products, convolutions and attention."""
    return sum(map(_flops, cut.computing))


def _flops(node: Node) -> float:
    target: Any = node.target
    packet = target._overloadpacket
    formula = FUSED.get(packet) or flop_registry.get(packet)
    if formula is None:
        return 0.0
    args, kwargs = map_arg((node.args, node.kwargs), lambda one: one.meta["val"])
    return float(formula(*args, **kwargs, out_val=node.meta["val"]))


def floor_s(cut: Cut, size_bytes: int, flops: float, ceilings: Ceilings | None) -> float:
    """Return the region's roofline time; 0 without measured ceilings."""
    if ceilings is None:
        return 0.0
    for dtype in (_product_dtype(cut.computing), "fp32"):
        try:
            line = roofline(ceilings, dtype=dtype, working_set_bytes=size_bytes)
        except DeviceError:
            continue
        return line.time_bound_s(flops, size_bytes)
    return 0.0


def _product_dtype(nodes: Iterable[Node]) -> str:
    for node in nodes:
        if _flops(node):
            found = [one.meta["val"].dtype for one in node.all_input_nodes]
            return DTYPES.get(found[0], "fp32")
    return "fp32"


def eager_s(cut: Cut, times_s: dict[Node, float], calls: int) -> float:
    """Return the time of one call, operation by operation, in the traced step."""
    return sum(times_s.get(node, 0.0) for node in cut.computing) / max(1, calls)


def compiled_s(reference: Callable[..., object], inputs: Sequence[Tensor]) -> float | None:
    """Return the time of one warm call under torch.compile's default; None if it fails.

    The plain reference runs first: where an index lies outside of its tensor, it raises, and
    compiled code would end the process.
    """
    try:
        with torch.no_grad():
            reference(*inputs, ())
            compiled = torch.compile(reference, dynamic=False)
            call = _caller(compiled, inputs)
            call()
            return _best(call)
    except Exception as error:  # whatever the compiler raises: the estimate takes its place
        del error
        return None


def _caller(compiled: Callable[..., object], inputs: Sequence[Tensor]) -> Callable[[], None]:
    on_gpu = any(one.is_cuda for one in inputs)

    def call() -> None:
        compiled(*inputs, ())
        if on_gpu:
            torch.cuda.synchronize()

    return call


def _best(call: Callable[[], None]) -> float:
    """Return the time of a call: others share the machine (`best_of`)."""
    times: list[float] = []
    while len(times) < CALLS and (sum(times) < CALLS_S or len(times) < 3):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return best_of(times)
