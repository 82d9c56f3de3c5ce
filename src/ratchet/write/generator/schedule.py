"""A kernel's choices as data, in C++ and in Triton: names and values as texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

from ratchet.write.author import Schedule


def _choice(*values: str, read: Callable[[str], Any] = int, name: str = "") -> Any:
    """Declare a choice: its values, the default first, how one is read, and another name."""
    return field(metadata={"name": name, "values": values, "read": read})


def _is(chosen: str) -> Callable[[str], bool]:
    return lambda text: text == chosen


class _Read:
    @classmethod
    def options(cls) -> dict[str, tuple[str, ...]]:
        """Return every choice with its values, the default first."""
        own: Any = cls
        return {one.metadata["name"] or one.name: one.metadata["values"] for one in fields(own)}

    @classmethod
    def read(cls, schedule: Schedule) -> Self:
        """Return the choices of a schedule; the defaults for what it does not name."""
        own: Any = cls
        given = dict(schedule)
        texts = [given.get(name, values[0]) for name, values in cls.options().items()]
        pairs = zip(fields(own), texts, strict=True)
        return cls(**{one.name: one.metadata["read"](text) for one, text in pairs})


@dataclass(frozen=True, kw_only=True)
class Choices(_Read):
    fuse: bool = _choice("all", "none", read=_is("all"))  # Nodes that fit share loop nests
    grain: int = _choice("2048", "8192", "32768", "131072")
    """Elements below which a nest runs on one thread."""
    block: int = _choice("512", "2048", "8192")
    """Elements of a row that one thread takes at a time, without reductions over rows."""
    width: int = _choice("512", "256")  # Bits of a vector register
    keep: str = _choice("costly", "none", "all", read=str)
    """Values that a later pass over a row reads from a buffer instead of computing them again."""
    stream: bool = _choice("no", "yes", read=_is("yes"))  # Outputs bypass the caches
    unroll: bool = _choice("no", "yes", read=_is("yes"))
    reciprocal: bool = _choice("reciprocal", "exact", read=_is("reciprocal"), name="division")
    """A number that divides a whole row is inverted once."""
    tile: int = _choice("32", "no", "16", "64", read=lambda text: 0 if text == "no" else int(text))
    """Side of a square in which transposing loops run; 0 for rows."""
    chain: bool = _choice("yes", "no", read=_is("yes"))
    """Stages around batched products run for one element of the batch at a time."""
    factors: str = _choice("read", "kept", read=str)
    """Products read factors where they lie, a convolution's windows too; or `kept`: from copies."""
    epilogue: bool = _choice("fused", "kept", read=_is("fused"))
    """Operations that follow a product element by element are computed for each block of it."""
    depth: int = _choice("320", "192", "512")  # Words along the inner size in a block of a product
    rows: int = _choice("96", "192", "288")
    columns: int = _choice("512", "256", "1024")
    direct: int = _choice("64", "0", "1024")
    """Rows of a product up to which it reads float32 columns where they lie."""
    denormals: bool = _choice("zero", "kept", read=_is("kept"))
    """Products take denormal numbers as they are, which is slow; or as 0."""

    @property
    def blocks(self) -> tuple[str, ...]:
        """Return definitions of the sizes that `gemm.h` uses."""
        names = ("depth", "rows", "columns", "direct", "denormals")
        return tuple(f"#define R_{name.upper()} {int(getattr(self, name))}" for name in names)


@dataclass(frozen=True, kw_only=True)
class TileChoices(_Read):
    fuse: bool = _choice("all", "none", read=_is("all"))  # Nodes that fit share kernels
    block: int = _choice("1024", "512", "2048", "4096", "8192")  # Elements of a program's tile
    row: int = _choice("8192", "2048", "32768")
    """Longest row that one tile holds whole; longer ones are read block by block."""
    programs: int = _choice("1024", "256", "4096")
    """Programs that share the rows of a reduction over columns, and of persistent kernels."""
    loop: bool = _choice("no", "yes", read=_is("yes"))
    """Programs stay and take several tiles, in all nests."""
    turn: bool = _choice("yes", "no", read=_is("yes"))
    """Tiles are squares where a view swaps dimensions."""
    prologue: bool = _choice("fused", "kept", read=_is("fused"))
    """A product's factors are computed as its tiles are read, and not kept in memory first."""
    tile: tuple[int, int, int] = _choice(
        "64x64x32", "128x128x32", "128x64x64", "64x128x64", "32x64x64", "16x64x128",
        read=lambda text: tuple(map(int, text.split("x"))), name="product",
    )  # fmt: skip
    """Rows, columns and depth of a product's tile."""
    warps: int = _choice("4", "8", "2", "1", name="num_warps")
    stages: int = _choice("2", "1", "3", name="num_stages")
    waves: int = _choice("0", "1", "2", "4", name="waves_per_eu")
    """Waves per execution unit to compile for on AMD; 0 for the compiler's own choice."""
    nonkdim: int = _choice("0", "16", "32", name="matrix_instr_nonkdim")
    """Rows of a matrix instruction on AMD; 0 for the compiler's own choice."""


OPTIONS: Final = Choices.options()
TILE_OPTIONS: Final = TileChoices.options()
