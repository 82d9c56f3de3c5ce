"""Lowerings of matrix products, convolutions and pooling."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from ratchet.write.form import Choice, Constant, Map, Matmul, Node, Shape, View, axes_of, axis
from ratchet.write.form.build import (
    cast,
    chosen,
    class_of,
    constant,
    expanded,
    folded,
    joined,
    joint,
    mapped,
    padded,
    permuted,
    position,
    reshaped,
    swapped,
    viewed,
)
from ratchet.write.form.extent import (
    ONE,
    ZERO,
    Extent,
    Pair,
    flattened,
    larger,
    product_of,
    smaller,
    unflattened,
    whole,
)
from ratchet.write.form.tracing import LoweredCall, Value, as_node, known, lowers


class StaticNeeded(Exception):
    """Sizes that a lowering needs as numbers, by name."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(", ".join(sorted(names)))
        self.names = names


def static(extent: Extent) -> int:
    """Return an extent's number; StaticNeeded names the sizes that it depends on."""
    known = extent.constant
    if known is None:
        raise StaticNeeded(extent.names)
    return known


def product(left: Node, right: Node, dtype: str) -> Node:
    """Return a matrix product; leading dimensions broadcast, and numbers that scale it follow."""
    left, scales = _unscaled(left)
    right, more = _unscaled(right)
    found = _product(left, right, dtype)
    for scale in (*scales, *more):
        found = mapped("mul", found, scale, dtype=dtype)
    return found


def _unscaled(node: Node) -> tuple[Node, list[Node]]:
    """Return a factor without the numbers that scale all of it, and these."""
    if isinstance(node, View) and all(isinstance(one, Extent) for one in node.places):
        arg, scales = _unscaled(node.arg)
        return (replace(node, arg=arg, dtype=arg.dtype), scales) if scales else (node, [])
    if isinstance(node, Map) and node.op == "mul" and class_of(node.dtype) == "float":
        for one, other in (node.args, node.args[::-1]):
            number = _number(other)
            if number is not None:
                arg, scales = _unscaled(one)
                return arg, [*scales, number]
    if isinstance(node, Map) and node.op == "cast" and node.dtype == "float32":
        arg, scales = _unscaled(node.args[0])
        return (replace(node, args=(arg,)), scales) if scales else (node, [])
    return node, []


def _number(node: Node) -> Node | None:
    """Return a node that is the same everywhere, without dimensions."""
    if isinstance(node, Constant):
        return constant(node.value, node.dtype)
    if isinstance(node, View) and not node.arg.shape:
        return node.arg
    return None


def _product(left: Node, right: Node, dtype: str) -> Node:
    lead = joint([left.shape[:-2], right.shape[:-2]])
    left = expanded(left, (*lead, *left.shape[-2:]))
    right = expanded(right, (*lead, *right.shape[-2:]))
    shape = (*lead, left.shape[-2], right.shape[-1])
    inner = _joined_size(left) or _joined_size(right) if len(lead) == 1 else None
    if inner is None or (lead[0] // inner) * inner != lead[0]:
        return Matmul(shape=shape, dtype=dtype, left=left, right=right)
    apart = (lead[0] // inner, inner)
    factors = [reshaped(one, (*apart, *one.shape[1:])) for one in (left, right)]
    found = Matmul(shape=(*apart, *shape[1:]), dtype=dtype, left=factors[0], right=factors[1])
    return reshaped(found, shape)


def _joined_size(node: Node) -> Extent | None:
    """Return the inner size of a leading dimension that two were joined to: heads of a batch.

    Kept apart, they are loops like those of what is computed from the product.
    """
    if isinstance(node, View):
        for place in node.places:
            for product_, _ in place.terms if isinstance(place, Extent) else ():
                for atom in product_:
                    if isinstance(atom, Pair) and atom.left == axis(0, node.shape[0]):
                        return atom.right
    return None


@lowers("mm", "bmm")
def matmul(call: LoweredCall, left: Node, right: Node, **_: Value) -> Node:
    return product(left, right, call.dtype)


@lowers("addmm", "baddbmm")
def add_matmul(
    call: LoweredCall, bias: Node, left: Node, right: Node, *, beta: Value = 1, alpha: Value = 1
) -> Node:
    """beta bias + alpha times a matrix product."""
    dtype = call.dtype
    found = product(left, right, dtype)
    if alpha != 1:
        found = mapped("mul", found, as_node(alpha, dtype), dtype=dtype)
    if beta != 1:
        bias = mapped("mul", bias, as_node(beta, dtype), dtype=dtype)
    return mapped("add", found, bias, dtype=dtype)


class Window:
    """A convolution's sizes: spatial dimensions, steps, padding and dilation."""

    def __init__(
        self,
        image: Shape,
        weight: Shape,
        stride: Sequence[Value],
        padding: Sequence[Value],
        dilation: Sequence[Value],
        answer: Shape,
    ) -> None:
        self.image, self.answer = image[2:], answer[2:]
        self.taps = tuple(static(size) for size in weight[2:])
        count = len(self.taps)
        self.stride = tuple(int(one) for one in (list(stride) * count)[:count])
        self.padding = tuple(int(one) for one in (list(padding) * count)[:count])
        self.dilation = tuple(int(one) for one in (list(dilation) * count)[:count])

    def all_taps(self) -> list[tuple[int, ...]]:
        return list(itertools.product(*map(range, self.taps)))

    def source(
        self,
        x: Node,
        shape: Shape,
        lead: Sequence[Extent],
        out: Sequence[Extent],
        taps: Sequence[Extent],
    ) -> Node:
        """Return the image at each tap of each place of the answer, 0 outside of it."""
        places: list[Extent] = list(lead)
        when: list[Extent] = []
        for dim, (at, tap) in enumerate(zip(out, taps, strict=True)):
            index = at * self.stride[dim] + tap * self.dilation[dim] - self.padding[dim]
            places.append(index)
            if self.padding[dim]:
                when += [index, self.image[dim] - 1 - index]
        found = viewed(x, shape, places)
        return _where(tuple(when), found, 0.0) if when else found

    def unfolded(self, x: Node) -> Node:
        """Return [B, channels * taps, places] of an image [B, channels, ...]."""
        around = [(whole(one), whole(one)) for one in self.padding]
        wide = padded(x, [(ZERO, ZERO), (ZERO, ZERO), *around], 0.0)
        return self.windows(wide, self.answer, self.stride)

    def windows(self, image: Node, answer: Shape, stride: Sequence[int]) -> Node:
        """Return [B, channels * taps, places] of an image that holds all of its windows."""
        taps = tuple(whole(one) for one in self.taps)
        shape = (image.shape[0], image.shape[1] * product_of(taps), product_of(answer))
        own = axes_of(shape)
        channel, *tap = unflattened(own[1], (image.shape[1], *taps))
        out = unflattened(own[2], answer)
        at = [
            place * step + one * apart
            for place, step, one, apart in zip(out, stride, tap, self.dilation, strict=True)
        ]
        return viewed(image, shape, (own[0], channel, *at))

    def back(
        self, own: Sequence[Extent], taps: Sequence[int]
    ) -> tuple[list[Extent], tuple[Extent, ...]]:
        """Return the answer's places that read an image's place by a tap, and when they exist."""
        places: list[Extent] = []
        when: list[Extent] = []
        for dim, tap in enumerate(taps):
            index = own[dim] + self.padding[dim] - tap * self.dilation[dim]
            step = self.stride[dim]
            when.append(index)
            if step != 1:
                when.append(index % step * -1)
                index = index // step
            places.append(index)
            when.append(self.answer[dim] - 1 - index)
        return places, tuple(when)

    def turned_back(self, grad: Node, image: Shape, weight: Node, dtype: str) -> Node:
        """Return the image's gradient with steps of 1: a convolution with the turned weight."""
        around: list[tuple[Extent, Extent]] = [(ZERO, ZERO), (ZERO, ZERO)]
        for dim, count in enumerate(self.taps):
            before = whole(self.dilation[dim] * (count - 1) - self.padding[dim])
            after = image[2 + dim] + self.padding[dim] - self.answer[dim]
            around.append((before, after))
        wide = padded(grad, around, 0.0)
        columns = self.windows(wide, image[2:], self.stride)
        shape = (weight.shape[1], columns.shape[1])
        row, own = axes_of(shape)
        channel, *tap = unflattened(own, (weight.shape[0], *(whole(one) for one in self.taps)))
        turned = [size - 1 - one for size, one in zip(weight.shape[2:], tap, strict=True)]
        flat = viewed(weight, shape, (channel, row, *turned))
        lead = (grad.shape[0], *shape)
        return reshaped(product(expanded(flat, lead), columns, dtype), image)

    def folded_back(self, columns: Node, image: Shape) -> Node:
        """Return the image of the sums of columns, [B, channels, taps, ...]."""
        own = axes_of(image)
        parts = []
        for taps in self.all_taps():
            places, when = self.back(own[2:], taps)
            lead = [own[0], own[1], *(whole(tap) for tap in taps)]
            parts.append(_where(when, viewed(columns, image, [*lead, *places]), 0.0))
        return _added(parts, columns.dtype)


def _added(parts: Sequence[Node], dtype: str) -> Node:
    return functools.reduce(lambda one, other: mapped("add", one, other, dtype=dtype), parts)


def _where(when: tuple[Extent, ...], node: Node, other: float) -> Node:
    rest = Constant(shape=node.shape, dtype=node.dtype, value=other)
    return Choice(shape=node.shape, dtype=node.dtype, when=when, arg=node, other=rest)


def _by_channel(groups: Value, weight: Node) -> bool:
    return groups != 1 and weight.shape[1] == ONE


@lowers("convolution")
def convolution(
    call: LoweredCall,
    x: Node,
    weight: Node,
    bias: Node | None,
    stride: Sequence[Value],
    padding: Sequence[Value],
    dilation: Sequence[Value],
    transposed: bool,
    output_padding: Sequence[Value],
    groups: Value,
) -> Node:
    """A convolution: a product with the unfolded image, or a sum of taps for each channel."""
    single = groups == 1
    if not (single or _by_channel(groups, weight)):
        raise call.unsupported("in groups")
    dtype, shape = call.dtype, call.shape
    if transposed:
        window = Window(shape, weight.shape, stride, padding, dilation, x.shape)
        return _plus(_image_gradient(window, x, shape, weight, dtype, single), bias)
    window = Window(x.shape, weight.shape, stride, padding, dilation, shape)
    if single:
        flat = reshaped(weight, (weight.shape[0], product_of(weight.shape[1:])))
        found = reshaped(
            product(expanded(flat, (x.shape[0], *flat.shape)), window.unfolded(x), dtype), shape
        )
    else:
        found = _taps_sum(window, x, weight, shape, dtype)
    return _plus(found, bias)


def _plus(found: Node, bias: Node | None) -> Node:
    if bias is None:
        return found
    wide = reshaped(bias, (bias.shape[0], *([ONE] * (len(found.shape) - 2))))
    return mapped("add", found, wide, dtype=found.dtype)


def _taps_sum(window: Window, x: Node, weight: Node, shape: Shape, dtype: str) -> Node:
    own = axes_of(shape)
    parts = []
    for taps in window.all_taps():
        at = [whole(tap) for tap in taps]
        value = window.source(x, shape, own[:2], own[2:], at)
        factor = viewed(weight, shape, (own[1], ZERO, *at))
        parts.append(mapped("mul", value, factor, dtype=dtype))
    return _added(parts, dtype)


@lowers("convolution_backward")
def convolution_backward(
    call: LoweredCall,
    grad: Node,
    x: Node,
    weight: Node,
    bias_sizes: Value,
    stride: Sequence[Value],
    padding: Sequence[Value],
    dilation: Sequence[Value],
    transposed: bool,
    output_padding: Sequence[Value],
    groups: Value,
    wanted: Sequence[bool],
) -> list[Node | None]:
    single = groups == 1
    if transposed or not (single or _by_channel(groups, weight)):
        raise call.unsupported("transposed or in groups")
    window = Window(x.shape, weight.shape, stride, padding, dilation, grad.shape)
    image = kernel = bias = None
    dtype = grad.dtype
    if wanted[0]:
        image = _image_gradient(window, grad, x.shape, weight, dtype, single)
    if wanted[1]:
        kernel = _weight_gradient(window, grad, x, weight, dtype, single)
    if wanted[2]:
        rank = len(grad.shape)
        bias = folded("sum", grad, [0, *range(2, rank)], False, dtype)
    return [image, kernel, bias]


def _image_gradient(
    window: Window, grad: Node, image: Shape, weight: Node, dtype: str, single: bool
) -> Node:
    if not single:
        own = axes_of(image)
        parts = []
        for taps in window.all_taps():
            places, when = window.back(own[2:], taps)
            value = _where(when, viewed(grad, image, [*own[:2], *places]), 0.0)
            factor = viewed(weight, image, (own[1], ZERO, *(whole(tap) for tap in taps)))
            parts.append(mapped("mul", value, factor, dtype=dtype))
        return _added(parts, dtype)
    if set(window.stride) == {1}:
        return window.turned_back(grad, image, weight, dtype)
    flat = swapped(reshaped(weight, (weight.shape[0], product_of(weight.shape[1:]))))
    places_ = reshaped(grad, (grad.shape[0], grad.shape[1], product_of(grad.shape[2:])))
    columns = product(expanded(flat, (grad.shape[0], *flat.shape)), places_, dtype)
    taps_ = tuple(whole(one) for one in window.taps)
    unrolled = reshaped(columns, (grad.shape[0], weight.shape[1], *taps_, *grad.shape[2:]))
    return window.folded_back(unrolled, image)


def _weight_gradient(
    window: Window, grad: Node, x: Node, weight: Node, dtype: str, single: bool
) -> Node:
    rank = len(grad.shape)
    if not single:
        own = axes_of(grad.shape)
        parts: list[Node] = []
        for taps in window.all_taps():
            value = window.source(x, grad.shape, own[:2], own[2:], [whole(tap) for tap in taps])
            both = mapped("mul", grad, value, dtype=dtype)
            parts.append(folded("sum", both, [0, *range(2, rank)], False, dtype))
        rows = [reshaped(one, (one.shape[0], ONE)) for one in parts]
        return reshaped(joined(rows, 1, dtype), weight.shape)
    places = reshaped(grad, (grad.shape[0], grad.shape[1], product_of(grad.shape[2:])))
    flat = reshaped(permuted(places, [1, 0, 2]), (grad.shape[1], grad.shape[0] * places.shape[2]))
    columns = permuted(window.unfolded(x), [0, 2, 1])
    tall = reshaped(columns, (columns.shape[0] * columns.shape[1], columns.shape[2]))
    return reshaped(product(flat, tall, dtype), weight.shape)


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
) -> list[tuple[Node, tuple[Extent, ...]]]:
    """Return for every tap the value there (a filling outside), and its place in the image."""
    own, lead = axes_of(shape), len(shape) - len(size)
    found: list[tuple[Node, tuple[Extent, ...]]] = []
    rest = Constant(shape=shape, dtype=x.dtype, value=filling)
    for taps in itertools.product(*map(range, size)):
        places, when = list(own[:lead]), []
        for dim, tap in enumerate(taps):
            index = own[lead + dim] * stride[dim] + tap * dilation[dim] - padding[dim]
            places.append(index)
            when += [index, x.shape[lead + dim] - 1 - index]
        here = viewed(x, shape, places)
        inside = Choice(shape=shape, dtype=x.dtype, when=tuple(when), arg=here, other=rest)
        found.append((inside, tuple(places[lead:])))
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
    for value, places in taps:
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
    count = int(call.name.split("pool")[1][0])
    sizes = _numbers(size, count, 1)
    steps = _numbers(stride, count, 0) if stride else sizes
    sides = _numbers(padding, count, 0)
    if ceil_mode:
        raise call.unsupported("with windows that stick out")
    taps = _taps(x, call.shape, sizes, steps, sides, [1] * count, 0.0)
    total = _added([value for value, _ in taps], call.dtype)
    if divisor_override is not None:
        number: Node = constant(known(call, divisor_override, "the divisor"), "float32")
    elif count_include_pad or not any(sides):
        number = constant(math.prod(sizes), "float32")
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
