"""Reductions and scans over tiles, in Triton."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from ratchet.write.form.build import class_of
from ratchet.write.form.form import Node, UnsupportedOp
from ratchet.write.form.op_table import FOLDS, MAPS, FoldOp, filled
from ratchet.write.generator.triton.values import TYPES

LIMITS: Final = {"int64_t": (-(2**63), 2**63 - 1), "int32_t": (-(2**31), 2**31 - 1)}


@dataclass(frozen=True, kw_only=True)
class TileFolding:
    """A reduction's type and start, and how it takes values in."""

    op: FoldOp
    kind: str
    used: set[str]
    """Takes the functions of the prelude that the texts call."""

    @property
    def type(self) -> str:
        return "tl.int32" if self.kind == "bool" else TYPES[self.kind]

    @property
    def torch_type(self) -> str:
        """Return torch's name of the accumulator's dtype."""
        return self.type.removeprefix("tl.")

    @property
    def start(self) -> str:
        """Return the neutral element."""
        neutral = self.op.neutral
        if math.isinf(neutral) and self._is_whole:
            own = "int32_t" if self.kind == "bool" else self.kind
            return str(LIMITS[own][neutral > 0])
        return f'float("{neutral}")' if math.isinf(neutral) else str(neutral)

    @property
    def _is_whole(self) -> bool:
        return self.kind not in ("float", "double")

    def ready(self, value: str, mask: str) -> str:
        """Return a value of the whole tile, neutral outside of the mask."""
        if self.kind == "bool":
            return f"tl.where({mask}, {value}.to(tl.int32), {self.start})"
        neutral = f"tl.full((), {self.start}, {self.type})" if self.kind in LIMITS else self.start
        return f"tl.where({mask}, {value}, {neutral})"

    def joined(self, one: str, other: str) -> str:
        """Return two values taken together."""
        if self.op.sign:
            return f"{one} {self.op.sign} {other}"
        return self._filled(MAPS[self.op.name].triton_text(whole=self._is_whole), one, other)

    def along(self, value: str, axis: int) -> str:
        """Return the reduction of a tile along an axis, which keeps size 1."""
        template = (self._is_whole and self.op.along_whole) or self.op.along
        return self._filled(template, value, str(axis))

    def result(self, total: str) -> str:
        """Return the reduction's value as its node has it."""
        return f"{total} != 0" if self.kind == "bool" else total

    def scanned(self, value: str) -> str:
        """Return the running reduction of a tile's rows."""
        if not self.op.scan:
            raise UnsupportedOp(f"scan of {self.op.name}", "in Triton")
        return self._filled(self.op.scan, value)

    def _filled(self, template: str, *args: str) -> str:
        return filled(template, args, self.used)


def tile_folding(node: Node, op: str, used: set[str]) -> TileFolding:
    """Return how a reduction or a scan takes values in."""
    return TileFolding(op=FOLDS[op], kind=class_of(node.dtype), used=used)


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
