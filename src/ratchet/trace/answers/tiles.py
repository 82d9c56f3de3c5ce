"""Tile, instruction set and split of matrix kernels, by their names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Tiled:
    """The parts of a matrix kernel's name; each is empty if the name does not tell it."""

    tile: str = ""  # Rows x columns x depth of the output's tile, as far as they are named
    isa: str = ""  # gfx942, sm80
    split: str = ""  # Parts of the inner dimension: a number, `split-K` or `stream-K`


# Tensile and hipBLASLt: MT is the macro tile, GSU the GlobalSplitU, SK the stream-K mode
# (Tensile's `Tensile/Common.py` has the abbreviations; GSUAMB and GSUASB name an algorithm).
_TENSILE = re.compile(r"^Cijk_")
_MACRO_TILE = re.compile(r"_MT(\d+x\d+(?:x\d+)?)")
_AMD = re.compile(r"_ISA(\d[0-9a-f]{2,3})")
_GLOBAL_SPLIT = re.compile(r"_GSU(\d+)(?:_|$)")
_STREAM_K = re.compile(r"_SK([1-9])")
# cuBLAS, cuDNN and CUTLASS: the first sizes are the tile's; depth x stages may follow.
_NVIDIA = (
    re.compile(r"tilesize(\d+x\d+x\d+)"),
    re.compile(r"nvjet_\w*?_(\d+x\d+)_(\d+)x\d+"),
    re.compile(r"_(\d+x\d+)_(\d+)x\d+(?:_|$)"),
    re.compile(r"(?:gemm|gemmEx|cudnn|conv|_nn|_tn|_nt)\w*?_(\d+x\d+)(?:_|$)"),
)
_SM = re.compile(r"(?:^|_)sm_?(\d{2,3})(?:_|$)|cutlass_(\d{2,3})_|cutlass3x_sm(\d{2,3})")
_GENERATIONS = {"maxwell": "50", "volta": "70", "turing": "75", "ampere": "80", "hopper": "90"}
_SPLIT_K = re.compile(r"^(?!.*splitKreduce).*split_?k(?!v)", re.IGNORECASE)
# Triton's grouped products (triton_kernels): rows x columns x depth x split.
_OGS = re.compile(r"^_matmul_ogs\w*?_(\d+x\d+x\d+)x(\d+)(?:_|$)")


@lru_cache(maxsize=4096)
def tile_of(kernel: str) -> Tiled:
    """Read a kernel's name."""
    if _TENSILE.search(kernel):
        tile, isa = _MACRO_TILE.search(kernel), _AMD.search(kernel)
        split = _GLOBAL_SPLIT.search(kernel)
        return Tiled(
            tile=tile[1] if tile else "",
            isa=f"gfx{isa[1]}" if isa else "",
            split="stream-K" if _STREAM_K.search(kernel) else split[1] if split else "",
        )
    if ogs := _OGS.search(kernel):
        return Tiled(tile=ogs[1], split=ogs[2])
    named = kernel.partition("<")[0] if kernel.startswith("void ") else kernel
    sm = _SM.search(kernel)
    isa_of = next((one for one in sm.groups() if one), "") if sm else ""
    isa_of = isa_of or next((n for word, n in _GENERATIONS.items() if word in named), "")
    found = next((match for shape in _NVIDIA if (match := shape.search(kernel))), None)
    return Tiled(
        tile="x".join(filter(None, found.groups())) if found else "",
        isa=f"sm{isa_of}" if isa_of else "",
        split="split-K" if _SPLIT_K.search(kernel) else "",
    )
