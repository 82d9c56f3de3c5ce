"""A kernel's choices as data, in C++ and in Triton: names and values as texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ratchet.write.author import Schedule

OPTIONS: Final[dict[str, tuple[str, ...]]] = {
    "fuse": ("all", "none"),
    "grain": ("2048", "8192", "32768", "131072"),
    "block": ("512", "2048", "8192"),
    "width": ("512", "256"),
    "keep": ("costly", "none", "all"),
    "stream": ("no", "yes"),
    "unroll": ("no", "yes"),
    "division": ("reciprocal", "exact"),
    "tile": ("32", "no", "16", "64"),
    "chain": ("yes", "no"),
    "factors": ("read", "kept"),
    "epilogue": ("fused", "kept"),
    "depth": ("320", "192", "512"),
    "rows": ("96", "192", "288"),
    "columns": ("512", "256", "1024"),
    "direct": ("64", "0", "1024"),
    "denormals": ("zero", "kept"),
}
"""Every choice with its values, the default first."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """A schedule, read."""

    fuse: bool = True
    """Nodes that fit share loop nests."""
    chain: bool = True
    """Stages around batched products run for one element of the batch at a time."""
    grain: int = 2048
    """Elements below which a nest runs on one thread."""
    block: int = 512
    """Elements of a row that one thread takes at a time, without reductions over rows."""
    width: int = 512
    """Bits of a vector register."""
    keep: str = "costly"
    """Values that a later pass over a row reads from a buffer instead of computing them again."""
    stream: bool = False
    """Outputs bypass the caches."""
    unroll: bool = False
    reciprocal: bool = True
    """A number that divides a whole row is inverted once."""
    tile: int = 0
    """Side of a square in which transposing loops run; 0 for rows."""
    factors: str = "read"
    """Products read factors where they lie, a convolution's windows too; or `kept`: from copies."""
    epilogue: bool = True
    """Operations that follow a product element by element are computed for each block of it."""
    depth: int = 320
    """Words along the inner size in a block of a product."""
    rows: int = 96
    columns: int = 512
    direct: int = 64
    """Rows of a product up to which it reads float32 columns where they lie."""
    denormals: bool = False
    """Products take denormal numbers as they are, which is slow; or as 0."""

    @property
    def blocks(self) -> tuple[str, ...]:
        """Return definitions of the sizes that `gemm.h` uses."""
        names = ("depth", "rows", "columns", "direct", "denormals")
        return tuple(f"#define R_{name.upper()} {int(getattr(self, name))}" for name in names)


def read(schedule: Schedule) -> Choices:
    """Return the choices of a schedule; the defaults for what it does not name."""
    given = dict(schedule)
    default = {name: values[0] for name, values in OPTIONS.items()}
    of = default | {name: value for name, value in given.items() if name in OPTIONS}
    return Choices(
        fuse=of["fuse"] == "all",
        chain=of["chain"] == "yes",
        grain=int(of["grain"]),
        block=int(of["block"]),
        width=int(of["width"]),
        keep=of["keep"],
        stream=of["stream"] == "yes",
        unroll=of["unroll"] == "yes",
        reciprocal=of["division"] == "reciprocal",
        tile=0 if of["tile"] == "no" else int(of["tile"]),
        factors=of["factors"],
        epilogue=of["epilogue"] == "fused",
        depth=int(of["depth"]),
        rows=int(of["rows"]),
        columns=int(of["columns"]),
        direct=int(of["direct"]),
        denormals=of["denormals"] == "kept",
    )


TILE_OPTIONS: Final[dict[str, tuple[str, ...]]] = {
    "fuse": ("all", "none"),
    "block": ("1024", "512", "2048", "4096", "8192"),
    "row": ("8192", "2048", "32768"),
    "programs": ("1024", "256", "4096"),
    "loop": ("no", "yes"),
    "turn": ("yes", "no"),
    "prologue": ("fused", "kept"),
    "product": ("64x64x32", "128x128x32", "128x64x64", "64x128x64", "32x64x64", "16x64x128"),
    "num_warps": ("4", "8", "2", "1"),
    "num_stages": ("2", "1", "3"),
    "waves_per_eu": ("0", "1", "2", "4"),
    "matrix_instr_nonkdim": ("0", "16", "32"),
}
"""Every choice with its values, the default first."""


@dataclass(frozen=True, kw_only=True)
class TileChoices:
    """A schedule, read."""

    fuse: bool
    """Nodes that fit share kernels."""
    block: int
    """Elements of a program's tile."""
    row: int
    """Longest row that one tile holds whole; longer ones are read block by block."""
    programs: int
    """Programs that share the rows of a reduction over columns, and of persistent kernels."""
    loop: bool
    """Programs stay and take several tiles, in all nests."""
    turn: bool
    """Tiles are squares where a view swaps dimensions."""
    prologue: bool
    """A product's factors are computed as its tiles are read, and not kept in memory first."""
    tile: tuple[int, int, int]
    """Rows, columns and depth of a product's tile."""
    warps: int
    stages: int
    waves: int
    """Waves per execution unit to compile for on AMD; 0 for the compiler's own choice."""
    nonkdim: int
    """Rows of a matrix instruction on AMD; 0 for the compiler's own choice."""


def read_tiles(schedule: Schedule) -> TileChoices:
    """Return the choices of a schedule; the defaults for what it does not name."""
    given = dict(schedule)
    of = {name: given.get(name, values[0]) for name, values in TILE_OPTIONS.items()}
    rows, columns, depth = map(int, of["product"].split("x"))
    return TileChoices(
        fuse=of["fuse"] == "all",
        block=int(of["block"]),
        row=int(of["row"]),
        programs=int(of["programs"]),
        loop=of["loop"] == "yes",
        turn=of["turn"] == "yes",
        prologue=of["prologue"] == "fused",
        tile=(rows, columns, depth),
        warps=int(of["num_warps"]),
        stages=int(of["num_stages"]),
        waves=int(of["waves_per_eu"]),
        nonkdim=int(of["matrix_instr_nonkdim"]),
    )
