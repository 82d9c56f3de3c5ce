"""Every scalar instruction of the table, on its own, against the manual's definition in Python."""

from __future__ import annotations

import os
import random
import zlib
from typing import Any

import manual_scalar as manual
import pytest
from each_case import each
from exact_numbers import FORMATS, WIDTHS, bits_for, fused, read, same, written
from manual_text import CDNA, RDNA, TARGETS
from small_assembly import run_words

from ratchet.amd.emulator import source

pytestmark = pytest.mark.compiler
TRIED, WIDE = 24, "UI"
NAMES_OF_RDNA = {
    "s_andn2_b32": "s_and_not1_b32",
    "s_andn2_b64": "s_and_not1_b64",
    "s_orn2_b32": "s_or_not1_b32",
    "s_orn2_b64": "s_or_not1_b64",
    "s_andn2_saveexec_b32": "s_and_not1_saveexec_b32",
    "s_orn2_saveexec_b32": "s_or_not1_saveexec_b32",
    "s_ff1_i32_b32": "s_ctz_i32_b32",
    "s_ff1_i32_b64": "s_ctz_i32_b64",
    "s_flbit_i32_b32": "s_clz_i32_u32",
    "s_flbit_i32_b64": "s_clz_i32_u64",
    "s_flbit_i32": "s_cls_i32",
    "s_flbit_i32_i64": "s_cls_i32_i64",
}
NAMES_OF_RDNA_4 = {
    **NAMES_OF_RDNA,
    "s_add_u32": "s_add_co_u32",
    "s_sub_u32": "s_sub_co_u32",
    "s_add_i32": "s_add_co_i32",
    "s_sub_i32": "s_sub_co_i32",
    "s_addc_u32": "s_add_co_ci_u32",
    "s_subb_u32": "s_sub_co_ci_u32",
    "s_addk_i32": "s_addk_co_i32",
    "s_min_f32": "s_min_num_f32",
    "s_max_f32": "s_max_num_f32",
    "s_min_f16": "s_min_num_f16",
    "s_max_f16": "s_max_num_f16",
}


def targets_of(name: str) -> tuple[str, ...]:
    """The targets that have an instruction."""
    if name in ("s_add_nc_u64", "s_sub_nc_u64", "s_mul_u64"):
        return ("gfx1201",)
    if name.startswith("s_cmpk_"):
        return tuple(one for one in TARGETS if one != "gfx1201")
    if name == "s_pack_hl_b32_b16":
        return RDNA
    if name.endswith("saveexec_b64"):
        return CDNA
    return RDNA if name.endswith("saveexec_b32") else TARGETS


def tried_of(name: str) -> tuple[str, ...]:
    """The targets that an instruction is tried on: all in the long tier, one of them else."""
    every = targets_of(name)
    if os.environ.get("RATCHET_TEST") == "all":
        return every
    return (every[zlib.crc32(name.encode()) % len(every)],)


def text_of(name: str, form: str, target: str, chance: random.Random) -> tuple[str, dict[str, Any]]:
    """One instruction over `TRIED` draws: draw n's words come from lane n, its results go there.

    v10 to v13 hold the sources, v14 the result's old value in two registers, v16 SCC, v18 EXEC.
    """
    names = NAMES_OF_RDNA_4 if target == "gfx1201" else NAMES_OF_RDNA if target in RDNA else {}
    results, sources = form.split(":")
    kinds = [one for one in sources if one not in "cqek"]
    lanes = 64 if target in CDNA else 32
    draws = {
        "values": [[bits_for(one, chance) for _ in range(lanes)] for one in kinds],
        "old": [bits_for(results[0], chance) if results else 0 for _ in range(lanes)],
        "scc": [chance.getrandbits(1) for _ in range(lanes)],
        "exec": [chance.choice((0, chance.getrandbits(lanes), 1)) for _ in range(lanes)],
        "k": [
            chance.choice((0, 1, 0x7FFF, 0x8000, 0xFFFF, chance.getrandbits(16)))
            for _ in range(lanes)
        ],
    }
    lines = []
    for lane in range(TRIED):
        lines += [f"v_readlane_b32 s{10 + n}, v{10 + n}, {lane}" for n in range(6)]
        lines += [f"v_readlane_b32 s26, v16, {lane}", "s_cmp_eq_u32 s26, 1"]
        operands = ["s[14:15]" if results in tuple(WIDE) else "s14"] if results else []
        for place, one in enumerate(kinds):
            first = 10 + 2 * place
            operands.append(f"s[{first}:{first + 1}]" if one in WIDE else f"s{first}")
        if "k" in sources:
            operands.append(hex(draws["k"][lane]))
        if "e" in sources:
            low, high = draws["exec"][lane] & 0xFFFFFFFF, draws["exec"][lane] >> 32
            lines += [f"s_mov_b32 exec_lo, {low:#x}"]
            lines += [f"s_mov_b32 exec_hi, {high:#x}"] if lanes == 64 else []
        lines.append(f"{names.get(name, name)} {', '.join(operands)}")
        lines.append("s_cselect_b32 s26, 1, 0")
        if "e" in sources:
            lines += [
                "s_mov_b32 s24, exec_lo",
                "s_mov_b32 s25, exec_hi" if lanes == 64 else "s_mov_b32 s25, 0",
            ]
            lines += ["s_mov_b64 exec, -1" if lanes == 64 else "s_mov_b32 exec_lo, -1"]
            lines += [f"v_writelane_b32 v18, s24, {lane}", f"v_writelane_b32 v19, s25, {lane}"]
        lines += [f"v_writelane_b32 v{at}, s{at}, {lane}" for at in (14, 15)]
        lines += [f"v_writelane_b32 v16, s26, {lane}"]
    return "\n".join(lines), draws


def check(name: str, definition: Any, targets: tuple[str, ...], units: int = 0) -> None:
    """Compare result and SCC of every draw on every target."""
    form, function = definition
    results, sources = form.split(":")
    for target in targets:
        text, draws = text_of(name, form, target, random.Random(f"{name} {target}"))
        inputs = {at: [0] * len(draws["scc"]) for at in (*range(10, 16), 18, 19)}
        for first, words in [*zip((10, 12), draws["values"], strict=False), (14, draws["old"])]:
            inputs[first] = [one & 0xFFFFFFFF for one in words]
            inputs[first + 1] = [one >> 32 for one in words]
        inputs[16] = draws["scc"]
        kinds = [one for one in sources if one not in "cqek"]
        found = run_words(text, inputs, [14, 15, 16, 18, 19], target=target)
        for lane in range(TRIED):
            drawn = zip(draws["values"], kinds, strict=True)
            values = [read(words[lane], kind) for words, kind in drawn]
            if units and FORMATS[results].is_small(float(values[0])):
                continue
            named = {"c": draws["scc"][lane], "k": draws["k"][lane], "e": draws["exec"][lane]}
            named["q"] = read(draws["old"][lane], results) if results else 0
            left = iter(values)
            given = [named[one] if one in named else next(left) for one in sources]
            answer = function(*given)
            if "e" in sources:
                bits = WIDTHS[results]
                after = answer & ((1 << bits) - 1)
                assert found[18][lane] | found[19][lane] << 32 == after, (
                    f"{target} {name} of {given}"
                )
                answer = (draws["exec"][lane], int(after != 0))
            result, scc = answer
            told = f"{target} {name} of {given}"
            assert found[16][lane] == (draws["scc"][lane] if scc is None else scc), f"{told}: SCC"
            if results:
                word = found[14][lane] | (found[15][lane] << 32 if results in tuple(WIDE) else 0)
                expected = written(result, results)
                if units and FORMATS[results].is_small(FORMATS[results].value(expected)):
                    continue
                word &= (1 << WIDTHS[results]) - 1
                assert same(word, expected, results, units), f"{told}: {word:#x}, not {expected:#x}"


@each(manual.INSTRUCTIONS, parts=3)
def test_a_scalar_instruction(name: str) -> None:
    check(name, manual.INSTRUCTIONS[name], tried_of(name))


@each(manual.SAVED)
def test_the_mask_of_lanes_is_kept_and_changed(name: str) -> None:
    check(name, manual.SAVED[name], tried_of(name))


@each(manual.FLOATS, parts=2)
def test_a_scalar_instruction_of_floats(name: str) -> None:
    check(name, manual.FLOATS[name], ("gfx1201",))


@each(manual.NEAR)
def test_a_scalar_instruction_whose_last_bits_are_open(name: str) -> None:
    check(name, manual.NEAR[name], ("gfx1201",), 2)


@pytest.mark.parametrize(("name", "between"), [("s_fmamk_f32", True), ("s_fmaak_f32", False)])
def test_a_scalar_instruction_with_a_literal(name: str, between: bool) -> None:
    chance = random.Random(name)
    a, b = ([bits_for("f", chance) for _ in range(32)] for _ in range(2))
    operands = "s10, 0x40490fdb, s12" if between else "s10, s12, 0x40490fdb"
    lines = [
        line
        for lane in range(TRIED)
        for line in (
            f"v_readlane_b32 s10, v10, {lane}",
            f"v_readlane_b32 s12, v12, {lane}",
            f"{name} s14, {operands}",
            f"v_writelane_b32 v14, s14, {lane}",
        )
    ]
    inputs = {10: a, 12: b, 14: [0] * 32}
    found = run_words("\n".join(lines), inputs, [14], target="gfx1201")[14]
    for lane in range(TRIED):
        x, y, k = (read(word, "f") for word in (a[lane], b[lane], 0x40490FDB))
        wanted = fused(x, k, y) if between else fused(x, y, k)
        assert same(found[lane], written(wanted, "f"), "f"), f"{name} of {x}, {y}"


def test_every_scalar_instruction_of_the_table_has_a_definition() -> None:
    known = manual.INSTRUCTIONS | manual.SAVED | manual.FLOATS | manual.NEAR
    literal = {"s_fmamk_f32", "s_fmaak_f32"}
    scalar = {name for name, one in source.table().items() if one.is_scalar}
    assert scalar - known.keys() == literal
