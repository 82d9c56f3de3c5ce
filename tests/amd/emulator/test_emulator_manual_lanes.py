"""Movements across lanes, by the manuals' definitions in Python, on each target.

Inputs are random words, masks and lanes that are off.
"""

from __future__ import annotations

import random

import pytest
from manual_text import CDNA, RDNA, TARGETS
from small_assembly import run_words

pytestmark = pytest.mark.compiler
BITS = 0xFFFFFFFF


def lanes_of(target: str) -> int:
    return 64 if target in CDNA else 32


def source_of(control: str, lane: int, lanes: int) -> int | None:
    """The lane that a lane reads under a control; None where there is none."""
    name, _, value = control.partition(":")
    row, at = lane - lane % 16, lane % 16
    if name == "quad_perm":
        return lane - lane % 4 + [int(one) for one in value.strip("[]").split(",")][lane % 4]
    if name == "dpp8":
        return lane - lane % 8 + [int(one) for one in value.strip("[]").split(",")][lane % 8]
    if name == "row_bcast":
        last = row - 1 if value == "15" else 31
        return last if last >= 0 and lane > last else None
    n = int(value or 0)
    known = {
        "row_shl": row + at + n if at + n < 16 else None,
        "row_shr": row + at - n if at >= n else None,
        "row_ror": row + (at - n) % 16,
        "row_mirror": row + 15 - at,
        "row_half_mirror": lane - lane % 8 + 7 - lane % 8,
        "row_newbcast": row + n,
        "row_share": row + n,
        "row_xmask": row + (at ^ n),
        "wave_shl": lane + 1 if lane + 1 < lanes else None,
        "wave_rol": (lane + 1) % lanes,
        "wave_shr": lane - 1 if lane else None,
        "wave_ror": (lane - 1) % lanes,
    }
    return known[name]


COMMON = ["quad_perm:[3,1,0,2]", "quad_perm:[0,0,2,2]", "row_mirror", "row_half_mirror"]
COMMON += [f"row_{way}:{n}" for way in ("shl", "shr", "ror") for n in (1, 2, 4, 8, 15)]
CONTROLS = {
    "gfx9": [*COMMON, "row_bcast:15", "row_bcast:31", "row_newbcast:5"]
    + [f"wave_{way}:1" for way in ("shl", "rol", "shr", "ror")],
    "gfx1": [*COMMON, "row_share:7", "row_xmask:5", "row_xmask:12", "dpp8:[7,6,5,4,3,2,1,0]"],
}


def masked(lanes: int, mask: int) -> tuple[list[str], list[str]]:
    """Lines that leave the lanes of a mask on, and those that turn all on again."""
    if lanes == 64:
        low = [f"s_mov_b32 exec_lo, {mask & BITS:#x}", f"s_mov_b32 exec_hi, {mask >> 32:#x}"]
        return low, ["s_mov_b64 exec, -1"]
    return [f"s_mov_b32 exec_lo, {mask:#x}"], ["s_mov_b32 exec_lo, -1"]


@pytest.mark.parametrize("target", TARGETS)
def test_a_row_s_lanes_move(target: str) -> None:
    lanes, chance = lanes_of(target), random.Random(target)
    for control in CONTROLS[target[:4]]:
        if control.startswith("wave_") and target != "gfx90a":
            continue
        for zero in (False, True):
            words, old = ([chance.getrandbits(32) for _ in range(lanes)] for _ in range(2))
            exec_mask = chance.choice((chance.getrandbits(lanes), (1 << lanes) - 1))
            rows, banks = chance.choice((15, 10)), chance.choice((15, 6))
            if control.startswith("dpp8"):
                rows, banks, end = 15, 15, ""
            else:
                end = f" row_mask:{rows:#x} bank_mask:{banks:#x}{' bound_ctrl:1' if zero else ''}"
            for name in ("v_mov_b32_dpp v32, v10", "v_add_u32_dpp v32, v10, v11"):
                if target in RDNA:
                    name = name.replace("v_add_u32", "v_add_nc_u32")
                before, after = masked(lanes, exec_mask)
                body = "\n".join([*before, f"{name} {control}{end}", *after])
                inputs = {10: words, 11: [3] * lanes, 32: old}
                found = run_words(body, inputs, [32], target=target)[32]
                for lane in range(lanes):
                    source = source_of(control, lane, lanes)
                    is_there = source is not None and exec_mask >> source & 1
                    on = exec_mask >> lane & rows >> lane // 16 & banks >> lane // 4 % 4 & 1
                    on = on and (is_there or zero or control.startswith("dpp8"))
                    value = words[source or 0] if is_there else 0
                    wanted = (value + 3 * ("add" in name)) & BITS if on else old[lane]
                    assert found[lane] == wanted, f"{target} {name} {control}{end}: lane {lane}"


@pytest.mark.parametrize("target", TARGETS)
def test_permutations_through_lds(target: str) -> None:
    lanes, chance = lanes_of(target), random.Random(target)
    words, places = ([chance.getrandbits(32) for _ in range(lanes)] for _ in range(2))
    mask = chance.getrandbits(lanes)
    before, after = masked(lanes, mask)
    patterns = (0x1F, 0x401F, 0x3C10, 0x7FFF, 0x0000, 0x801B, 0x80E4)
    lines = ["ds_bpermute_b32 v32, v11, v10 offset:8", "ds_permute_b32 v33, v11, v10"]
    lines += [f"ds_swizzle_b32 v{34 + at}, v10 offset:{one:#x}" for at, one in enumerate(patterns)]
    results = list(range(32, 34 + len(patterns)))
    inputs = {10: words, 11: places, **{at: [7] * lanes for at in results[:2]}}
    found = run_words("\n".join([*before, *lines, *after]), inputs, results, target=target)
    for lane in range(lanes):
        if not mask >> lane & 1:
            assert found[32][lane] == found[33][lane] == 7
            continue
        source = ((places[lane] + 8) >> 2) % lanes
        assert found[32][lane] == (words[source] if mask >> source & 1 else 0)
        senders = [
            one for one in range(lanes) if mask >> one & 1 and places[one] // 4 % lanes == lane
        ]
        assert found[33][lane] == (words[senders[-1]] if senders else 0)
        for at, pattern in enumerate(patterns):
            if pattern >> 15:
                source = lane - lane % 4 + (pattern >> 2 * (lane % 4) & 3)
            else:
                source = lane & 32 | (lane % 32 & pattern | pattern >> 5 & 31) ^ pattern >> 10 & 31
            wanted = words[source] if mask >> source & 1 else 0
            assert found[34 + at][lane] == wanted, f"{target} {pattern:#x}"


@pytest.mark.parametrize("target", TARGETS)
def test_lanes_and_scalars(target: str) -> None:
    lanes, chance = lanes_of(target), random.Random(target)
    words, other = ([chance.getrandbits(32) for _ in range(lanes)] for _ in range(2))
    mask = chance.getrandbits(lanes) & ~1
    before, after = masked(lanes, mask)
    lines = ["v_readfirstlane_b32 s10, v10", f"s_mov_b32 s12, {lanes + 5}"]
    lines += ["v_readlane_b32 s11, v10, s12", "v_writelane_b32 v11, s11, 9", "v_swap_b32 v10, v12"]
    moves = ["v_mov_b32_e32 v32, s10", "v_mov_b32_e32 v33, s11"]
    body = "\n".join([*before, *lines, *after, *moves])
    inputs = {10: words, 11: other, 12: other}
    found = run_words(body, inputs, [32, 33, 11, 10, 12], target=target)
    first = (mask & -mask).bit_length() - 1
    assert set(found[32]) == {words[first]} and set(found[33]) == {words[5]}
    assert found[11] == [words[5] if lane == 9 else other[lane] for lane in range(lanes)]
    swapped = [
        (b, a) if mask >> at & 1 else (a, b)
        for at, (a, b) in enumerate(zip(words, other, strict=True))
    ]
    assert list(zip(found[10], found[12], strict=True)) == swapped


@pytest.mark.parametrize("target", RDNA)
def test_rows_of_16_lanes_permute(target: str) -> None:
    chance = random.Random(target)
    for across, name in ((0, "v_permlane16_b32"), (16, "v_permlanex16_b32")):
        for fetches in (0, 1):
            words, old = ([chance.getrandbits(32) for _ in range(32)] for _ in range(2))
            low, high, mask = (chance.getrandbits(32) for _ in range(3))
            before, after = masked(32, mask)
            scalars = [f"s_mov_b32 s10, {low:#x}", f"s_mov_b32 s11, {high:#x}"]
            line = f"{name} v32, v10, s10, s11 op_sel:[{fetches},0]"
            body = "\n".join([*scalars, *before, line, *after])
            found = run_words(body, {10: words, 32: old}, [32], target=target)[32]
            for lane in range(32):
                source = (lane & 16 ^ across) + ((high << 32 | low) >> 4 * (lane % 16) & 15)
                is_there = fetches or mask >> source & 1
                wanted = words[source] if mask >> lane & 1 and is_there else old[lane]
                assert found[lane] == wanted


@pytest.mark.parametrize("size", [16, 32])
def test_gfx950_swaps_rows(size: int) -> None:
    chance = random.Random(size)
    a, b = ([chance.getrandbits(32) for _ in range(64)] for _ in range(2))
    line = f"v_permlane{size}_swap_b32 v10, v11"
    found = run_words(line, {10: a, 11: b}, [10, 11], target="gfx950")
    for lane in range(64):
        odd = bool(lane & size)
        assert found[10][lane] == (b[lane - size] if odd else a[lane])
        assert found[11][lane] == (b[lane] if odd else a[lane + size])
