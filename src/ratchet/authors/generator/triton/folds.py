"""Reductions and scans over tiles, in Triton."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ratchet.authors.form.build import class_of
from ratchet.authors.form.form import Node, UnsupportedOp
from ratchet.authors.generator.triton.values import TYPES

Call = Callable[[str], str]
"""Names a function of the prelude, which the source then holds."""
LIMITS: Final = {"int64_t": (-(2**63), 2**63 - 1), "int32_t": (-(2**31), 2**31 - 1)}
SIGNS: Final = {"sum": "+", "prod": "*", "any": "|", "all": "&"}


@dataclass(frozen=True, kw_only=True)
class TileFolding:
    """A reduction's type and start, and how it takes values in."""

    op: str
    kind: str
    call: Call

    @property
    def type(self) -> str:
        """Return the type of the accumulator."""
        return "tl.int32" if self.kind == "bool" else TYPES[self.kind]

    @property
    def torch_type(self) -> str:
        """Return torch's name of the accumulator's dtype."""
        return self.type.removeprefix("tl.")

    @property
    def start(self) -> str:
        """Return the neutral element."""
        if self.op in ("sum", "prod", "any", "all"):
            return "1" if self.op in ("prod", "all") else "0"
        place = self.op == "min"
        if self.kind in LIMITS:
            return str(LIMITS[self.kind][place])
        return f'float("{"inf" if place else "-inf"}")'

    def ready(self, value: str, mask: str) -> str:
        """Return a value of the whole tile, neutral outside of the mask."""
        if self.kind == "bool":
            return f"tl.where({mask}, {value}.to(tl.int32), {self.start})"
        neutral = f"tl.full((), {self.start}, {self.type})" if self.kind in LIMITS else self.start
        return f"tl.where({mask}, {value}, {neutral})"

    def joined(self, one: str, other: str) -> str:
        """Return two values taken together."""
        if self.op in SIGNS:
            return f"{one} {SIGNS[self.op]} {other}"
        if self.kind in ("float", "double"):
            return f"{self.call(self.op)}({one}, {other})"
        return f"tl.{self.op}imum({one}, {other})"

    def along(self, value: str, axis: int) -> str:
        """Return the reduction of a tile along an axis, which keeps size 1."""
        if self.op == "sum":
            return f"tl.sum({value}, {axis}, keep_dims=True)"
        if self.op == "prod":
            return f"tl.reduce({value}, {axis}, {self.call('times')}, keep_dims=True)"
        if self.op in ("any", "all") or self.kind not in ("float", "double"):
            call = "max" if self.op in ("any", "max") else "min"
            return f"tl.{call}({value}, {axis}, keep_dims=True)"
        return f"{self.call('top' if self.op == 'max' else 'bottom')}({value}, {axis})"

    def result(self, total: str) -> str:
        """Return the reduction's value as its node has it."""
        return f"{total} != 0" if self.kind == "bool" else total

    def scanned(self, value: str) -> str:
        """Return the running reduction of a tile's rows."""
        if self.op == "sum":
            return f"tl.cumsum({value}, 1)"
        if self.op == "prod":
            return f"tl.cumprod({value}, 1)"
        if self.op == "max":
            return f"tl.associative_scan({value}, 1, {self.call('max')})"
        raise UnsupportedOp(f"scan of {self.op}", "in Triton")


def tile_folding(node: Node, op: str, call: Call) -> TileFolding:
    """Return how a reduction or a scan takes values in."""
    return TileFolding(op=op, kind=class_of(node.dtype), call=call)


def finisher(way: TileFolding, name: str, stored: str) -> str:
    """Write the kernel that reduces what the programs left: [count, width] to [width]."""
    value = f"tl.load(partial + r * width + c, r_in & c_in, other={way.start})"
    return "\n".join(
        [
            "@triton.jit",
            f"def {name}(partial, out, count, width, ROWS: tl.constexpr, BLOCK: tl.constexpr):",
            "    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]",
            "    c_in = c < width",
            f"    total = tl.full((ROWS, BLOCK), {way.start}, {way.type})",
            "    for first in range(0, count, ROWS):",
            "        r = first + tl.arange(0, ROWS)[:, None]",
            "        r_in = r < count",
            f"        total = {way.joined('total', value)}",
            f"    found = {way.along('total', 0)}",
            f"    found = {way.result('found')}",
            f"    tl.store(out + c, {stored}, c_in)",
        ]
    )
