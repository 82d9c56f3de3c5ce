"""Macros that mean the same on NVIDIA and AMD, for code that counts warps of 32 lanes.

A wave of CDNA has 64 lanes: two warps of 32 share it. Votes and matches of the wave are cut to the
half that the lane is in, and masks are moved there. ROCm 7 asserts that a mask names active lanes
only, where NVIDIA's full mask may name threads that a block does not have. On RDNA, and on NVIDIA,
nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_HALF: Final = "(__lane_id() & 32u)"
AMD_AND_CUDA: Final = {
    "PORT_MASK64(mask)": (
        f"(((unsigned long long)(unsigned)(mask) << {_HALF}) & __ballot(1))",
        "(mask)",
    ),
    "PORT_BALLOT32(mask, p)": (
        f"((unsigned)(__ballot(p) >> {_HALF}) & (unsigned)(mask))",
        "__ballot_sync(mask, p)",
    ),
    "PORT_ACTIVEMASK32()": (f"((unsigned)(__ballot(1) >> {_HALF}))", "__activemask()"),
    "PORT_MATCH_ANY32(mask, v)": (
        f"((unsigned)(__match_any(v) >> {_HALF}) & (unsigned)(mask))",
        "__match_any_sync(mask, v)",
    ),
    "PORT_WAVES_PER_EU(threads, blocks)": (
        "((threads) * (blocks) < 256 ? 1 : (threads) * (blocks) / 256)",
        "(blocks)",
    ),
}
"""Each macro's text on AMD, and on CUDA. The wave count is for four SIMDs with 64 lanes."""


def prelude(needed: Iterable[str]) -> str:
    """Return the definitions of the macros, in the order of their names; "" for none."""
    wanted = set(needed)
    signatures = [one for one in AMD_AND_CUDA if one.partition("(")[0] in wanted]
    return "".join(_definition(one) for one in sorted(signatures))


def _definition(signature: str) -> str:
    amd, cuda = AMD_AND_CUDA[signature]
    name = signature.partition("(")[0]
    return (
        f"#ifndef {name}\n#ifdef __HIP_PLATFORM_AMD__\n#define {signature} {amd}\n"
        f"#else\n#define {signature} {cuda}\n#endif\n#endif\n"
    )
