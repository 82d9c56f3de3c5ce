"""Counts that a hand can take: small kernels, each beside the same one without its lines."""

from __future__ import annotations

import pytest
from small_assembly import run

from ratchet.amd.emulator.launch import LaunchCounts

LOOP = """
s_mov_b32 s8, 0
.LBB0_1:
v_add_u32_e32 v4, v4, v1
s_add_i32 s8, s8, 1
s_cmp_lt_i32 s8, 5
s_cbranch_scc1 .LBB0_1
"""
HALF = """
v_cmp_gt_u32_e32 vcc, 0x80, v0
s_and_saveexec_b64 s[8:9], vcc
v_add_u32_e32 v4, v1, v2
s_or_b64 exec, exec, s[8:9]
"""
NOBODY = """
s_mov_b64 exec, 0
v_add_u32_e32 v4, v1, v2
global_load_dword v4, v0, s[4:5]
s_mov_b64 exec, -1
"""


def spread(shift: int, access: str) -> str:
    """An access of the lanes to places 4 << shift bytes apart."""
    return f"v_lshlrev_b32_e32 v6, {shift}, v0\n{access}\ns_waitcnt vmcnt(0) lgkmcnt(0)"


def figures(counts: LaunchCounts) -> dict[str, int]:
    found = {
        name: getattr(counts, name)
        for name in (
            "instructions", "bytes", "stored_bytes", "lines_64", "lines_128", "lds_bytes",
            "lds_conflicts",
        )
    }  # fmt: skip
    return found | {"lanes": sum(counts.lanes.values())}


def test_the_frame_s_counts_are_those_of_a_hand() -> None:
    _, _, counts = run("")
    assert figures(counts) == {
        "instructions": 12,
        "bytes": 5 * 64 * 4,
        "stored_bytes": 2 * 64 * 4,
        "lines_64": 5 * 4,
        "lines_128": 5 * 2,
        "lds_bytes": 0,
        "lds_conflicts": 0,
        "lanes": 8 * 64,  # one shift, two moves, three loads, two stores
    }
    assert counts.touched_bytes == 5 * 64 * 4


@pytest.mark.parametrize(
    ("body", "more"),
    [
        ("v_add_u32_e32 v4, v1, v2", {"instructions": 1, "lanes": 64}),
        (LOOP, {"instructions": 21, "lanes": 5 * 64}),
        (HALF, {"instructions": 4, "lanes": 64 + 32}),
        (NOBODY, {"instructions": 5}),
        (  # 64 words that lie 8 bytes apart
            spread(1, "global_load_dword v4, v6, s[4:5]"),
            {"instructions": 3, "lanes": 128, "bytes": 256, "lines_64": 8, "lines_128": 4},
        ),
        (  # one word for all
            "v_mov_b32_e32 v6, 0\nglobal_load_dword v4, v6, s[4:5]\ns_waitcnt vmcnt(0)",
            {"instructions": 3, "lanes": 128, "bytes": 256, "lines_64": 1, "lines_128": 1},
        ),
        (  # 64 bytes beside each other
            "v_lshrrev_b32_e32 v6, 2, v0\nglobal_load_ubyte v4, v6, s[4:5]\ns_waitcnt vmcnt(0)",
            {"instructions": 3, "lanes": 128, "bytes": 64, "lines_64": 1, "lines_128": 1},
        ),
        (  # four bytes over the end of each line of 64
            "global_load_dword v4, v0, s[4:5] offset:4\ns_waitcnt vmcnt(0)",
            {"instructions": 2, "lanes": 64, "bytes": 256, "lines_64": 5, "lines_128": 3},
        ),
        ("ds_write_b32 v0, v1", {"instructions": 2, "lanes": 64, "lds_bytes": 256}),
        (  # pairs of 32 lanes in a bank, twice
            spread(1, "ds_write_b32 v6, v1"),
            {"instructions": 3, "lanes": 128, "lds_bytes": 256, "lds_conflicts": 2},
        ),
        (  # 32 lanes in a bank, twice
            spread(5, "ds_write_b32 v6, v1"),
            {"instructions": 3, "lanes": 128, "lds_bytes": 256, "lds_conflicts": 62},
        ),
        (  # every second lane on one word is no conflict
            "v_and_b32_e32 v6, 4, v0\nds_write_b32 v0, v1\nds_read_b32 v4, v6\n"
            "s_waitcnt lgkmcnt(0)",
            {"instructions": 4, "lanes": 3 * 64, "lds_bytes": 512},
        ),
    ],
)
def test_counts_are_those_of_a_hand(body: str, more: dict[str, int]) -> None:
    _, _, before = run("", lds=8192)
    _, _, after = run(body, range(192), lds=8192)
    plain = figures(before)
    found = {name: value - plain[name] for name, value in figures(after).items()}
    assert {name: value for name, value in found.items() if value} == more


def test_two_waves_count_twice() -> None:
    _, _, one = run(LOOP)
    _, _, two = run(LOOP, threads=128)
    assert figures(two) == {name: 2 * value for name, value in figures(one).items()}
