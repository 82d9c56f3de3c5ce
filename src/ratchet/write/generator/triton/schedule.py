"""A Triton kernel's choices as data: names and values as texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ratchet.write.author import Schedule

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
