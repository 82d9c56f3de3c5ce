"""Every vector instruction of the table, on its own, against the manual's definition in Python.

Inputs are edges, ordinary numbers and random bits in every lane, on each target that has it.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from functools import cache
from typing import Any

import manual_vector as manual
import pytest
from each_case import each
from exact_numbers import F32, FORMATS, WIDTHS, read, same, written
from manual_text import CDNA, TARGETS, has, laid, ran
from small_assembly import run_words

from ratchet.amd.emulator import source
from ratchet.base.errors import KernelError

pytestmark = pytest.mark.compiler
EXACT = {**manual.WORDS, **manual.CONVERSIONS, **manual.FLOATS}
UNITS = {"v_exp_f32": 2}
"""Units of the last place that a result may be off; one if not told."""
OTHERWISE = ("v_div_scale", "v_div_fmas", "v_mbcnt", "v_bitop3", *manual.LITERAL)


def check(name: str, definition: manual.Definition, units: int = 0, suffix: str = "") -> None:
    """Compare every lane's results on every target that has the instruction."""
    form, function = definition
    results, _, sources = form.partition(":")
    kinds = sources.replace("q", form[0]).replace("m", "u")

    @cache
    def defined(bits: tuple[int, ...]) -> tuple[list[Any], list[int]] | None:
        """Operands and the results' bits, for all targets; None where the manual leaves it open."""
        values = [read(word, kind) for word, kind in zip(bits, kinds, strict=True)]
        if units and is_beyond(name, values):
            return None
        answer = function(*values)
        answers = zip(results, answer if isinstance(answer, tuple) else (answer,), strict=True)
        return values, [int(one) & 1 if to == "m" else written(one, to) for to, one in answers]

    for target in (one for one in TARGETS if has(one, name)):
        one = laid(name, form, target, f"{name} {suffix}", suffix)
        found = ran(one, target)
        for lane, bits in enumerate(zip(*one.values, strict=True)):
            if (of := defined(bits)) is None:
                continue
            for (letter, _), words, expected in zip(one.results, found, of[1], strict=True):
                given = words[lane] & ((1 << WIDTHS.get(letter, 1)) - 1)
                if name.startswith(("v_sin", "v_cos")) and is_near(given, expected, letter):
                    continue
                assert same(given, expected, letter, units), (
                    f"{target} {name}{suffix} of {of[0]} ({[hex(word) for word in bits]}): "
                    f"{given:#x}, not {expected:#x}"
                )


def is_near(given: int, expected: int, letter: str) -> bool:
    """True for two numbers of -1 to 1 that differ by the last place of 1 at most."""
    form = FORMATS[letter]
    return abs(form.value(given) - form.value(expected)) <= 2.0 ** (2 - form.precision)


def is_beyond(name: str, values: list[float]) -> bool:
    """True for inputs whose result the manual leaves open: denormals, and many turns."""
    form = F32 if name.endswith("f32") else FORMATS["D" if name.endswith("f64") else "h"]
    if any(math.isfinite(one) and form.is_small(one) for one in values):
        return True
    if name.startswith(("v_sin", "v_cos")):
        return not abs(values[0]) <= 256
    result = manual.NEAR[name][1](*values)
    return form.is_small(float(result)) or (name.startswith("v_exp") and abs(values[0]) > 100)


@each(EXACT, parts=8)
def test_a_vector_instruction(name: str) -> None:
    check(name, EXACT[name])


@each(manual.CLAMPED)
def test_a_clamped_instruction(name: str) -> None:
    check(name, manual.CLAMPED[name], suffix=" clamp")


@each(manual.NEAR)
def test_a_vector_instruction_whose_last_bits_are_open(name: str) -> None:
    check(name, manual.NEAR[name], UNITS.get(name, 1))


@pytest.mark.parametrize("ending", manual.KINDS)
def test_comparisons(ending: str) -> None:
    kind = manual.KINDS[ending]
    known = manual.COMPARED | (manual.COMPARED_FLOATS if ending[0] == "f" else {})
    for name, compare in known.items():
        check(f"v_cmp_{name}_{ending}", (f"m:{kind * 2}", lambda a, b, of=compare: of(a, b)))
    if ending[0] != "f":
        check(f"v_cmp_ne_{ending}", (f"m:{kind * 2}", lambda a, b: a != b))


@pytest.mark.parametrize("target", TARGETS)
def test_a_comparison_that_turns_lanes_off(target: str) -> None:
    """`v_cmpx` leaves those lanes on for which it is true; CDNA's writes a mask besides."""
    alone = target not in CDNA
    for name in (one for one in source.table() if one.startswith("v_cmpx_")):
        kind = manual.KINDS[name.rpartition("_")[2]]
        known = manual.COMPARED | manual.COMPARED_FLOATS | {"ne": lambda a, b: a != b}
        one = laid(name, f"m:{kind * 2}", target, name)
        head, mask, operands = one.text.splitlines()[0].partition(" ")
        first, rest = operands.split(", ", 1)
        line = f"{head} {rest}" if alone else f"{head}{mask}{first}, {rest}"
        on = "s_mov_b32 exec_lo, -1" if alone else "s_mov_b64 exec, -1"
        text = f"v_mov_b32_e32 v32, 0\n{line}\nv_mov_b32_e32 v32, 1\n{on}"
        found = ran(replace(one, text=text), target)[0]
        for lane, bits in enumerate(zip(*one.values, strict=True)):
            values = [read(word, kind) for word in bits]
            wanted = int(known[name.split("_")[2]](*values))
            assert found[lane] == wanted, f"{target} {name} of {values}"


@pytest.mark.parametrize("bits", [4, 8])
def test_products_of_parts_whose_signs_are_told(bits: int) -> None:
    for target in (one for one in TARGETS if one not in CDNA):
        for first, second in ((0, 0), (1, 0), (0, 1), (1, 1)):
            name = f"v_dot{32 // bits}_i32_iu{bits}"
            one = laid(name, "u:uuu", target, name, f" neg_lo:[{first},{second},0]")
            found = ran(one, target)[0]
            for lane, (a, b, c) in enumerate(zip(*one.values, strict=True)):
                wanted = manual.dotted(a, b, bits, bool(first), bool(second)) + c
                assert found[lane] == wanted & 0xFFFFFFFF


@pytest.mark.parametrize("letter", ["h", "f", "D"])
def test_the_class_of_a_float(letter: str) -> None:
    form, ending = FORMATS[letter], {"h": "f16", "f": "f32", "D": "f64"}[letter]
    kinds = f"m:{ {'h': 'w', 'f': 'u', 'D': 'U'}[letter] }{'w' if letter == 'h' else 'u'}"
    check(
        f"v_cmp_class_{ending}",
        (kinds, lambda bits, mask: mask >> manual.class_of(bits, form) & 1),
    )


def halves(bits: int, wide: bool) -> tuple[int, int]:
    size = 32 if wide else 16
    return bits & ((1 << size) - 1), bits >> size


ORDERS = ("", " op_sel:[1,0{0}] op_sel_hi:[0,0{0}]")
SIGNS = ("", " neg_lo:[1,0{0}] neg_hi:[0,1{0}]")


@each(itertools.product(manual.PACKED, ORDERS, SIGNS), parts=2)
def test_a_packed_instruction(name: str, order: str, signs: str) -> None:
    form, function = manual.PACKED[name]
    letter, sources = form.split(":")
    wide, third = letter == "f", ",1" if len(sources) == 3 else ""
    if signs and letter not in "fh":
        return
    whole = ("U" if wide else "u") + ":" + ("U" if wide else "u") * len(sources)
    suffix = (order + signs).format(third)
    for target in (one for one in TARGETS if has(one, name)):
        one = laid(name, whole, target, name + suffix, suffix)
        found = ran(one, target)[0]
        size = 32 if wide else 16
        for lane, words in enumerate(zip(*one.values, strict=True)):
            parts = [halves(word, wide) for word in words]
            for high in range(2):
                chosen = (1, 0, 1) if order and not high else (0, 0, 1) if order else (high,) * 3
                turned = (0, 1, 1) if high else (1, 0, 1)
                values = []
                for place, kind in enumerate(sources):
                    bits = parts[place][chosen[place]]
                    bits ^= (turned[place] if signs else 0) << (size - 1)
                    values.append(read(bits, kind))
                given = found[lane] >> (size * high) & ((1 << size) - 1)
                expected = written(function(*values), letter)
                assert same(given, expected, letter), f"{target} {name}{suffix} of {values}"


def test_both_halves_of_zero_are_zero() -> None:
    """Of another constant a packed instruction's high half is not defined, and refused."""
    text = "v_pk_add_f32 v[32:33], v[10:11], 0 neg_lo:[1,1] neg_hi:[1,1]"
    inputs = {10: [0x3F800000] * 64, 11: [0] * 64}
    found = run_words(text, inputs, [32, 33], target="gfx942")
    assert set(found[32]) == {0xBF800000} and set(found[33]) == {0x80000000}
    with pytest.raises(KernelError, match="high half of a constant"):
        run_words(text.replace(", 0 ", ", 1.0 "), inputs, [32], target="gfx942")


@pytest.mark.parametrize("table", [0, 0x80, 0x1E, 0xCA, 0x69])
def test_any_function_of_three_bits(table: int) -> None:
    def of(a: int, b: int, c: int) -> int:
        return sum(
            (table >> (4 * (a >> at & 1) + 2 * (b >> at & 1) + (c >> at & 1)) & 1) << at
            for at in range(32)
        )

    for name, form in (("v_bitop3_b32", "u:uuu"), ("v_bitop3_b16", "w:www")):
        one = laid(name, form, "gfx950", f"{name} {table}", f" bitop3:{table:#x}")
        words = ran(one, "gfx950")[0]
        mask = 0xFFFFFFFF if form[0] == "u" else 0xFFFF
        for lane, given in enumerate(zip(*one.values, strict=True)):
            assert words[lane] & mask == of(*given) & mask


@pytest.mark.parametrize("name", manual.LITERAL)
def test_an_instruction_with_a_literal(name: str) -> None:
    """`v_fmamk`: a K + b, `v_fmaak`: a b + K; `v_mad` and kin round twice, without denormals."""
    letter, between, function = manual.LITERAL[name]
    form, literal = FORMATS[letter], {"f": 0x40490FDB, "h": 0x4248}[letter]
    for target in (one for one in TARGETS if has(one, name)):
        one = laid(name, f"{letter}:{letter * 2}", target, name)
        head, first, second = one.text.rsplit(", ", 2)
        both = (hex(literal), second) if between else (second, hex(literal))
        laid_out = replace(one, text=", ".join((head, first, *both)))
        found = ran(laid_out, target)[0]
        for lane, bits in enumerate(zip(*one.values, strict=True)):
            a, b = (form.value(word) for word in bits)
            k = form.value(literal)
            wanted = form.bits_of(form.near(function(a, k, b) if between else function(a, b, k)))
            given = found[lane] & ((1 << form.bits) - 1)
            assert same(given, wanted, letter), f"{target} {name} of {a}, {b}"


DIVISION = """v_div_scale_{0} {4}, {s}, {2}, {2}, {1}
v_rcp_{0} {5}, {4}
v_fma_{0} {6}, -{4}, {5}, 1.0
v_fma_{0} {5}, {6}, {5}, {5}
v_fma_{0} {6}, -{4}, {5}, 1.0
v_fma_{0} {5}, {6}, {5}, {5}
v_div_scale_{0} {6}, {vcc}, {1}, {2}, {1}
v_mul_{0} {7}, {6}, {5}
v_fma_{0} {8}, -{4}, {7}, {6}
v_fma_{0} {7}, {8}, {5}, {7}
v_fma_{0} {6}, -{4}, {7}, {6}
v_div_fmas_{0} {6}, {6}, {5}, {7}
v_div_fixup_{0} {3}, {6}, {2}, {1}"""


@pytest.mark.parametrize("letter", ["f", "D"])
def test_a_division_is_the_nearest_number(letter: str) -> None:
    """The compiler's whole sequence, denormals, infinities and zeros included."""
    for target in TARGETS:
        one = laid(
            "v_add_f32" if letter == "f" else "v_add_f64", f"{letter}:{letter * 2}", target, "/"
        )
        wide = letter == "D"
        places = [10, 12, 32, *range(40, 52, 2)]
        names = [f"v[{at}:{at + 1}]" if wide else f"v{at}" for at in places]
        masks = ("s[20:21]", "vcc") if target in CDNA else ("s20", "vcc_lo")
        text = DIVISION.format("f64" if wide else "f32", *names, s=masks[0], vcc=masks[1])
        found = ran(replace(one, text=text), target)[0]
        for lane, bits in enumerate(zip(*one.values, strict=True)):
            a, b = (FORMATS[letter].value(word) for word in bits)
            wanted = written(manual.quotient(a, b), letter)
            assert same(found[lane], wanted, letter), f"{target} {a} / {b}"


def test_the_lanes_below_are_counted() -> None:
    for target in TARGETS:
        for name, first in (("v_mbcnt_lo_u32_b32", 0), ("v_mbcnt_hi_u32_b32", 32)):
            one = laid(name, "u:uu", target, name)
            found = ran(one, target)[0]
            for lane, (mask, more) in enumerate(zip(*one.values, strict=True)):
                below = sum(mask >> at & 1 for at in range(32) if first + at < lane)
                assert found[lane] == (below + more) & 0xFFFFFFFF


def test_every_vector_instruction_of_the_table_has_a_definition() -> None:
    small = ("fp8", "bf8", "fp4")
    missing = [
        name
        for name, one in source.table().items()
        if not one.is_scalar
        and name.removesuffix("_clamp") not in EXACT | manual.NEAR | manual.PACKED
        and not name.startswith(("v_cmp_", "v_cmpx_", *OTHERWISE))
        and not re.match(r"v_dot[48]_i32_iu", name)
        and not any(part in name for part in small)
    ]
    assert missing == []
