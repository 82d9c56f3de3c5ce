"""Operands of an instruction's text, the signs around them, and its modifiers."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from ratchet.base.errors import KernelError

NAMED: Final = {
    "vcc": (106, 2), "vcc_lo": (106, 1), "vcc_hi": (107, 1), "exec": (126, 2),
    "exec_lo": (126, 1), "exec_hi": (127, 1), "m0": (124, 1), "ttmp7": (115, 1), "ttmp8": (116, 1),
    "ttmp9": (117, 1), "flat_scratch_lo": (102, 1), "flat_scratch_hi": (103, 1),
}  # fmt: skip
"""Named scalar registers, and how many each means (section "Scalar ALU Operands")."""
BITS: Final = {"scc": 0, "src_scc": 0, "vccz": 1, "src_vccz": 1, "execz": 2, "src_execz": 2}
APERTURES: Final = {"src_shared_base": 1 << 48, "src_private_base": 2 << 48}
"""Where LDS and scratch begin among the addresses of flat instructions; memory.hpp has them too."""
KINDS: Final = {"none": 0, "vector": 1, "scalar": 2, "constant": 3, "bit": 4}
REGISTER: Final = re.compile(r"^([vas])(?:(\d+)|\[(\d+):(\d+)\])$")
LIMITS: Final = {"v": 256, "a": 256, "s": 106}
"""RDNA has 106 scalar registers; CDNA's compiler stops at 102."""
DROPPED: Final = 118  # the scalar register that takes a result for `null`; nothing reads it
ACCUMULATION: Final = 256  # accumulation registers follow the vector registers
NEGATIVE, ABSOLUTE, SIGNED = 1, 2, 4
FLOATS: Final = {"f": "<f", "D": "<d", "h": "<e"}
Kind = Literal["none", "vector", "scalar", "constant", "bit"]


@dataclass(frozen=True, slots=True)
class Operand:
    kind: Kind
    number: int = 0
    registers: int = 0
    modifiers: int = 0
    value: int = 0  # the 64 bits of a constant

    def words(self) -> tuple[int, int, int, int, int]:
        """Return the fields of the machine's operand."""
        low, high = self.value & 0xFFFFFFFF, self.value >> 32 & 0xFFFFFFFF
        return KINDS[self.kind], self.modifiers, self.number, low, high


NO_OPERAND: Final = Operand("none")
RECORD: Final = struct.Struct("<HHi" + 6 * "BBHII" + "8i")


@dataclass(slots=True)
class MachineOp:
    """One instruction for the machine; `operation` is a name in `source.numbers`."""

    operation: str
    operands: list[Operand] = field(default_factory=list)
    aux: list[int] = field(default_factory=list)
    flags: int = 0

    def packed(self, number: int, line: int) -> bytes:
        """Return the record with its operation's number and the number of its source line."""
        six = [*self.operands, *[NO_OPERAND] * 6][:6]
        words = [word for one in six for word in one.words()]
        aux = [*self.aux, *[0] * 8][:8]
        wrapped = [(value + (1 << 31)) % (1 << 32) - (1 << 31) for value in aux]
        return RECORD.pack(number, self.flags, line, *words, *wrapped)


def parse_operand(text: str, kind: str) -> Operand:
    """Parse an operand; `kind` is a letter of the table that gives a constant its meaning."""
    modifiers = 0
    if text.startswith("-") and not re.match(r"^-(\d|0x)", text):
        modifiers, text = NEGATIVE, text[1:]
    if text.startswith("|") and text.endswith("|") and len(text) > 2:
        modifiers, text = modifiers | ABSOLUTE, text[1:-1]
    if found := re.match(r"^sext\((.*)\)$", text):
        modifiers, text = modifiers | SIGNED, found[1]
    register = parse_register(text)
    if register is not None:
        return Operand(register.kind, register.number, register.registers, modifiers)
    if text in BITS:
        return Operand("bit", BITS[text], 0, modifiers)
    if text in APERTURES:
        return Operand("constant", value=APERTURES[text])
    if text == "off":
        return NO_OPERAND
    if text == "null":
        return Operand("constant")
    return Operand("constant", 0, 0, modifiers, constant_bits(text, kind))


def parse_register(text: str) -> Operand | None:
    """Parse a register, or several; None for another text."""
    if text in NAMED:
        number, count = NAMED[text]
        return Operand("scalar", number, count)
    found = REGISTER.match(text)
    if found is None:
        return None
    first = int(found[2] or found[3])
    last = int(found[2] or found[4])
    if last < first or last >= LIMITS[found[1]]:
        raise KernelError(f"the register {text} does not exist")
    if found[1] == "s":
        return Operand("scalar", first, last - first + 1)
    behind = ACCUMULATION if found[1] == "a" else 0
    return Operand("vector", first + behind, last - first + 1)


def constant_bits(text: str, kind: str) -> int:
    """Return the 64 bits of a constant: a float in its operand's type, an integer sign-extended."""
    if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)", text):
        value = int(text, 0)
        if kind == "D" and abs(value) > 64:  # a literal is the high half of an f64
            return (value & 0xFFFFFFFF) << 32
        return value & 0xFFFFFFFFFFFFFFFF
    if re.fullmatch(r"-?\d+\.\d*(e[-+]?\d+)?", text):
        packed = struct.pack(FLOATS.get(kind, "<f"), float(text))
        return int.from_bytes(packed, "little")
    raise KernelError(f"the operand {text!r:.60} is not known")


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
    return int(modifiers.get(key) or "0", 0)


def check_only(modifiers: Mapping[str, str], known: Sequence[str]) -> None:
    for key in modifiers:
        if key not in known:
            raise KernelError(f"the modifier {key} is not emulated here")
