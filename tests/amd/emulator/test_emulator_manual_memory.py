"""Every load, store and atomic operation of each space, against Python, on each target."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
from each_case import each
from exact_numbers import BF16, F16, F32, F64, Format, Number, added, bits_for, signed
from manual_text import CDNA, TARGETS
from manual_vector import greater, lesser
from small_assembly import run_words

pytestmark = pytest.mark.compiler
# CDNA's name, RDNA's, LDS's; bytes; "s": with a sign; "l" and "h": the low or the high half alone
LOADS = [
    ("ubyte", "u8", "u8", 1, ""),
    ("sbyte", "i8", "i8", 1, "s"),
    ("ushort", "u16", "u16", 2, ""),
    ("sshort", "i16", "i16", 2, "s"),
    ("dword", "b32", "b32", 4, ""),
    ("dwordx2", "b64", "b64", 8, ""),
    ("dwordx3", "b96", "b96", 12, ""),
    ("dwordx4", "b128", "b128", 16, ""),
    ("short_d16", "d16_b16", "u16_d16", 2, "l"),
    ("short_d16_hi", "d16_hi_b16", "u16_d16_hi", 2, "h"),
    ("ubyte_d16", "d16_u8", "u8_d16", 1, "l"),
    ("ubyte_d16_hi", "d16_hi_u8", "u8_d16_hi", 1, "h"),
    ("sbyte_d16", "d16_i8", "i8_d16", 1, "sl"),
    ("sbyte_d16_hi", "d16_hi_i8", "i8_d16_hi", 1, "sh"),
]
SCALAR_LOADS = [("u8", 1), ("i8", 1), ("u16", 2), ("i16", 2), ("b32", 4), ("b64", 8), ("b96", 12)]
STORES = [
    ("byte", "b8", "b8", 1, ""),
    ("short", "b16", "b16", 2, ""),
    ("dword", "b32", "b32", 4, ""),
    ("dwordx2", "b64", "b64", 8, ""),
    ("dwordx3", "b96", "b96", 12, ""),
    ("dwordx4", "b128", "b128", 16, ""),
    ("byte_d16_hi", "d16_hi_b8", "b8_d16_hi", 1, "h"),
    ("short_d16_hi", "d16_hi_b16", "b16_d16_hi", 2, "h"),
]
WHOLE = (1 << 64) - 1
Change = Callable[[int, int, int, int], int]


def of_floats(form: Format, function: Callable[..., Number]) -> Change:
    """A change of the float that lies there."""

    def changed(old: int, x: int, _: int, __: int) -> int:
        return form.bits_of(form.near(function(form.value(old), form.value(x))))

    return changed


def of_pairs(form: Format) -> Change:
    def changed(old: int, x: int, _: int, __: int) -> int:
        parts = (
            form.bits_of(
                form.near(added(form.value(old >> at & 0xFFFF), form.value(x >> at & 0xFFFF)))
            )
            for at in (0, 16)
        )
        return sum(part << 16 * at for at, part in enumerate(parts))

    return changed


CHANGES: dict[str, Change] = {
    "swap": lambda old, x, _, __: x,
    "cmpswap": lambda old, x, compared, __: x if old == compared else old,
    "add": lambda old, x, _, __: old + x,
    "sub": lambda old, x, _, __: old - x,
    "smin": lambda old, x, _, bits: min(signed(old, bits), signed(x, bits)),
    "smax": lambda old, x, _, bits: max(signed(old, bits), signed(x, bits)),
    "umin": lambda old, x, _, __: min(old, x),
    "umax": lambda old, x, _, __: max(old, x),
    "and": lambda old, x, _, __: old & x,
    "or": lambda old, x, _, __: old | x,
    "xor": lambda old, x, _, __: old ^ x,
    "inc": lambda old, x, _, __: 0 if old >= x else old + 1,
    "dec": lambda old, x, _, __: x if old == 0 or old > x else old - 1,
}
"""By CDNA's name: what lies there, the operand, what it is compared with, and the bits."""
FLOATS: dict[str, tuple[str, Change]] = {
    "add_f32": ("f", of_floats(F32, added)),
    "min_f32": ("f", of_floats(F32, lesser)),
    "max_f32": ("f", of_floats(F32, greater)),
    "add_f64": ("D", of_floats(F64, added)),
    "min_f64": ("D", of_floats(F64, lesser)),
    "max_f64": ("D", of_floats(F64, greater)),
    "pk_add_f16": ("u", of_pairs(F16)),
    "pk_add_bf16": ("u", of_pairs(BF16)),
}
LDS_NAMES = {
    "swap": "wrxchg_rtn_b", "cmpswap": "cmpst_rtn_b", "add": "add_rtn_u", "sub": "sub_rtn_u",
    "smin": "min_rtn_i", "smax": "max_rtn_i", "umin": "min_rtn_u", "umax": "max_rtn_u",
    "and": "and_rtn_b", "or": "or_rtn_b", "xor": "xor_rtn_b", "inc": "inc_rtn_u",
    "dec": "dec_rtn_u",
}  # fmt: skip
LDS_NAMES_OF_RDNA = {"swap": "storexchg_rtn_b", "cmpswap": "cmpstore_rtn_b"}
RDNA_NAMES = {
    "swap": "swap_b", "cmpswap": "cmpswap_b", "add": "add_u", "sub": "sub_u", "smin": "min_i",
    "smax": "max_i", "umin": "min_u", "umax": "max_u", "and": "and_b", "or": "or_b",
    "xor": "xor_b", "inc": "inc_u", "dec": "dec_u",
}  # fmt: skip


def lanes_of(target: str) -> int:
    return 64 if target in CDNA else 32


def registers(first: int, size: int) -> str:
    """The registers of some bytes."""
    count = max(1, size // 4)
    return f"v{first}" if count == 1 else f"v[{first}:{first + count - 1}]"


@each(itertools.product(LOADS, ["global", "ds"]))
def test_a_load(kind: tuple[str, str, str, int, str], space: str) -> None:
    """From random places of the inputs, which are copied to LDS first for `ds`."""
    *names, size, form = kind
    for target in TARGETS:
        lanes, chance = lanes_of(target), random.Random(f"{kind}{space}")
        data = [[chance.getrandbits(32) for _ in range(lanes)] for _ in range(4)]
        places = [chance.randrange(16 * lanes // max(size, 1)) * size for _ in range(lanes)]
        if size == 12:
            places = [chance.randrange(4 * lanes - 3) * 4 for _ in range(lanes)]
        inputs = {32 + at: words for at, words in enumerate(data)} | {10: places}
        result = registers(32, size)
        if space == "ds":
            verb = ("read", "write") if target in CDNA else ("load", "store")
            before = [f"ds_{verb[1]}_b32 v0, v{32 + at} offset:{4 * lanes * at}" for at in range(4)]
            body = "\n".join([*before, f"ds_{verb[0]}_{names[2]} {result}, v10"])
        else:
            body = f"global_load_{names[0 if target in CDNA else 1]} {result}, v10, s[4:5]"
        found = run_words(body, inputs, [32, 33, 34, 35], target=target)
        whole = b"".join(word.to_bytes(4, "little") for words in data for word in words)
        for lane, at in enumerate(places):
            read = int.from_bytes(whole[at : at + size], "little", signed="s" in form)
            old = data[0][lane]
            if "l" in form:
                read = read & 0xFFFF | old & 0xFFFF0000
            elif "h" in form:
                read = read << 16 | old & 0xFFFF
            for word in range(max(1, size // 4)):
                assert found[32 + word][lane] == read >> 32 * word & 0xFFFFFFFF, f"{target} {kind}"


@each(itertools.product(SCALAR_LOADS, [False, True]))
def test_a_scalar_load(kind: tuple[str, int], buffer: bool) -> None:
    """RDNA 4 has small ones; past a buffer's end lie zeros."""
    name, size = kind
    chance = random.Random(name)
    data = [chance.getrandbits(32) | 0x80008080 for _ in range(32)]
    whole = b"".join(word.to_bytes(4, "little") for word in data)
    places = [chance.randrange((128 - size) // min(size, 4)) * min(size, 4) for _ in range(16)]
    end = 120 if buffer else 128
    places += [112, 120, 124] if buffer else []
    lines = ["s_mov_b64 s[8:9], s[4:5]", f"s_mov_b32 s10, {end}", "s_mov_b32 s11, 0"]
    base = "s[8:11]" if buffer else "s[8:9]"
    result = f"s[12:{11 + size // 4}]" if size > 4 else "s12"
    for lane, at in enumerate(places):
        lines.append(f"s_{'buffer_' if buffer else ''}load_{name} {result}, {base}, {at:#x}")
        lines += [f"v_writelane_b32 v{32 + part}, s{12 + part}, {lane}" for part in range(3)]
    inputs = {20: data, **{32 + part: [0] * 32 for part in range(3)}}
    found = run_words("\n".join(lines), inputs, [32, 33, 34], target="gfx1201")
    for lane, at in enumerate(places):
        words = max(1, size // 4)
        for part in range(words):
            first, last = at + 4 * part, at + min(size, 4 * part + 4)
            read = int.from_bytes(whole[first:last], "little", signed="i" in name)
            assert found[32 + part][lane] == (read if last <= end else 0) & 0xFFFFFFFF


@each(itertools.product(STORES, ["global", "ds"]))
def test_a_store(kind: tuple[str, str, str, int, str], space: str) -> None:
    """Into 16 bytes of each lane, which are read back."""
    *names, size, form = kind
    for target in TARGETS:
        lanes, chance = lanes_of(target), random.Random(f"{kind}{space}")
        data = [[chance.getrandbits(32) for _ in range(lanes)] for _ in range(4)]
        places = list(range(0, 16 * lanes, 16))
        inputs = {10: places, **{12 + at: words for at, words in enumerate(data)}, 20: [0] * lanes}
        inputs |= {at: [0] * lanes for at in (21, 22, 23)}
        given, cdna = registers(12, size), target in CDNA
        if space == "ds":
            verb = ("read", "write") if cdna else ("load", "store")
            lines = [
                f"ds_{verb[1]}_b128 v10, v[20:23]",
                f"ds_{verb[1]}_{names[2]} v10, {given}",
                f"ds_{verb[0]}_b128 v[32:35], v10",
            ]
        else:
            quad = "dwordx4" if cdna else "b128"
            lines = [
                f"global_store_{names[0 if cdna else 1]} v10, {given}, s[6:7]",
                f"global_load_{quad} v[32:35], v10, s[6:7]",
            ]
        found = run_words("\n".join(lines), inputs, [32, 33, 34, 35], target=target)
        for lane in range(lanes):
            value = sum(words[lane] << 32 * at for at, words in enumerate(data))
            value = (value >> 16 * (form == "h")) & ((1 << 8 * size) - 1)
            read = sum(found[32 + at][lane] << 32 * at for at in range(4))
            assert read == value, f"{target} {kind} {lane}"


def name_of(what: str, bits: int, target: str, space: str) -> str:
    """An atomic operation's name in a space."""
    cdna = target in CDNA
    if space == "ds":
        if what in FLOATS:
            kind, _, size = what.rpartition("_")
            return f"ds_{kind}_rtn_{size}"
        known = LDS_NAMES if cdna else LDS_NAMES | LDS_NAMES_OF_RDNA
        return f"ds_{known[what]}{bits}"
    if what in FLOATS:
        return f"global_atomic_{what}"
    if cdna:
        return f"global_atomic_{what}{'_x2' if bits == 64 else ''}"
    return f"global_atomic_{RDNA_NAMES[what]}{bits}"


def has_floats(what: str, target: str, space: str) -> bool:
    """True if a target has an atomic operation of floats."""
    if "f64" in what or "pk" in what:
        return target in ("gfx942", "gfx950") and not (
            space == "ds" and "f64" in what and "add" not in what
        )
    return target not in CDNA or (what == "add_f32" or space == "ds")


@each(itertools.product([*CHANGES, *FLOATS], [32, 64], ["global", "ds"]), parts=2)
def test_an_atomic_operation(what: str, bits: int, space: str) -> None:
    """All lanes change eight places, in their order, and return what was there."""
    letter, change = FLOATS.get(what, ("U" if bits == 64 else "u", CHANGES.get(what)))
    assert change is not None
    if what in FLOATS and bits != (64 if letter == "D" else 32):
        return
    for target in TARGETS:
        if what in FLOATS and not has_floats(what, target, space):
            continue
        lanes, size = lanes_of(target), bits // 8
        chance = random.Random(f"{what}{bits}")
        old = [bits_for(letter, chance) for _ in range(lanes)]
        given = [bits_for(letter, chance) for _ in range(lanes)]
        compared = [chance.choice((old[lane % 8], given[lane])) for lane in range(lanes)]
        if "pk" in what:  # ordinary halves
            old, given = ([one & 0x3FFF3FFF for one in words] for words in (old, given))
        places = [lane % 8 * size for lane in range(lanes)]
        own = [lane * size for lane in range(lanes)]
        inputs: dict[int, list[int]] = {10: places, 11: own}
        for first, words in ((12, old), (14, given), (14 + size // 4, compared)):
            inputs[first] = [one & 0xFFFFFFFF for one in words]
            if size == 8:
                inputs[first + 1] = [one >> 32 for one in words]
        cdna, name, each = target in CDNA, name_of(what, bits, target, space), size // 4
        swaps = what == "cmpswap"
        if space == "ds":
            verb = ("read", "write") if cdna else ("load", "store")
            data = [registers(14, size)]
            if swaps:  # CDNA names what is compared first, RDNA last
                data = (
                    [registers(14 + each, size), *data]
                    if cdna
                    else [*data, registers(14 + each, size)]
                )
            lines = [
                f"ds_{verb[1]}_b{bits} v11, {registers(12, size)}",
                f"{name} {registers(32, size)}, v10, {', '.join(data)}",
                f"ds_{verb[0]}_b{bits} {registers(34, size)}, v11",
            ]
        else:
            word = ("dword" if size == 4 else "dwordx2") if cdna else f"b{bits}"
            data = [registers(14, size * (2 if swaps else 1))]
            end = {"gfx90a": "glc", "gfx1100": "glc", "gfx1201": "th:TH_ATOMIC_RETURN"}
            operands = ", ".join((registers(32, size), "v10", *data, "s[6:7]"))
            lines = [
                f"global_store_{word} v11, {registers(12, size)}, s[6:7]",
                f"{name} {operands} {end.get(target, 'sc0')}",
                f"global_load_{word} {registers(34, size)}, v11, s[6:7]",
            ]
        found = run_words("\n".join(lines), inputs, [32, 33, 34, 35], target=target)
        lies = list(old)
        for lane in range(lanes):
            mask, at = (1 << bits) - 1, lane % 8
            had = sum(found[32 + word][lane] << 32 * word for word in range(each))
            assert had == lies[at], f"{target} {name}: lane {lane} had {had:#x}, not {lies[at]:#x}"
            lies[at] = change(lies[at], given[lane], compared[lane], bits) & mask
        for lane in range(lanes):
            has = sum(found[34 + word][lane] << 32 * word for word in range(each))
            assert has == lies[lane], f"{target} {name}: {has:#x} lies there, not {lies[lane]:#x}"
