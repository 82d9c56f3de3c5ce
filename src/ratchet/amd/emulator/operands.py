"""Operands of an instruction's text: registers, constants, and the signs around them."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
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
DROPPED: Final = 118
"""The scalar register that takes a result for `null`; nothing reads it."""
ACCUMULATION: Final = 256
"""Accumulation registers follow the vector registers."""
NEGATIVE, ABSOLUTE, SIGNED = 1, 2, 4
FLOATS: Final = {"f": "<f", "D": "<d", "h": "<e"}
Kind = Literal["none", "vector", "scalar", "constant", "bit"]


@dataclass(frozen=True, slots=True)
class MachineOperand:
    """One operand of a record."""

    kind: Kind
    number: int = 0
    registers: int = 0
    modifiers: int = 0
    value: int = 0
    """The 64 bits of a constant."""

    def words(self) -> tuple[int, int, int, int, int]:
        """Return the fields of the machine's operand."""
        low, high = self.value & 0xFFFFFFFF, self.value >> 32 & 0xFFFFFFFF
        return KINDS[self.kind], self.modifiers, self.number, low, high


NO_OPERAND: Final = MachineOperand("none")


def registers_of(one: MachineOperand) -> int:
    """Return the operand's number of registers; 0 for a constant."""
    return one.registers


def parse_operand(text: str, kind: str) -> MachineOperand:
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
        return MachineOperand(register.kind, register.number, register.registers, modifiers)
    if text in BITS:
        return MachineOperand("bit", BITS[text], 0, modifiers)
    if text in APERTURES:
        return MachineOperand("constant", value=APERTURES[text])
    if text == "off":
        return NO_OPERAND
    if text == "null":
        return MachineOperand("constant")
    return MachineOperand("constant", 0, 0, modifiers, constant_bits(text, kind))


def parse_register(text: str) -> MachineOperand | None:
    """Parse a register, or several; None for another text."""
    if text in NAMED:
        number, count = NAMED[text]
        return MachineOperand("scalar", number, count)
    found = REGISTER.match(text)
    if found is None:
        return None
    first = int(found[2] or found[3])
    last = int(found[2] or found[4])
    if last < first or last >= LIMITS[found[1]]:
        raise KernelError(f"the register {text} does not exist")
    if found[1] == "s":
        return MachineOperand("scalar", first, last - first + 1)
    first += ACCUMULATION if found[1] == "a" else 0
    return MachineOperand(
        "vector", first, last - first + 1 + (ACCUMULATION if found[1] == "a" else 0)
    )


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
