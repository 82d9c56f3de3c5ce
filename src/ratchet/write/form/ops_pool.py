"""Lowerings of pooling: the taps of a window, side by side."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.write.form.build import cast, chosen, constant, mapped, position, viewed
from ratchet.write.form.calls import LoweredCall, Value, known, lowers
from ratchet.write.form.extent import Extent, flattened, larger, smaller, whole
from ratchet.write.form.form import Choice, Constant, Node, axes_of

Taps = list[tuple[tuple[int, ...], Node, tuple[Extent, ...]]]
"""For every tap: its index, the value there (a filling outside), and its place in the image."""


def _numbers(values: Value, count: int, default: int) -> list[int]:
    given = [values] if isinstance(values, int) else list(values or [])
    return [int(one) for one in (given or [default]) * count][:count]


def _taps(
    x: Node,
    shape: tuple[Extent, ...],
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    filling: float,
) -> Taps:
    own, lead = axes_of(shape), len(shape) - len(size)
    every: list[tuple[int, ...]] = [()]
    for count in size:
        every = [(*one, tap) for one in every for tap in range(count)]
    found: Taps = []
    rest = Constant(shape=shape, dtype=x.dtype, value=filling)
    for taps in every:
        places, when = list(own[:lead]), []
        for dim, tap in enumerate(taps):
            index = own[lead + dim] * stride[dim] + tap * dilation[dim] - padding[dim]
            places.append(index)
            when += [index, x.shape[lead + dim] - 1 - index]
        here = viewed(x, shape, places)
        inside = Choice(shape=shape, dtype=x.dtype, when=tuple(when), arg=here, other=rest)
        found.append((taps, inside, tuple(places[lead:])))
    return found


@lowers("max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(
    call: LoweredCall,
    x: Node,
    size: Value,
    stride: Value = None,
    padding: Value = 0,
    dilation: Value = 1,
    ceil_mode: bool = False,
) -> list[Node]:
    """The largest value of each window and its place in the image; NaN wins."""
    count = len(_numbers(size, 3, 1)) if isinstance(size, int) else len(size)
    sizes = _numbers(size, count, 1)
    steps = _numbers(stride, count, 0) if stride else sizes
    shape = call.part(0)[0]
    taps = _taps(
        x,
        shape,
        sizes,
        steps,
        _numbers(padding, count, 0),
        _numbers(dilation, count, 1),
        float("-inf"),
    )
    image = x.shape[len(x.shape) - count :]
    best: Node | None = None
    where: Node | None = None
    for _, value, places in taps:
        place = position(flattened(places, image), shape)
        if best is None or where is None:
            best, where = value, place
            continue
        above = mapped("gt", value, best, dtype="bool", inner=x.dtype)
        lost = mapped("isnan", value, dtype="bool", inner=x.dtype)
        where = chosen(mapped("or", above, lost, dtype="bool"), place, where, "int64")
        best = mapped("max", best, value, dtype=x.dtype)
    assert best is not None and where is not None
    return [best, where]


@lowers("avg_pool2d", "avg_pool3d")
def average_pool(
    call: LoweredCall,
    x: Node,
    size: Value,
    stride: Value = None,
    padding: Value = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Value = None,
) -> Node:
    """The mean of each window."""
    count = int(call.name.split("pool")[1][0])
    sizes = _numbers(size, count, 1)
    steps = _numbers(stride, count, 0) if stride else sizes
    sides = _numbers(padding, count, 0)
    if ceil_mode:
        raise call.unsupported("with windows that stick out")
    total: Node | None = None
    for _, value, _ in _taps(x, call.shape, sizes, steps, sides, [1] * count, 0.0):
        total = value if total is None else mapped("add", total, value, dtype=call.dtype)
    assert total is not None
    if divisor_override is not None:
        number: Node = constant(known(call, divisor_override, "the divisor"), "float32")
    elif count_include_pad or not any(sides):
        within = 1
        for one in sizes:
            within *= one
        number = constant(within, "float32")
    else:
        number = _inside(call, x, sizes, steps, sides)
    return mapped("div", total, number, dtype=call.dtype)


def _inside(
    call: LoweredCall, x: Node, sizes: Sequence[int], steps: Sequence[int], sides: Sequence[int]
) -> Node:
    """Return how many taps of each window lie inside of the image."""
    shape = call.shape
    own, lead = axes_of(shape), len(shape) - len(sizes)
    total = whole(1)
    for dim, size in enumerate(sizes):
        start = own[lead + dim] * steps[dim] - sides[dim]
        end = smaller(start + size, x.shape[lead + dim])
        total = total * (end - larger(start, whole(0)))
    return cast(position(total, shape), "float32")
