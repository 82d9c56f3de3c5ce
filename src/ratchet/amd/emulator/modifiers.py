"""Modifiers of an instruction: lanes that move, parts of registers, clamps, signs and patterns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from ratchet.base.errors import KernelError

DPP, SDWA, OUTPUT, HALVES, RETURNS, OFFEN, TO_LDS = 1, 2, 4, 8, 16, 32, 64
"""Flags of a record, as in machine.hpp."""
SELECTIONS: Final = {
    "BYTE_0": 0, "BYTE_1": 1, "BYTE_2": 2, "BYTE_3": 3, "WORD_0": 4, "WORD_1": 5, "DWORD": 6,
}  # fmt: skip
UNUSED: Final = {"UNUSED_PAD": 0, "UNUSED_SEXT": 1, "UNUSED_PRESERVE": 2}
LANES: Final = {
    "row_shl": 0x100, "row_shr": 0x110, "row_ror": 0x120, "row_newbcast": 0x150,
    "row_share": 0x150, "row_xmask": 0x160,
    "wave_shl": 0x12F, "wave_rol": 0x133, "wave_shr": 0x137, "wave_ror": 0x13B,
}  # fmt: skip
"""Movements with a number, which is added to the code."""
WHOLE_LANES: Final = {"row_mirror": 0x140, "row_half_mirror": 0x141}
BROADCASTS: Final = {"15": 0x142, "31": 0x143}
CDNA_ONLY: Final = (
    "row_newbcast", "row_bcast", "wave_shl", "wave_rol", "wave_shr", "wave_ror", "src0_sel",
    "src1_sel", "dst_sel", "dst_unused",
)  # fmt: skip
RDNA_ONLY: Final = ("row_share", "row_xmask", "dpp8", "fi")


def vector_modifiers(
    modifiers: Mapping[str, str], sources: int, lanes: int
) -> tuple[list[int], int]:
    """Return the numbers and flags of a vector instruction's modifiers."""
    for key in CDNA_ONLY if lanes == 32 else RDNA_ONLY:
        if key in modifiers:
            raise KernelError(f"the modifier {key} is not emulated for waves of {lanes} lanes")
    aux, flags = [0] * 8, 0
    parts = {"src0_sel": 0, "src1_sel": 4, "dst_sel": 8}
    selected = 6 | 6 << 4 | 6 << 8
    rows, banks, zero = 15, 15, 0
    for key, value in modifiers.items():
        if key in LANES:
            aux[0], flags = LANES[key] + int(value), flags | DPP
        elif key in WHOLE_LANES:
            aux[0], flags = WHOLE_LANES[key], flags | DPP
        elif key == "row_bcast" and value in BROADCASTS:
            aux[0], flags = BROADCASTS[value], flags | DPP
        elif key == "dpp8":
            places = bits_of(value, 8)
            aux[0] = 1 << 24 | sum(place << 3 * index for index, place in enumerate(places))
            zero, flags = zero | 1, flags | DPP
        elif key == "fi" and value == "1":
            zero |= 2
        elif key == "quad_perm":
            places = bits_of(value, 4)
            aux[0] = sum(place << 2 * index for index, place in enumerate(places))
            flags |= DPP
        elif key in ("row_mask", "bank_mask"):
            rows, banks = (int(value, 0), banks) if key == "row_mask" else (rows, int(value, 0))
        elif key == "bound_ctrl":
            zero |= 1
        elif key in parts and value in SELECTIONS:
            selected = selected & ~(15 << parts[key]) | SELECTIONS[value] << parts[key]
            flags |= SDWA
        elif key == "dst_unused" and value in UNUSED:
            selected, flags = selected | UNUSED[value] << 12, flags | SDWA
        elif key == "clamp":
            aux[4], flags = aux[4] | 1, flags | OUTPUT
        elif (key, value) in (("mul", "2"), ("mul", "4"), ("div", "2")):
            aux[4] |= {"mul2": 1, "mul4": 2, "div2": 3}[key + value] << 1
            flags |= OUTPUT
        elif key == "op_sel":
            bits = bits_of(value, sources + 1)
            aux[2] = sum(bit << index for index, bit in enumerate(bits[:-1])) | bits[-1] << 3
            flags |= HALVES
        elif key != "bitop3":
            raise KernelError(f"the modifier {key}:{value} is not emulated".replace(": ", " "))
    aux[1], aux[3] = rows | banks << 4 | zero << 8, selected
    return aux, flags


def selections(modifiers: Mapping[str, str], sources: int, *, high: int | None = None) -> int:
    """Return the halves that a packed instruction reads, and their signs, as a record's bits."""
    check_only(modifiers, ("op_sel", "op_sel_hi", "neg_lo", "neg_hi"))
    default = (1 << sources) - 1 if high is None else high
    found = default << 8
    for key, shift in (("op_sel", 0), ("op_sel_hi", 8), ("neg_lo", 16), ("neg_hi", 24)):
        if key in modifiers:
            bits = bits_of(modifiers[key], sources)
            chosen = sum(bit << index for index, bit in enumerate(bits))
            found = found & ~(255 << shift) | chosen << shift
    return found


def first_signs(text: str) -> str:
    """Return the first two of a list of bits as text: `10` for `[1,0,0]`."""
    return "".join(str(one) for one in bits_of(text, 3)[:2])


def bits_of(text: str, count: int) -> list[int]:
    """Return the numbers of a list as text, `[0,1]`; raises KernelError if they are not `count`."""
    found = [int(one) for one in re.findall(r"\d+", text)]
    if len(found) != count or max(found, default=0) >= max(4, count):
        raise KernelError(f"the modifier's list {text} is not as long as expected")
    return found


def swizzle_pattern(text: str) -> int:
    """Return the pattern of ds_swizzle_b32 (section "LDS & GDS instructions")."""
    found = re.match(r"^swizzle\((\w+),(.*)\)$", text)
    if found is None:
        return int(text, 0)
    kind, rest = found[1], found[2].replace('"', "")
    if kind == "SWAP":
        return 0x1F | int(rest) << 10
    if kind == "REVERSE":
        return 0x1F | (int(rest) - 1) << 10
    if kind == "BROADCAST":
        size, lane = (int(one) for one in rest.split(","))
        return (0x1F & ~(size - 1)) | lane << 5
    if kind == "QUAD_PERM":
        return 0x8000 | sum(int(one) << 2 * at for at, one in enumerate(rest.split(",")))
    if kind == "BITMASK_PERM" and len(rest) == 5:
        masks = [0, 0, 0]
        for bit, letter in zip((16, 8, 4, 2, 1), rest, strict=True):
            masks[0] |= bit * (letter in "pi")
            masks[1] |= bit * (letter == "1")
            masks[2] |= bit * (letter == "i")
        return masks[0] | masks[1] << 5 | masks[2] << 10
    raise KernelError(f"the pattern {text} is not emulated")


def number_of(modifiers: Mapping[str, str], key: str) -> int:
    """Return a modifier's number; 0 without it."""
    return int(modifiers.get(key) or "0", 0)


def check_only(modifiers: Mapping[str, str], known: Sequence[str]) -> None:
    """Raise KernelError for a modifier that is not among the known ones."""
    for key in modifiers:
        if key not in known:
            raise KernelError(f"the modifier {key} is not emulated here")
