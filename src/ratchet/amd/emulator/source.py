"""The C++ of the emulator: the machine, a function for each operation, and the loop."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

from ratchet.amd.emulator import operations, scalar_operations
from ratchet.amd.emulator.forms import LANE_FORMS
from ratchet.amd.emulator.operations import Operation

HERE: Final = Path(__file__).parent
MACHINE: Final = ("numbers.hpp", "flight.hpp", "machine.hpp", "memory.hpp", "matrix.hpp")
RUN: Final = ("run.hpp", "clock.hpp")
NUMBERS: Final = {
    "u": "u32", "i": "i32", "f": "f32", "h": "f32", "w": "u32", "x": "i32", "m": "u32", "v": "u32",
    "U": "u64", "I": "i64", "D": "f64",
}  # fmt: skip
"""C++ types that expressions are written in, by the kind of an operand."""
SPACES: Final = {"buffer": "BUFFER", "global": "GLOBAL", "scratch": "SCRATCH", "ds": "LDS"}
FLAT: Final = (("load", "load<SCRATCH>"), ("store", "store<SCRATCH>"), ("atomic", "atomic<GLOBAL>"))
"""Flat instructions, and what becomes of those lanes whose address is in scratch."""
_OTHERS: Final = (
    "s_load s_buffer_load ds_read2 ds_write2 ds_read_b64_tr_b16 ds_read_b64_tr_b8 "
    "ds_read_b64_tr_b4 ds_bpermute_b32 ds_permute_b32 ds_swizzle_b32 mfma mfma_scaled nothing "
    "wait_for counted sleep v_fma_mix_f32 v_fma_mixlo_f16 v_fma_mixhi_f16 v_pk_mov_b32 s_branch "
    "s_cbranch_scc0 s_cbranch_scc1 s_cbranch_vccz s_cbranch_vccnz s_cbranch_execz "
    "s_cbranch_execnz s_setreg_overflow "
)
MACHINE_OPERATIONS: Final = {
    **{
        f"{space}_{verb}": f"{verb}<{name}>"
        for space, name in SPACES.items()
        for verb in ("load", "store", "atomic")
    },
    **{
        f"flat_{verb}": f"flat<{verb}<GLOBAL>, {verb}<LDS>, {on_scratch}>"
        for verb, on_scratch in FLAT
    },
    **{name: name for name in (*_OTHERS.split(), *LANE_FORMS)},
}
"""Functions of the .hpp files, by their names in decoded records."""


@functools.cache
def table() -> dict[str, Operation]:
    found: dict[str, Operation] = {}
    for text in (operations.VECTOR, operations.PACKED, scalar_operations.SCALAR):
        found |= {one.name: one for one in operations.read(text)}
    return found | {one.name: one for one in operations.comparisons()}


@functools.cache
def numbers() -> dict[str, int]:
    return {name: index for index, name in enumerate([*MACHINE_OPERATIONS, *table()])}


def written(lanes: int) -> str:
    """Return the whole source for waves of this many lanes."""
    bodies = "\n".join(_function(one) for one in table().values())
    functions = [*MACHINE_OPERATIONS.values(), *(f"of_{name}" for name in table())]
    entries = ",\n".join(functions)
    dispatch = (
        f"using Function = void (*)(W&, const In&);\nconst Function FUNCTIONS[] = {{\n{entries}}};"
    )
    machine, run = ([(HERE / name).read_text() for name in names] for names in (MACHINE, RUN))
    lanes_line = f"constexpr int LANES = {lanes}; constexpr unsigned SLEEP = {numbers()['sleep']};"
    return "\n".join((lanes_line, *machine, bodies, dispatch, *run))


def _function(one: Operation) -> str:
    if one.is_scalar:
        return _scalar(one)
    return _packed(one) if one.section == "VOP3P" else _vector(one)


def _read(kind: str, place: str) -> str:
    """Return the value of lane `l` in an array from `vector32` or `vector64`."""
    lane = f"{place}[l]"
    if kind in "hwx":
        return {"h": f"half({lane})", "w": f"{lane} & 0xffff", "x": f"i32(i16({lane}))"}[kind]
    return lane if kind in "uU" else f"as<{NUMBERS[kind]}>({lane})"


def _bits(kind: str) -> str:
    if kind in "hwx":
        return "half_bits(r, w.clamps)" if kind == "h" else "u32(r) & 0xffff"
    return f"as<{'u64' if kind in 'UID' else 'u32'}>(r)"


def _assigned(one: Operation, result: str) -> str:
    return f"{one.statements};" if one.statements else f"{result} = {one.expression};"


def _vector(one: Operation) -> str:
    kind = one.results[0] if one.results != "m" else ""
    has_mask = "m" in one.results
    before, lane = [], []
    place = len(one.results)
    for name, source in zip("abc", one.sources, strict=False):
        if source in "qv":
            continue
        number = NUMBERS[source]
        if source == "m":
            before.append(f"u32 m{name}[LANES]; spread(mask_of(w, in.o[{place}]), m{name});")
            lane.append(f"const u32 {name} = m{name}[l] & 1;")
        else:
            wide = source in "UID"
            array, sign = ("u64", "") if wide else ("u32", f", {15 if source in 'hwx' else 31}")
            moved = ", moved" if name == "a" and not wide else ""
            give = f"vector{64 if wide else 32}(w, in, {place}, t{name}{sign}{moved})"
            before.append(f"{array} t{name}[LANES]; const {array}* p{name} = {give};")
            lane.append(f"const {number} {name} = {_read(source, f'p{name}')};")
        place += 1
    if "q" in one.sources:
        wide = kind in "UID"
        read = "u64(old_high[l]) << 32 | old[l]" if wide else "old[l]"
        before.append("const u32* old = w.v[in.o[0].number];")
        if wide:
            before.append("const u32* old_high = w.v[in.o[0].number + 1];")
        value = f"as<f64>({read})" if wide else _read(kind, "old")
        lane.append(f"const {NUMBERS[kind]} d = {value};")
    if "v" in one.sources:
        before.append("u32 all_vcc[LANES]; spread(w.mask(VCC), all_vcc);")
        lane.append("const u32 vcc = all_vcc[l] & 1;")
    return _vector_text(one, before, lane, kind, has_mask)


def _vector_text(
    one: Operation, before: list[str], lane: list[str], kind: str, has_mask: bool
) -> str:
    after = []
    if has_mask:
        before.append("u8 bits[LANES];")
        lane.append("u32 m = 0;")
    if kind in ("U", "I", "D"):
        before.append("u32 out[LANES], high[LANES];")
        store = f"const u64 x = {_bits(kind)}; out[l] = u32(x); high[l] = u32(x >> 32);"
        after += ["commit(w.v[in.o[0].number], out, mask);"]
        after += ["commit(w.v[in.o[0].number + 1], high, mask);"]
    elif kind:
        before.append("u32 out[LANES];")
        store = f"out[l] = {_bits(kind)};"
        is_float = "true" if kind == "f" else "false"
        keeps = "LANES == 32" if kind in "hwx" else "false"
        after += [
            "u32* d = w.v[in.o[0].number];",
            f"if ({keeps} || in.flags & (OUTPUT | SDWA | HALVES)) "
            f"finish(in, d, out, {is_float}, {keeps});",
            "commit(d, out, mask);",
        ]
    else:
        store = ""
    lane.append(f"{NUMBERS[kind]} r; " if kind else "")
    lane.append(_assigned(one, "r" if kind else "m"))
    lane.append(store)
    if has_mask:
        lane.append("bits[l] = u8(m);")
        place = 1 if kind else 0
        after.append(f"w.set_mask(in.o[{place}].number, packed_bits(bits) & mask);")
        if one.name.startswith("v_cmpx"):
            after.append("w.set_mask(EXEC, packed_bits(bits) & mask);")
    moving = (
        "u64 mask = w.exec(); u32 moved_lanes[LANES]; const u32* moved = nullptr; "
        "if (in.flags & DPP) "
        f"{{ mask = move_lanes(w, in, w.v[in.o[{len(one.results)}].number], moved_lanes, mask); "
        "moved = moved_lanes; } (void)moved;"
    )
    loop = "for (int l = 0; l < LANES; l++) { " + " ".join(lane) + " }"
    parts = [moving, *before, loop, *after]
    return f"static void of_{one.name}(W& w, const In& in) {{ {' '.join(parts)} }}"


def _packed(one: Operation) -> str:
    """Return two halves: of 32 bits in a register pair, or of 16 bits in one register."""
    kind = one.results
    wide = kind == "f"
    before: list[str] = []
    low: list[str] = []
    high: list[str] = []
    for index, (name, source) in enumerate(zip("abc", one.sources, strict=False)):
        array = "u64" if wide else "u32"
        number = index + 1
        give = f"vector64(w, in, {number}, t" if wide else f"whole(w, in.o[{number}], t"
        before.append(f"{array} t{name}[LANES]; const {array}* p{name} = {give}{name});")
        bits = 32 if wide else 16
        sign = "0x80000000u" if wide else "0x8000u"
        for part, lanes, select, turn in (("low", low, 0, 16), ("high", high, 8, 24)):
            shift = f"{name}_{part}_shift"
            before.append(f"const int {shift} = in.aux[2] >> {select + index} & 1 ? {bits} : 0;")
            before.append(
                f"const u32 {name}_{part}_turn = in.aux[2] >> {turn + index} & 1 ? {sign} : 0;"
            )
            moved = f"(u32(p{name}[l] >> {shift}) ^ {name}_{part}_turn)"
            value = {
                "f": f"as<f32>{moved}", "h": f"half{moved}", "w": f"{moved} & 0xffff",
                "x": f"i32(i16{moved})",
            }[source]  # fmt: skip
            lanes.append(f"const {NUMBERS[source]} {name} = {value};")
    halves = []
    for lanes, target in ((low, "low"), (high, "high")):
        text = f"{NUMBERS[kind]} r; {_assigned(one, 'r')} {target}[l] = {_bits(kind)};"
        halves.append("{ " + " ".join(lanes) + f" {text} }}")
    loop = "for (int l = 0; l < LANES; l++) { " + " ".join(halves) + " }"
    if wide:
        keep = (
            "commit(w.v[in.o[0].number], low, w.exec()); "
            "commit(w.v[in.o[0].number + 1], high, w.exec());"
        )
    else:
        keep = (
            "for (int l = 0; l < LANES; l++) low[l] |= high[l] << 16; "
            "commit(w.v[in.o[0].number], low, w.exec());"
        )
    before.append("u32 low[LANES], high[LANES];")
    return f"static void of_{one.name}(W& w, const In& in) {{ {' '.join(before)} {loop} {keep} }}"


def _scalar(one: Operation) -> str:
    parts = ["u32 scc = w.scc; u64 exec = w.exec(); (void)exec;"]
    place = len(one.results)
    for name, kind in zip("abc", one.sources, strict=False):
        read = f"scalar{64 if kind in 'UI' else 32}(w, in.o[{place}])"
        value = f"half({read})" if kind == "h" else f"as<{NUMBERS[kind]}>({read})"
        parts.append(f"const {NUMBERS[kind]} {name} = {value};")
        place += 1
    if one.results:
        kind = one.results
        wide = kind in "UI"
        old = "w.pair(in.o[0].number)" if wide else "w.s[in.o[0].number]"
        value = f"half({old})" if kind == "h" else f"as<{NUMBERS[kind]}>({old})"
        parts.append(f"const {NUMBERS[kind]} d = {value}; (void)d; {NUMBERS[kind]} r;")
    parts.append(one.expression + "; w.scc = scc;")
    if "exec = " in one.expression:
        parts.append("w.set_mask(EXEC, exec);")
    if one.results:
        written = f"set_pair(in.o[0].number, {_bits(kind)})"
        parts.append(f"w.{written};" if wide else f"w.s[in.o[0].number] = {_bits(kind)};")
    return f"static void of_{one.name}(W& w, const In& in) {{ {' '.join(parts)} }}"
