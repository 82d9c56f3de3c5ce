"""Decode the assembly text of one kernel to records that the machine executes.

An unknown mnemonic, operand or modifier is an error that names it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ratchet.amd.architectures import ARCHITECTURES
from ratchet.amd.compile.assembly import LABEL, metadata
from ratchet.amd.emulator import forms, source, waits
from ratchet.amd.emulator.operands import (
    DPP,
    DROPPED,
    HALVES,
    OUTPUT,
    SDWA,
    MachineOp,
    Operand,
    bits_of,
    check_only,
    parse_operand,
    selections,
    vector_modifiers,
)
from ratchet.amd.emulator.operations import NOTHING, Operation
from ratchet.base.errors import KernelError
from ratchet.judge.kernels.kernel import TARGETS

MAX_TEXT_BYTES: Final = 8 << 20
SUFFIX: Final = re.compile(r"_(e32|e64|dpp|sdwa|e64_dpp)$")
LINE: Final = re.compile(r"^\s+([a-z][a-z0-9_]*)(?:\s+(.*?))?\s*$")
LOCATION: Final = re.compile(r"^\s+\.loc\s+(\d+)\s+(\d+)")
FILE: Final = re.compile(r'^\s+\.file\s+(\d+)\s+(?:"[^"]*"\s+)?"([^"]*)"')
SETS_OVERFLOW: Final = re.compile(r"^hwreg\(HW_REG_(?:WAVE_)?MODE, 23, 1\), ([01])$")
"""FP16_OVFL: what is too large for f16 or fp8 becomes the largest number ("Mode Register" in the
manual's chapter "Wave State")."""
ALLOWS_FLUSHED: Final = re.compile(
    r"^s_setreg_imm32_b32 hwreg\(HW_REG_(?:WAVE_)?MODE, 4, 2\), [0-3]$"
    r"|^s_denorm_mode (?:0x)?(?:12|c|15|f)$"
)
"""The mode of denormals of f32 alone: the hardware may flush them, here they are always kept."""
ROUNDS_TO_NEAREST: Final = re.compile(
    r"^s_setreg_imm32_b32 hwreg\(HW_REG_(?:WAVE_)?MODE, (?:0, 2|2, 2|0, 4)\), 0$"
    r"|^s_round_mode (?:0x)?0$"
)
"""FP_ROUND: bits 0 and 1 round f32, 2 and 3 round f16 and f64; 0 is the nearest even, as a wave
starts ("Mode Register"). LLVM sets it again where it no longer knows the mode, such as after it has
set FP16_OVFL (`SIModeRegister`)."""
SMALL_FLOAT: Final = re.compile(
    r"^v_cvt_(?:(?:pk_)?f32_(?:fp8|bf8)|pk_(?:fp8|bf8)_f32"
    r"|scalef32_pk_(?:(?:fp8|bf8)_b?f\d\d|b?f\d\d_(?:fp8|bf8|fp4)))$"
)
SIGNED_PARTS: Final = re.compile(r"^v_dot[48]_i32_iu[48]$")
BRANCH: Final = re.compile(r"^s_c?branch")
WIDE: Final = "UID"
CLAMPED: Final = (
    "v_add_u32", "v_sub_u32", "v_subrev_u32", "v_add_i32", "v_sub_i32", "v_add_u16", "v_sub_u16",
)  # fmt: skip
"""Integer operations whose clamped form is in the table under a name that ends in `clamp`."""
FUNCTION: Final = re.compile(r"^\s+\.type\s+(\S+),@function", re.MULTILINE)
CALL: Final = "s_swappc_b64"
CODE: Final = 0x40DE << 32
"""Where the addresses of functions begin, as in machine.hpp: of 4 bytes for each record."""
COUNTER: Final = "s_getpc_b64"
DISTANCE: Final = re.compile(r"\((\.L[\w$]+)-(\.L[\w$]+)\)(&4294967295|>>32)")
"""Half of the distance between two labels: a branch that is too far for 16 bits adds it to the
program counter at the second one (LLVM's `insertIndirectBranch`)."""
DUAL: Final = re.compile(r"\s*::\s*(v_dual_\w+)\s+")


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelArgument:
    offset: int
    size: int
    kind: str  # `global_buffer`, `by_value` or a hidden one such as `hidden_block_count_x`


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodedKernel:
    """A kernel, ready to run."""

    name: str
    target: str
    lanes: int  # lanes of a wave
    code: bytes
    touched: bytes  # a bit for each register that a record reads, or writes without delay
    mnemonics: tuple[str, ...]  # the name of each record, for counts
    texts: tuple[str, ...]  # the text of each record, as the compiler wrote it
    places: tuple[str, ...]  # the source line of each record, as `file:line`; "" if unknown
    arguments: tuple[KernelArgument, ...]
    argument_bytes: int
    lds_bytes: int
    lds_unit: int  # bytes of the smallest access to LDS, 4 at most
    scratch_bytes: int
    directives: Mapping[str, int]  # the numbers of `.amdhsa_` lines
    vgprs: int  # vector registers of a lane, including accumulation registers
    register_mask: int  # bit n: one of the vector registers from 32 n on is used


@dataclass(frozen=True, slots=True)
class _AssemblyLine:
    mnemonic: str
    name: str  # the name in the tables: without its encoding, and with CDNA's name for RDNA
    rest: str
    place: str


def target_of(text: str) -> str:
    """Return the GPU that an assembly text is for; raises KernelError if it is not emulated."""
    found = re.search(r'^\s*\.amdgcn_target "amdgcn-amd-amdhsa--(\w+)', text, re.MULTILINE)
    if found is None:
        raise KernelError("the code is not for an AMD GPU: only AMD's code is emulated")
    if found[1] not in TARGETS:
        raise KernelError(f"code for {found[1]} is not emulated: use {' or '.join(TARGETS)}")
    return found[1]


def decode(text: str) -> DecodedKernel:
    """Return the only kernel of an assembly text; raises KernelError for what is unknown."""
    if len(text) > MAX_TEXT_BYTES:
        raise KernelError("the assembly is too long to be emulated")
    target = target_of(text)
    lanes = ARCHITECTURES[target].wavefront_size
    name, arguments, told = _metadata(text, lanes)
    lines, labels = _lines(text, name, lanes)
    records, touched = [], []
    used, signalled = 0, False
    numbered: dict[str, int] = {}
    for line in lines:
        try:
            record = _record(line, labels, target, lanes)
        except KernelError as error:
            shown = f"{line.mnemonic} {line.rest}".strip()
            raise KernelError(f"{error} (in `{shown[:120]}`)") from error
        touched.append(waits.registers(record, line.name, line.rest))
        number = source.numbers()[record.operation]
        records.append(record.packed(number, numbered.setdefault(line.place, len(numbered))))
        signalled = line.name == "s_barrier_signal" or signalled
        signalled = signalled and line.name != "s_barrier_wait"
        if signalled and line.name.startswith("ds_") and line.name not in forms.ACROSS_LANES:
            raise KernelError(
                f"{line.mnemonic} between a barrier's signal and its wait is not emulated"
            )
        for one in record.operands:
            if one.kind == "vector":
                first = one.number // 32
                last = min(511, one.number + max(one.registers, 16) - 1) // 32
                used |= sum(1 << part for part in range(first, last + 1))
    return DecodedKernel(
        name=name,
        target=target,
        lanes=lanes,
        code=b"".join(records),
        touched=b"".join(touched),
        mnemonics=tuple(line.mnemonic for line in lines),
        texts=tuple(f"{line.mnemonic} {line.rest}".strip() for line in lines),
        places=tuple(line.place for line in lines),
        arguments=arguments,
        argument_bytes=told.get("kernarg_segment_size", 0),
        lds_bytes=told.get("group_segment_fixed_size", 0),
        lds_unit=min([4, *(forms.lds_access_bytes(line.name) for line in lines)]),
        scratch_bytes=told.get("private_segment_fixed_size", 0),
        directives={
            key: int(value)
            for key, value in re.findall(r"^\s+\.amdhsa_(\w+) (\d+)$", text, re.MULTILINE)
        },
        vgprs=told.get("vgpr_count", 0),
        register_mask=used | 1,
    )


def _lines(text: str, kernel: str, lanes: int) -> tuple[list[_AssemblyLine], dict[str, int]]:
    """Return the instructions of the kernel and then of what it calls, and the labels' places."""
    found: list[_AssemblyLine] = []
    labels: dict[str, int] = {}
    called = FUNCTION.findall(text) if CALL in text else ()
    for name in dict.fromkeys((kernel, *called)):
        _function(text, name, lanes, found, labels)
    if not found:
        raise KernelError(f"the assembly has no instructions of the kernel {kernel!r:.80}")
    if COUNTER in text:
        _place_far_branches(found, labels)
    return found, labels


def _place_far_branches(found: list[_AssemblyLine], labels: Mapping[str, int]) -> None:
    """Put addresses in place of the program counter, and numbers in place of labels' distances.

    A counter stays, and is refused, where no label behind it says what is added to it.
    """
    counted: set[int] = set()
    for at, line in enumerate(found):
        for one in DISTANCE.finditer(line.rest):
            if one[1] in labels and one[2] in labels:
                distance = 4 * (labels[one[1]] - labels[one[2]])
                half = (distance if one[3].startswith("&") else distance >> 32) & 0xFFFFFFFF
                found[at] = replace(line, rest=line.rest.replace(one[0], hex(half)))
                counted.add(labels[one[2]])
    for at, line in enumerate(found):
        if line.name == COUNTER and at + 1 in counted:
            found[at] = replace(
                line, name="s_mov_b64", rest=f"{line.rest}, {hex(CODE + 4 * (at + 1))}"
            )


def called_functions(text: str) -> dict[str, int]:
    """Return the addresses of the functions in the text of one kernel, if it calls any."""
    if CALL not in text:
        return {}
    lanes = ARCHITECTURES[target_of(text)].wavefront_size
    _, labels = _lines(text, _metadata(text, lanes)[0], lanes)
    return {name: CODE + 4 * labels[name] for name in FUNCTION.findall(text) if name in labels}


def _function(
    text: str, name: str, lanes: int, found: list[_AssemblyLine], labels: dict[str, int]
) -> None:
    """Add a function's instructions, and the places of its labels."""
    files: dict[str, str] = {}
    place, inside = "", False
    for raw in text.splitlines():
        line = raw.partition(";")[0].partition("//")[0].rstrip()
        if label := LABEL.match(line):
            inside = label[1] == name or (inside and label[1].startswith((".L", "$")))
            if inside:
                labels[label[1]] = len(found)
        elif named := FILE.match(line):
            files[named[1]] = named[2]
        elif not inside:
            continue
        elif location := LOCATION.match(line):
            if location[2] != "0":
                place = f"{files.get(location[1], '')}:{location[2]}"
        elif line.lstrip().startswith(".section"):
            inside = False
        elif instruction := LINE.match(line):
            text = f"{instruction[1]} {instruction[2] or ''}"
            both = DUAL.search(text)
            parts: tuple[str, ...] = (text,)
            if both is not None:
                parts = in_order(text[: both.start()], f"{both[1]} {text[both.end() :]}")
            for whole in parts:
                mnemonic, _, rest = whole.partition(" ")
                known = SUFFIX.sub("", mnemonic)
                known = cdna_name(known) if lanes == 32 else known
                found.append(_AssemblyLine(mnemonic, known, rest, place))


def _record(line: _AssemblyLine, labels: Mapping[str, int], target: str, lanes: int) -> MachineOp:
    name = line.name
    if (counted := waits.wait(name, line.rest, target)) is not None:
        return counted
    if name in NOTHING or (name == "s_sendmsg" and "DEALLOC_VGPRS" in line.rest):
        return MachineOp("sleep" if name == "s_sleep" else "nothing")
    if BRANCH.match(name) and name in source.numbers():
        if line.rest not in labels:
            raise KernelError(f"the branch's label {line.rest!r:.60} is not known")
        return MachineOp(name, aux=[labels[line.rest]])
    if name == "s_setreg_imm32_b32" and (sets := SETS_OVERFLOW.match(line.rest)):
        return MachineOp("s_setreg_overflow", aux=[int(sets[1])])
    if any(mode.match(f"{name} {line.rest}") for mode in (ALLOWS_FLUSHED, ROUNDS_TO_NEAREST)):
        return MachineOp("nothing")
    texts, modifiers = split_operands(line.rest)
    if SMALL_FLOAT.match(name):
        return _small_float(name, texts, modifiers, target)
    if lanes == 32 and name.startswith("v_cmpx_"):
        texts.insert(0, "exec_lo")
    if line.mnemonic.startswith("v_dual_cndmask_") and len(texts) == 3:
        texts.append("vcc_lo")
    if "clamp" in modifiers and name in CLAMPED:
        name = f"{name}_clamp"
        modifiers = {key: value for key, value in modifiers.items() if key != "clamp"}
    if SIGNED_PARTS.match(name):  # `neg_lo` says of A and of B that they have a sign
        given = dict(modifiers)
        a, b, _ = bits_of(given.pop("neg_lo", "[0,0,0]"), 3)
        name, modifiers = f"{name}_{a}{b}", given
    if (form := forms.special(name, texts, modifiers, target)) is not None:
        return form
    operation = source.table().get(name)
    if operation is None:
        raise KernelError(f"the instruction {line.mnemonic} is not emulated")
    if operation.is_scalar:
        check_only(modifiers, ())
        found = _fitting(operation, texts, 0)
        if any(one.kind == "vector" or one.modifiers for one in found):
            raise KernelError("a scalar instruction cannot read a vector register")
        return MachineOp(name, found)
    if operation.section == "VOP3P":
        return _packed(operation, texts, modifiers)
    return _vector(operation, line.mnemonic, texts, modifiers, lanes)


def split_operands(rest: str) -> tuple[list[str], dict[str, str]]:
    """Return operands, and modifiers by name: `v1, v2 offset:16 glc`."""
    parts: list[str] = []
    depth, start = 0, 0
    for place, letter in enumerate(rest):
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and depth == 0:
            parts.append(rest[start:place].strip())
            start = place + 1
    words = re.findall(r"[^\s\[(]+(?:\[[^\]]*\]|\([^)]*\))?\S*", rest[start:])
    modifiers: dict[str, str] = {}
    for word in words[1:]:
        key, _, value = word.partition(":")
        modifiers[key] = value
    return [*parts, *words[:1]], modifiers


def _fitting(operation: Operation, texts: Sequence[str], lanes: int) -> list[Operand]:
    kinds = operation.results + operation.sources.replace("q", "").replace("v", "")
    if len(texts) != len(kinds):
        raise KernelError(f"{operation.name} has {len(texts)} operands and not {len(kinds)}")
    found = [parse_operand(text, kind) for text, kind in zip(texts, kinds, strict=True)]
    for index, (kind, text) in enumerate(zip(kinds, texts, strict=True)):
        wanted = 2 if kind in WIDE or (kind == "m" and lanes == 64) else 1
        if text == "null" and index < len(operation.results):
            found[index] = Operand("scalar", DROPPED, wanted)
        one = found[index]
        if one.kind in ("vector", "scalar") and one.registers != wanted:
            raise KernelError(f"the operand {text} has not {wanted} registers")
    for one, kind, text in zip(found, operation.results, texts, strict=False):
        is_scalar = kind == "m" or operation.is_scalar
        if one.kind != ("scalar" if is_scalar else "vector") or one.modifiers:
            raise KernelError(f"the operand {text} cannot be written")
    return found


def _vector(
    operation: Operation,
    mnemonic: str,
    texts: Sequence[str],
    modifiers: Mapping[str, str],
    lanes: int,
) -> MachineOp:
    found = _fitting(operation, texts, lanes)
    aux, flags = vector_modifiers(modifiers, len(operation.sources), lanes)
    kinds = operation.results + operation.sources
    if flags & OUTPUT and operation.results != "f":
        raise KernelError("clamp and output factors are emulated for f32 only")
    if flags & HALVES and not set(kinds) <= set("hwx"):
        raise KernelError("op_sel is emulated for operands of 16 bits only")
    if flags & (DPP | SDWA) and set(kinds) & set("UID"):
        raise KernelError("lanes and parts of operands of 64 bits are not emulated")
    if flags & DPP and found[len(operation.results)].kind != "vector":
        raise KernelError("the operand that is moved across lanes must be a vector register")
    if "sdwa" in mnemonic and not flags & SDWA:
        raise KernelError("the parts of the operands (SDWA) are missing")
    if operation.name.startswith("v_bitop3_"):
        aux[0] = int(modifiers.get("bitop3", "0"), 0)
    elif "bitop3" in modifiers:
        raise KernelError("the modifier bitop3 is not emulated here")
    return MachineOp(operation.name, found, aux, flags)


def _small_float(
    name: str, texts: Sequence[str], modifiers: Mapping[str, str], target: str
) -> MachineOp:
    """Return a conversion from or to 8-bit floats; they are OCP's from gfx950 and RDNA 4 on.

    CDNA 3 names the source's part by SDWA, the others by `op_sel` or `byte_sel`.
    """
    is_scaled = "scalef32" in name
    if target not in forms.HAS_SMALL_FLOATS or (is_scaled and target != "gfx950"):
        raise KernelError(f"{target} has no such instruction")
    packs = name.endswith(("_f32", "_f16", "_bf16"))
    name += "_ocp" if target in forms.HAS_OCP and not is_scaled else ""
    operation = source.table()[name]
    own = dict(modifiers)
    chosen = [int(one) for one in re.findall(r"\d", own.pop("op_sel", ""))]
    part = int(own.pop("byte_sel", "-1"))
    found = _fitting(operation, texts, 0)
    aux, flags = vector_modifiers(own, len(operation.sources), 64)
    if flags & ~SDWA:
        raise KernelError("a modifier of a conversion of 8-bit floats is not emulated here")
    if not packs and (part >= 0 or any(chosen)):
        if name.endswith("fp4"):
            part = chosen[0] + 2 * chosen[1]
        aux[3] = aux[3] & ~15 | (part if part >= 0 else 4 + chosen[0])
        flags |= SDWA
    elif any(chosen):
        aux[2] = chosen[-1] << 3
    return MachineOp(name, found, aux, flags)


def _packed(operation: Operation, texts: Sequence[str], modifiers: Mapping[str, str]) -> MachineOp:
    pairs = operation.results == "f"
    kind = operation.sources[0]
    found = [parse_operand(text, kind) for text in texts]
    if len(found) != 1 + len(operation.sources) or found[0].kind != "vector":
        raise KernelError(f"{operation.name} has other operands than expected")
    selection = selections(modifiers, len(operation.sources))
    for index, one in enumerate(found[1:]):
        takes_high = (selection >> 8 | selection) >> index & 1
        if one.kind == "constant" and one.value and takes_high:
            raise KernelError("the high half of a constant is not defined")
        if one.registers not in (0, 2 if pairs else 1):
            raise KernelError(f"the operand {texts[index + 1]} has the wrong size")
    return MachineOp(operation.name, found, [0, 0, selection])


def _metadata(text: str, lanes: int) -> tuple[str, tuple[KernelArgument, ...], dict[str, int]]:
    """Return the name, arguments and numbers of the kernel that `.amdgpu_metadata` describes."""
    kernels = [one for one in metadata(text) if "name" in one[0]]
    if len(kernels) != 1:
        raise KernelError(
            f"the assembly describes {len(kernels)} kernels, and one is emulated at a time"
        )
    own, arguments = kernels[0]
    if own.get("wavefront_size") != str(lanes):
        raise KernelError(f"waves of {own.get('wavefront_size')} lanes are not emulated")
    try:
        listed = tuple(
            KernelArgument(offset=int(one["offset"]), size=int(one["size"]), kind=one["value_kind"])
            for one in arguments
        )
    except (KeyError, ValueError) as error:
        raise KernelError("the description of the kernel's arguments is damaged") from error
    numbers = {key: int(value) for key, value in own.items() if value.isdecimal()}
    return own["name"], listed, numbers


_RENAMED: Final = """
    v_add_nc_u32=v_add_u32 v_sub_nc_u32=v_sub_u32 v_subrev_nc_u32=v_subrev_u32
    v_add_nc_i32=v_add_i32 v_sub_nc_i32=v_sub_i32 v_add_nc_u16=v_add_u16 v_sub_nc_u16=v_sub_u16
    v_add_nc_i16=v_add_u16 v_sub_nc_i16=v_sub_u16 v_add_co_ci_u32=v_addc_co_u32
    v_sub_co_ci_u32=v_subb_co_u32 v_subrev_co_ci_u32=v_subbrev_co_u32
    v_mad_co_u64_u32=v_mad_u64_u32 v_mad_co_i64_i32=v_mad_i64_i32
    v_mul_dx9_zero_f32=v_mul_legacy_f32 v_dot2acc_f32_f16=v_dot2c_f32_f16
    v_clz_i32_u32=v_ffbh_u32 v_ctz_i32_b32=v_ffbl_b32 v_cls_i32=v_ffbh_i32
    v_cvt_floor_i32_f32=v_cvt_flr_i32_f32 v_cvt_nearest_i32_f32=v_cvt_rpi_i32_f32
    v_cvt_pk_rtz_f16_f32=v_cvt_pkrtz_f16_f32
    s_and_not1_b32=s_andn2_b32 s_and_not1_b64=s_andn2_b64 s_or_not1_b32=s_orn2_b32
    s_or_not1_b64=s_orn2_b64 s_and_not1_saveexec_b32=s_andn2_saveexec_b32
    s_or_not1_saveexec_b32=s_orn2_saveexec_b32 s_ctz_i32_b32=s_ff1_i32_b32
    s_cls_i32=s_flbit_i32 s_cls_i32_i64=s_flbit_i32_i64
    s_ctz_i32_b64=s_ff1_i32_b64 s_clz_i32_u32=s_flbit_i32_b32 s_clz_i32_u64=s_flbit_i32_b64
    s_add_co_u32=s_add_u32 s_sub_co_u32=s_sub_u32 s_add_co_i32=s_add_i32 s_sub_co_i32=s_sub_i32
    s_add_co_ci_u32=s_addc_u32 s_sub_co_ci_u32=s_subb_u32 s_addk_co_i32=s_addk_i32
"""
RENAMED: Final = dict(pair.split("=") for pair in _RENAMED.split())
PARTS: Final = (
    ("v_dual_", "v_"), ("_num_", "_"), ("ds_load_2addr_stride64_", "ds_read2st64_"),
    ("ds_load_2addr_", "ds_read2_"), ("ds_load_", "ds_read_"),
    ("ds_store_2addr_stride64_", "ds_write2st64_"), ("ds_store_2addr_", "ds_write2_"),
    ("ds_store_", "ds_write_"), ("ds_storexchg_", "ds_wrxchg_"),
)  # fmt: skip
"""Parts of RDNA's names, and what CDNA has for them."""


def cdna_name(name: str) -> str:
    """Return the tables' name of an operation of RDNA."""
    for old, new in PARTS:
        name = name.replace(old, new)
    return RENAMED.get(name, name)


def in_order(first: str, second: str) -> tuple[str, str]:
    """Return the two operations of a `v_dual` instruction in an order that gives the same result.

    Both read their operands before either writes (section "Dual Issue VALU").
    """
    a, b = (re.findall(r"\bv\d+\b", one) for one in (first, second))
    if not a or a[0] not in b[1:]:
        return first, second
    if b[0] in a[1:]:
        raise KernelError(f"two operations that read each other's results: {first:.60}")
    return second, first
