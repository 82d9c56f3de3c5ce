"""One call as the profiler wrote it: tensors, lists and scalars; and the work that it must do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod

from ratchet.base import Json
from ratchet.trace.answers.collectives import ELEMENT_BYTES

Shape = tuple[int, ...]
Product = tuple[int, int, int]
"""The sizes of one matrix product: m rows of x, n rows of the weight, and the k that they share."""

# Where a figure of `OpWork` is from.
SHAPES = "shapes"
ONCE = "each argument once"
FULL_MASK = "shapes, as if every token attended to every other"
EQUAL_LENGTHS = "at least: as if all sequences were equally long"
PAGES = "at least: without the keys in pages"
GRADIENTS = "the shapes of the gradients"
TILES = "at least: by the tiles and grids of the kernels"
SIZE = "the copy's size"
NOT_KNOWN = "not known"

_FLOATS = re.compile("float|half|double", re.IGNORECASE)
_OF_KERNEL = re.compile(
    r"OpaqueType<(\d+)u?>|(c10::BFloat16|c10::Half|\bdouble\b|\bfloat\b|\blong\b|\bint\b|\bbool\b)"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class OpWork:
    """The least that one call must do, and where each figure is from."""

    flops: int  # 0 if not known
    size_bytes: int  # Every input read once and every output written once
    dtype: str  # Type of the first floating-point input, as the profiler wrote it
    flops_from: str
    bytes_from: str
    product: Product | None = None  # The sizes, if it is one matrix product


@dataclass(frozen=True, slots=True)
class Counted:
    """A rule's figures. None as FLOPs means that they are not known."""

    flops: int | None
    size_bytes: int
    flops_from: str = SHAPES
    bytes_from: str = SHAPES
    product: Product | None = None


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor among a call's arguments; `()` is the shape of a single number."""

    shape: Shape
    width: int  # Bytes of an element
    kind: str  # Type as the profiler wrote it

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.elements * self.width

    @property
    def floating(self) -> bool:
        return _FLOATS.search(self.kind) is not None


class NotRecorded(Exception):
    """Raised by a rule whose figures do not follow from what the profiler recorded."""


def need(known: bool) -> None:
    """Raise NotRecorded unless something that a rule builds on is known."""
    if not known:
        raise NotRecorded


class Call:
    """The arguments of one call, as far as they were recorded."""

    def __init__(self, name: str, dims: str, types: str, concrete: str = "", kernel: str = ""):
        self.name = name
        self.base = name.rpartition("::")[2].rstrip("_") if "::" in name else name
        self.in_place = name.endswith("_") and not name.endswith("__")
        self.kernel = kernel
        self._dims, self._kinds = parse_shapes(dims), [str(k) for k in parse_shapes(types)]
        self._concrete = concrete

    @cached_property
    def arguments(self) -> list[Argument | None]:
        """Return the arguments by place; None where there is no tensor."""
        return [
            Argument(shape, width, kind)
            if (width := width_of(kind)) and (shape := shape_of(entry)) is not None
            else None
            for entry, kind in zip(self._dims, self._kinds, strict=False)
        ]

    @cached_property
    def tensors(self) -> list[Argument]:
        """Return the tensors in order; single numbers are among them."""
        return [one for one in self.arguments if one is not None]

    def at_least(self, count: int) -> list[Argument]:
        """Return the tensors; NotRecorded if there are fewer."""
        need(len(self.tensors) >= count)
        return self.tensors

    @cached_property
    def main(self) -> Argument:
        """Return the first floating-point tensor with a dimension, or else the first tensor."""
        wide = [one for one in self.tensors if one.shape] or self.at_least(1)
        return next((one for one in wide if one.floating), wide[0])

    @cached_property
    def lists(self) -> list[list[Shape]]:
        """Return the shapes in each list of tensors; empty if torch left them out.

        torch writes no shapes of lists with more than 30 tensors.
        """
        return [
            [shape for one in entry if (shape := shape_of(one)) is not None]
            if isinstance(entry, list)
            else []
            for entry, kind in zip(self._dims, self._kinds, strict=False)
            if kind == "TensorList"
        ]

    @cached_property
    def concrete(self) -> list[Json]:
        """Return the values of scalars and lists of numbers; "" for tensors."""
        return [_value(entry) for entry in parse_shapes(self._concrete)]

    def value(self, place: int) -> Json:
        """Return the value of the argument in this place; "" if it was not recorded."""
        return self.concrete[place] if -len(self.concrete) <= place < len(self.concrete) else ""

    def whole(self, place: int) -> int:
        """Return the whole number in this place; NotRecorded if there is none."""
        value = self.value(place)
        if type(value) is not int:
            raise NotRecorded
        return value

    @cached_property
    def number_lists(self) -> list[list[int]]:
        """Return the lists of whole numbers among the arguments."""
        return [
            [one for one in entry if isinstance(one, int)]
            for entry in self.concrete
            if isinstance(entry, list) and all(type(one) is int for one in entry)
        ]

    @cached_property
    def list_width(self) -> int:
        """Return the bytes of an element in a list of tensors, by the kernel's template types."""
        found = _OF_KERNEL.search(self.kernel.partition("<")[2])
        if found is None:
            return self.main.width if self.tensors else 0
        return int(found[1]) if found[1] else width_of(found[2])

    @cached_property
    def kind(self) -> str:
        """Return the type that decides the ceiling."""
        if self.tensors:
            return self.main.kind
        found = _OF_KERNEL.search(self.kernel.partition("<")[2])
        return (found[2] or "") if found else ""


Rule = Callable[[Call], Counted]
"""Counts one call; NotRecorded if its figures do not follow from the recording."""


def parse_shapes(text: str) -> list[Json]:
    """Parse `Input Dims` into nested lists; empty if there is nothing to parse."""
    try:
        value = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return []
    return value if isinstance(value, list) else []


def shape_of(entry: Json) -> Shape | None:
    whole = isinstance(entry, list) and all(isinstance(n, int) and n >= 0 for n in entry)
    return tuple(entry) if whole else None


def width_of(kind: str) -> int:
    """Return the bytes of an element; 0 for what is no tensor."""
    return ELEMENT_BYTES.get(kind.lower(), 0)


def _value(entry: Json) -> Json:
    """Return what a concrete input says: numbers, truth values, lists of them, or the text."""
    if not isinstance(entry, str) or not entry:
        return entry
    try:
        found: Json = json.loads(entry.replace("True", "true").replace("False", "false"))
    except (ValueError, RecursionError):
        return entry
    return found
