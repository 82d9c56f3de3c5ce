"""Forms of instructions that the table lacks: memory, matrix, lanes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from ratchet.amd.emulator.operands import (
    NO_OPERAND,
    OFFEN,
    RETURNS,
    TO_LDS,
    MachineOp,
    Operand,
    bits_of,
    check_only,
    number_of,
    parse_operand,
    selections,
    swizzle_pattern,
)
from ratchet.base.errors import KernelError

CACHE_HINTS: Final = frozenset(("glc", "slc", "dlc", "nt", "sc0", "sc1", "th", "scope"))
ACROSS_LANES: Final = ("ds_bpermute_b32", "ds_permute_b32", "ds_swizzle_b32")
"""Instructions of the LDS's unit that touch none of its memory."""
LOADS: Final = {
    "ubyte": (1, 0), "sbyte": (1, 1), "ushort": (2, 0), "sshort": (2, 1), "dword": (4, 0),
    "dwordx2": (8, 0), "dwordx3": (12, 0), "dwordx4": (16, 0), "short_d16": (2, 2),
    "short_d16_hi": (2, 3), "ubyte_d16": (1, 2), "ubyte_d16_hi": (1, 3),
    "u8": (1, 0), "i8": (1, 1), "u16": (2, 0), "i16": (2, 1), "b32": (4, 0), "b64": (8, 0),
    "b96": (12, 0), "b128": (16, 0), "d16_b16": (2, 2), "d16_hi_b16": (2, 3), "d16_u8": (1, 2),
    "d16_hi_u8": (1, 3), "sbyte_d16": (1, 4), "sbyte_d16_hi": (1, 5), "d16_i8": (1, 4),
    "d16_hi_i8": (1, 5), "u16_d16": (2, 2), "u16_d16_hi": (2, 3), "u8_d16": (1, 2),
    "u8_d16_hi": (1, 3), "i8_d16": (1, 4), "i8_d16_hi": (1, 5),
}  # fmt: skip
"""Loads as CDNA, RDNA and the LDS name them: bytes, and how they fill the register:
unchanged, sign-extended, as its low or high half; 4 and 5 are the halves of a byte with a sign."""
STORES: Final = {
    "byte": (1, 0), "short": (2, 0), "dword": (4, 0), "dwordx2": (8, 0), "dwordx3": (12, 0),
    "dwordx4": (16, 0), "byte_d16_hi": (1, 3), "short_d16_hi": (2, 3),
    "b8": (1, 0), "b16": (2, 0), "b32": (4, 0), "b64": (8, 0), "b96": (12, 0), "b128": (16, 0),
    "d16_hi_b8": (1, 3), "d16_hi_b16": (2, 3), "b8_d16_hi": (1, 3), "b16_d16_hi": (2, 3),
}  # fmt: skip
SCALAR_LOAD: Final = re.compile(
    r"^(s_load|s_buffer_load)_(?:dword(?:x(\d+))?|b(32|64|96|128|256|512)|[iu](8|16))$"
)
_ATOMIC_NAMES: Final = (
    "swap cmpswap add sub smin umin smax umax and or xor inc dec add_f32 add_f64 min_f64 "
    "max_f64 pk_add_f16 pk_add_bf16 min_f32 max_f32 "
)
ATOMICS: Final = {name: number for number, name in enumerate(_ATOMIC_NAMES.split())}
LDS_ATOMICS: Final = {
    "add_u": "add", "sub_u": "sub", "inc_u": "inc", "dec_u": "dec", "min_i": "smin",
    "max_i": "smax", "min_u": "umin", "max_u": "umax", "and_b": "and", "or_b": "or",
    "xor_b": "xor", "wrxchg_b": "swap", "cmpst_b": "cmpswap", "cmpstore_b": "cmpswap",
    "add_f": "add_f", "min_f": "min_f", "max_f": "max_f", "pk_add_f": "pk_add_f",
    "pk_add_bf": "pk_add_bf",
}  # fmt: skip
MFMA: Final = re.compile(
    r"^v_mfma_(f32|i32|f64)_(4|16|32)x\2x(\d+)(?:_(\d+)b)?_?"
    r"(bf16_1k|bf16|f16|xf32|f32|f64|i8|fp8_fp8|fp8_bf8|bf8_fp8|bf8_bf8)$"
)
SCALED: Final = re.compile(r"^v_mfma_(scale_)?f32_(?:(16)x16x(128)|(32)x32x(64))_f8f6f4$")
SCALED_REGISTERS: Final = {"0": 8, "1": 8, "4": 4}
"""Registers of an operand by its type: E4M3, E5M2, E2M1. The other types have 6 bits."""
TRANSPOSED: Final = ("ds_read_b64_tr_b16", "ds_read_b64_tr_b8", "ds_read_b64_tr_b4")
MFMA_STEPS: Final = {
    ("16", "bf16"): (16, 32), ("32", "bf16"): (8, 16), ("16", "f16"): (16, 32),
    ("32", "f16"): (8, 16), ("16", "f32"): (4,), ("32", "f32"): (2,), ("16", "i8"): (32, 64),
    ("32", "i8"): (16, 32), ("16", "fp8"): (32,), ("32", "fp8"): (16,), ("16", "f64"): (4,),
    ("16", "xf32"): (8,), ("32", "xf32"): (4,),
}  # fmt: skip
"""Inner sizes of one-block products, by rows and type; the second ones are gfx950's."""
MI200_STEPS: Final = {
    ("16", "bf16_1k"): (16,), ("32", "bf16_1k"): (8,), ("16", "bf16"): (8,), ("32", "bf16"): (4,),
    ("16", "f16"): (16,), ("32", "f16"): (8,), ("16", "f32"): (4,), ("32", "f32"): (2,),
    ("16", "i8"): (16,), ("32", "i8"): (8,), ("16", "f64"): (4,),
}  # fmt: skip
"""Inner sizes of gfx90a."""
BLOCKS: Final = {"32": 2, "16": 4, "4": 16}
"""Blocks of an instruction with several, by their rows; f64 has 4 of 4 rows."""
BLOCK_STEPS: Final = {"f32": 1, "bf16": 4, "bf16_1k": 4, "f16": 4, "i8": 4}
"""Inner sizes of such blocks; that of gfx90a's `bf16` is 2."""
MFMA_RUN: Final = {"f32": 4, "i32": 4, "f64": 1}
"""Rows of the result that are adjacent in a lane's registers, by the result's type."""
MFMA_TYPES: Final = {
    "bf16": 0, "f16": 1, "f32": 2, "xf32": 2, "i8": 3, "fp8": 4, "bf8": 5, "f64": 9,
}  # fmt: skip
MFMA_BYTES: Final = {"bf16": 2, "f16": 2, "f32": 4, "xf32": 4, "f64": 8}
"""Bytes of an element; 1 for other types."""
MFMA_RESULTS: Final = {"f32": ("f", 0), "i32": ("u", 1), "f64": ("D", 2)}
"""Kind of the result's operand, and its number in a record."""
WMMA: Final = {
    "v_wmma_f32_16x16x16_f16": ("f16", "f16"),
    "v_wmma_f32_16x16x16_bf16": ("bf16", "bf16"),
    "v_wmma_i32_16x16x16_iu8": ("i8", "i8"),
    "v_wmma_f32_16x16x16_fp8_fp8": ("fp8", "fp8"),
    "v_wmma_f32_16x16x16_fp8_bf8": ("fp8", "bf8"),
    "v_wmma_f32_16x16x16_bf8_fp8": ("bf8", "fp8"),
    "v_wmma_f32_16x16x16_bf8_bf8": ("bf8", "bf8"),
}
"""Types of A and B."""
WMMA_LAYOUTS: Final = {"gfx1100": (2, 1), "gfx1201": (1, 8)}
"""Lanes that hold a value of A or B, and adjacent rows of the result."""
UNSIGNED: Final = 8  # unsigned bytes
HAS_SMALL_FLOATS: Final = ("gfx942", "gfx950", "gfx1201")  # targets with 8-bit floats
HAS_OCP: Final = ("gfx950", "gfx1201")  # those of them whose 8-bit floats are OCP's
OCP: Final = 2  # added to an 8-bit float's type if the target has the OCP formats
LANE_FORMS: Final = {
    "v_readfirstlane_b32": 2, "v_readlane_b32": 3, "v_writelane_b32": 3, "v_swap_b32": 2,
    "v_permlane16_swap_b32": 2, "v_permlane32_swap_b32": 2, "s_endpgm": 0, "s_barrier": 0,
    "s_trap": 1, "s_barrier_signal": 1, "s_barrier_wait": 1, "v_permlane16_b32": 4,
    "v_permlanex16_b32": 4, "s_swappc_b64": 2, "s_setpc_b64": 1,
}  # fmt: skip
"""Instructions whose operands are in the text's order."""
SCALAR_RESULTS: Final = ("v_readfirstlane_b32", "v_readlane_b32")


def special(
    name: str, texts: Sequence[str], modifiers: Mapping[str, str], target: str
) -> MachineOp | None:
    """Return the form of an instruction that is not in the table; None if it should be there."""
    if name in LANE_FORMS:
        return _lanes(name, texts, modifiers)
    if name.startswith("v_mfma_"):
        return _matrix(name, texts, modifiers, target)
    if name.startswith("v_wmma_"):
        return _wave_matrix(name, texts, modifiers, target)
    if name in ("v_pk_mov_b32", "v_fma_mix_f32", "v_fma_mixlo_f16", "v_fma_mixhi_f16"):
        return _mixed(name, texts, modifiers)
    if name.startswith(("s_load_", "s_buffer_load_")):
        return _scalar_load(name, texts, modifiers)
    if name.startswith("ds_"):
        return _lds(name, texts, modifiers, target)
    if found := re.match(r"^(buffer|global|flat|scratch)_(load|store|atomic)_(\w+)$", name):
        return _memory(found[1], found[2], found[3], texts, modifiers)
    return None


def _lanes(name: str, texts: Sequence[str], modifiers: Mapping[str, str]) -> MachineOp:
    crosses = name in ("v_permlane16_b32", "v_permlanex16_b32")
    check_only(modifiers, ("op_sel",) if crosses else ())
    if len(texts) != LANE_FORMS[name]:
        raise KernelError(f"{name} has {len(texts)} operands")
    operands = [parse_operand(text, "u") for text in texts]
    if any(one.modifiers for one in operands):
        raise KernelError("a sign is not emulated here")
    if name.startswith("s_barrier_") and texts != ["-1"]:
        raise KernelError(f"the barrier {texts[0]} is not emulated")
    if operands and not name.startswith("s_"):
        wanted = "scalar" if name in SCALAR_RESULTS else "vector"
        if operands[0].kind != wanted:
            raise KernelError(f"the operand {texts[0]} cannot be written")
        is_vector = name not in ("v_writelane_b32", "v_readfirstlane_b32")
        if is_vector and operands[1].kind != "vector":
            raise KernelError(f"the operand {texts[1]} is not a vector register")
    chosen = bits_of(modifiers["op_sel"], 2) if "op_sel" in modifiers else [0, 0]
    return MachineOp(name, operands, [chosen[0] | chosen[1] << 1])


def _matrix(
    name: str, texts: Sequence[str], modifiers: Mapping[str, str], target: str
) -> MachineOp:
    """Return CDNA's dense instructions, of one block or several."""
    if target == "gfx950" and (scaled := SCALED.match(name)):
        return _scaled_matrix(scaled, texts, modifiers)
    check_only(modifiers, ("cbsz", "abid", "blgp"))
    found = MFMA.match(name)
    blocks = _blocks(found, target) if found is not None else 0
    if found is None or not blocks:
        raise KernelError(f"the matrix instruction {name} is not emulated for {target}")
    rows, inner, kind = int(found[2]), int(found[3]), found[5]
    operand_kind, number = MFMA_RESULTS[found[1]]
    first, _, second = kind.removesuffix("_1k").partition("_")
    given = rows * inner * blocks // 64 * MFMA_BYTES.get(first, 1) // 4
    result = rows * rows * blocks // 64 * MFMA_BYTES.get(found[1], 4) // 4
    operands = _matrix_operands(texts, operand_kind, [result, given, given, result])
    shift = OCP if second and target == "gfx950" else 0
    types = [MFMA_TYPES[one] + shift for one in (first, second or first)]
    shared = _shared_blocks(modifiers, 1 if found[1] == "f64" else blocks)
    numbers = [rows, inner, *types, number, MFMA_RUN[found[1]], 0, blocks | shared]
    return MachineOp("mfma", operands, numbers)


def _shared_blocks(modifiers: Mapping[str, str], blocks: int) -> int:
    """Return who shares blocks of A and lanes of B, from bit 8 on.

    Groups of 2 ** `cbsz` blocks all take block `abid` of A in their group. `blgp` has all lanes
    take those of a half (1 and 2) or a quarter (4 to 7) of B.
    """
    size, chosen, lanes = (int(modifiers.get(key, "0")) for key in ("cbsz", "abid", "blgp"))
    known = (0, 1, 2, 4, 5, 6, 7) if blocks > 1 else (0,)
    if 1 << size > blocks or chosen >= 1 << size or lanes not in known:
        raise KernelError(f"cbsz:{size} abid:{chosen} blgp:{lanes} is not emulated here")
    return size << 8 | chosen << 12 | lanes << 16


def _scaled_matrix(
    found: re.Match[str], texts: Sequence[str], modifiers: Mapping[str, str]
) -> MachineOp:
    """Return a product of small floats; `cbsz` and `blgp` are the types of A and B."""
    scales = 2 if found[1] else 0
    check_only(modifiers, ("cbsz", "blgp", *(("op_sel", "op_sel_hi") if scales else ())))
    rows, inner = int(found[2] or found[4]), int(found[3] or found[5])
    types = [modifiers.get(key, "0") for key in ("cbsz", "blgp")]
    if not set(types) <= SCALED_REGISTERS.keys():
        raise KernelError("floats of 6 bits are not emulated")
    result = rows * rows // 64
    registers = [result, *(SCALED_REGISTERS[one] for one in types), result]
    operands = _matrix_operands(texts, "f", registers, scales)
    low = bits_of(modifiers.get("op_sel", "[0,0,0]"), 3)
    high = bits_of(modifiers.get("op_sel_hi", "[1,1,1]"), 3)
    parts = [low[at] + 2 * high[at] for at in range(2)]
    numbers = [rows, inner, *(int(one) for one in types), *parts, int(bool(scales))]
    return MachineOp("mfma_scaled", operands, numbers)


def _blocks(found: re.Match[str], target: str) -> int:
    """Return the blocks of a matrix instruction; 0 if the target does not have it."""
    size, inner, told, kind = found[2], int(found[3]), int(found[4] or 0), found[5]
    result = {"i8": "i32", "f64": "f64"}.get(kind, "f32")
    old = target == "gfx90a"  # its names do not tell the blocks, and have no underscore
    if found[1] != result or old == (found[0][found.start(5) - 1] == "_"):
        return 0
    steps = MI200_STEPS if old else MFMA_STEPS
    known = steps.get((size, "fp8" if kind.count("8_") else kind), ())
    if kind == "xf32" and target != "gfx942":  # CDNA 4 has none any more
        return 0
    if not told and inner in known and (inner == known[0] or target == "gfx950"):
        return 1
    several = 4 if (kind, size) == ("f64", "4") else BLOCKS[size]
    step = 4 if kind == "f64" else BLOCK_STEPS.get(kind, 0)
    if old and kind == "bf16":
        step = 2
    has = inner == step and told == (0 if old else several) and (kind, size) != ("f64", "16")
    return several if has and (old or kind != "bf16_1k") else 0


def _wave_matrix(
    name: str, texts: Sequence[str], modifiers: Mapping[str, str], target: str
) -> MachineOp:
    """Return RDNA's (section "Wave Matrix Multiply Accumulate" of both manuals, waves of 32)."""
    types, layout = WMMA.get(name, ("", "")), WMMA_LAYOUTS.get(target)
    is_small = types[0] in ("fp8", "bf8")
    is_integer = types[0] == "i8"
    if not types[0] or layout is None or (is_small and target != "gfx1201"):
        raise KernelError(f"the matrix instruction {name} is not emulated for {target}")
    check_only(modifiers, ("neg_lo",) if is_integer else ())
    copies, run = layout
    each = 8 * copies // (4 if is_small or is_integer else 2)
    operands = _matrix_operands(texts, "u" if is_integer else "f", [8, each, each, 8])
    numbers = [MFMA_TYPES[one] + (OCP if is_small else 0) for one in types]
    if is_integer:  # `neg_lo` says of A and of B that they have a sign
        signed = bits_of(modifiers.get("neg_lo", "[0,0,0]"), 3)
        numbers = [MFMA_TYPES["i8"] if sign else UNSIGNED for sign in signed[:2]]
    copied = int(copies == 2)
    return MachineOp("mfma", operands, [16, 16, *numbers, int(is_integer), run, copied])


def _matrix_operands(
    texts: Sequence[str], kind: str, registers: Sequence[int], scales: int = 0
) -> list[Operand]:
    """Return the result, A, B and what is added, of so many registers each, and the scales."""
    operands = [parse_operand(text, kind) for text in texts[:4]]
    operands += [parse_operand(text, "u") for text in texts[4:]]
    if len(operands) != 4 + scales or any(one.modifiers for one in operands):
        raise KernelError("the operands of a matrix instruction are not as expected")
    for at, (one, count) in enumerate(zip(operands, registers, strict=False)):
        is_constant = at == 3 and one.kind == "constant"
        if not is_constant and (one.kind, one.registers) != ("vector", count):
            raise KernelError(f"the operand {texts[at]} has not {count} vector registers")
    return operands


def _mixed(name: str, texts: Sequence[str], modifiers: Mapping[str, str]) -> MachineOp:
    moves = name == "v_pk_mov_b32"
    signs = [bool(re.match(r"^-[^\d]", text)) for text in texts]
    bare = [text[1:] if sign else text for text, sign in zip(texts, signs, strict=True)]
    sizes = [text.startswith("|") for text in bare]
    operands = [parse_operand(text.strip("|"), "f") for text in bare]
    if len(operands) != (3 if moves else 4) or operands[0].kind != "vector":
        raise KernelError(f"{name} has other operands than expected")
    count = len(operands) - 1
    chosen = selections(modifiers, count, high=3 if moves else 0)
    if moves and (any(sizes) or any(signs) or chosen >> 16):
        raise KernelError("a sign is not emulated here")
    if not moves and any(one.kind == "constant" for one in operands[1:]):
        for index, one in enumerate(operands[1:]):
            if one.kind == "constant" and chosen >> (8 + index) & 1:
                raise KernelError("an f16 constant is not emulated here")
    for index in range(count):
        chosen |= signs[index + 1] << (16 + index) | sizes[index + 1] << (24 + index)
    return MachineOp(name, operands, [0, 0, chosen])


def _scalar_load(name: str, texts: Sequence[str], modifiers: Mapping[str, str]) -> MachineOp:
    check_only(modifiers, ("offset", *CACHE_HINTS))
    found = SCALAR_LOAD.match(name)
    if found is None or len(texts) not in (2, 3):
        raise KernelError(f"the instruction {name} is not emulated")
    size = int(found[4] or found[3] or 32 * int(found[2] or 1)) // 8
    count = (size + 3) // 4
    result, base = (parse_operand(text, "u") for text in texts[:2])
    offset = parse_operand(texts[2], "u") if len(texts) == 3 else NO_OPERAND
    wanted = 2 if found[1] == "s_load" else 4
    if (result.kind, base.kind) != ("scalar", "scalar") or offset.kind == "vector":
        raise KernelError("a scalar load has scalar operands")
    if (result.registers, base.registers) != (count, wanted):
        raise KernelError(f"the operands of {name} have the wrong size")
    immediate = number_of(modifiers, "offset")
    if offset.kind == "constant":
        immediate, offset = offset.value & 0x1FFFFF, NO_OPERAND
        if immediate >> 20:
            immediate -= 1 << 21
    return MachineOp(found[1], [result, base, offset], [immediate, 0, size, int("_i" in name)])


def _lds(
    name: str, texts: Sequence[str], modifiers: Mapping[str, str], target: str
) -> MachineOp | None:
    operands = [parse_operand(text, "u") for text in texts]
    if any(one.kind != "vector" or one.modifiers for one in operands):
        raise KernelError("the operands of an LDS instruction are vector registers")
    if found := re.match(r"^ds_(read|write)2(st64)?_b(32|64)$", name):
        check_only(modifiers, ("offset0", "offset1"))
        size = int(found[3]) // 8
        unit = size * (64 if found[2] else 1)
        offsets = [unit * number_of(modifiers, key) for key in ("offset0", "offset1")]
        return MachineOp(f"ds_{found[1]}2", operands, [*offsets, size])
    check_only(modifiers, ("offset",))
    if name == "ds_swizzle_b32":
        return MachineOp(name, operands, [swizzle_pattern(modifiers.get("offset", "0"))])
    offset = number_of(modifiers, "offset")
    if name in ACROSS_LANES:
        return MachineOp(name, operands, [offset])
    if name in TRANSPOSED and target == "gfx950":
        return MachineOp(name, operands, [offset, 0, 8])
    if name.startswith("ds_read_") and name[8:] in LOADS:
        size, form = LOADS[name[8:]]
        return MachineOp("ds_load", _sized(operands, 2, size), [offset, 0, size, form])
    if name.startswith("ds_write_") and name[9:] in STORES:
        size, form = STORES[name[9:]]
        return MachineOp("ds_store", _sized(operands[::-1], 2, size), [offset, 0, size, form])
    return _lds_atomic(name, operands, offset)


def lds_access_bytes(name: str) -> int:
    """Return the bytes that a lane accesses in LDS at once, at most four."""
    sizes = {"b8": 1, "u8": 1, "i8": 1, "b16": 2, "u16": 2, "i16": 2}
    found = re.match(r"^ds_(?:read|write)_([bui]\d+)", name)
    return sizes.get(found[1], 4) if found else 4


def _lds_atomic(name: str, operands: list[Operand], offset: int) -> MachineOp | None:
    found = re.match(r"^ds_(\w+?)(_rtn)?_(u|i|b|f|bf)(16|32|64)$", name)
    kind = LDS_ATOMICS.get(f"{found[1]}_{found[3]}") if found else None
    if found is None or kind is None:
        return None
    if kind.endswith("f"):
        kind += found[4]
    size = 8 if found[4] == "64" else 4
    rest = operands[1:] if found[2] else operands
    if found[1] == "cmpstore":  # RDNA: the new value stands before the one that is compared
        rest = [rest[0], *rest[:0:-1]]
    if kind not in ATOMICS or len(rest) != (3 if kind == "cmpswap" else 2):
        return None
    result = operands[0] if found[2] else NO_OPERAND
    parts = [result, rest[0], NO_OPERAND, NO_OPERAND, *rest[1:]]
    aux = [offset, 0, size, 0, 0, ATOMICS[kind]]
    return MachineOp("ds_atomic", parts, aux, RETURNS if found[2] else 0)


def _memory(
    space: str, verb: str, kind: str, texts: Sequence[str], modifiers: Mapping[str, str]
) -> MachineOp | None:
    is_buffer = space == "buffer"
    check_only(modifiers, ("offset", *CACHE_HINTS, *(("offen", "lds") if is_buffer else ())))
    to_lds = "lds" in modifiers or kind.startswith("lds_")
    kind = kind.removeprefix("lds_")
    flags = (OFFEN if "offen" in modifiers else 0) | (TO_LDS if to_lds else 0)
    operands = [parse_operand(text, "u") for text in texts]
    if any(one.modifiers for one in operands):
        raise KernelError("a sign is not emulated here")
    offset = number_of(modifiers, "offset")
    if is_buffer and len(operands) == (3 if to_lds else 4):
        if operands[-2].kind != "scalar" or operands[-2].registers != 4:
            raise KernelError("a buffer is described by four scalar registers")
        if ("offen" in modifiers) != (operands[-3].kind == "vector"):
            raise KernelError("the buffer's offset is not as its modifiers say")
    if verb == "atomic":
        return _atomic(space, kind, operands, modifiers, flags, offset)
    known = LOADS if verb == "load" else STORES
    if kind not in known:
        return None
    size, form = known[kind]
    if to_lds:
        if size not in (4, 12, 16) or verb != "load":
            return None
        operands = [NO_OPERAND, *operands]
    elif verb == "store" and not is_buffer:
        operands[:2] = operands[1::-1]
    wanted = 4 if is_buffer else 2 if space == "flat" else 3
    if not to_lds:
        _sized(operands, wanted, size)
    elif len(operands) != wanted:
        raise KernelError("the number of operands is not as expected")
    return MachineOp(f"{space}_{verb}", operands, [offset, 0, size, form], flags)


def _atomic(
    space: str,
    kind: str,
    operands: list[Operand],
    modifiers: Mapping[str, str],
    flags: int,
    offset: int,
) -> MachineOp | None:
    kind, is_wide = _atomic_kind(kind)
    what = ATOMICS.get(kind)
    if what is None or space == "scratch":
        return None
    returns = "sc0" in modifiers or "glc" in modifiers or "RETURN" in modifiers.get("th", "")
    if space == "buffer":
        data, *place = operands
        result = data if returns else NO_OPERAND
    else:
        result = operands[0] if returns else NO_OPERAND
        address, data, *base = operands[1:] if returns else operands
        place = [address, *(base or [NO_OPERAND]), NO_OPERAND]
    if len(place) != 3:
        raise KernelError("the number of operands is not as expected")
    aux = [offset, 0, 8 if is_wide else 4, 0, 0, what]
    flags |= RETURNS if returns else 0
    return MachineOp(f"{space}_atomic", [result, *place, data], aux, flags)


def _atomic_kind(kind: str) -> tuple[str, bool]:
    """Return the operation at a name's end, and whether it has 64 bits: `add_x2`, or `add_u64`."""
    if found := re.match(r"^([a-z]+)_([biu])(32|64)$", kind):
        sign = found[2].replace("i", "s") if found[1] in ("min", "max") else ""
        return sign + found[1], found[3] == "64"
    return kind.removesuffix("_x2"), kind.endswith(("_x2", "f64"))


def _sized(operands: list[Operand], count: int, size: int) -> list[Operand]:
    """Return the operands, if their number and the first one's registers fit."""
    if len(operands) != count:
        raise KernelError("the number of operands is not as expected")
    if operands[0].kind != "vector" or operands[0].registers != (size + 3) // 4:
        raise KernelError("the data has not as many vector registers as its bytes need")
    return operands
