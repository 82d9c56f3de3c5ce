"""The bound on the time, worked by hand from made-up counts."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.amd.emulator.estimates import SPAN, estimate, hottest, read_told, words

COUNTS = {
    "launches": 1,
    "programs": 1,
    "waves": 4,
    "lanes": 0,
    "bytes": 0,
    "touched_bytes": 0,
    "lines_64": 0,
    "lds_bytes": 512,
    "lds_conflicts": 0,
    "by_place": {},
}


def place(mixed: dict[str, int], lanes: int, lines_64: int = 0, conflicts: int = 0) -> Any:
    return {
        "by_mnemonic": mixed,
        "lanes": lanes,
        "lines_64": lines_64,
        "lds_conflicts": conflicts,
    }


def test_the_lines_with_most_of_a_kernels_work_come_first() -> None:
    places = {
        "kernel.py:3": place({"v_add_f32_e32": 6, "s_nop": 2}, lanes=8 * 64),
        "kernel.py:1": place({"global_load_dword": 2}, lanes=2 * 16, lines_64=8),
        "standard.py:9": place({"v_mfma_f32_32x32x8_f16": 1}, lanes=64),
        "": place({"s_endpgm": 1}, lanes=64),
    }
    told = COUNTS | {"by_mnemonic": {"v_add_f32_e32": 6}, "by_place": places}
    (kernel,) = read_told({"made_up": told}, "gfx942")
    assert [one.place for one in kernel.lines[:3]] == [
        "kernel.py:1",  # all of the bytes
        "standard.py:9",  # 32 of 56 cycles
        "kernel.py:3",
    ]
    assert [one.cycles for one in kernel.lines[:3]] == [0, 32, 24]
    said = hottest(kernel, "load(x)\n\nadd(x)\n", count=4)
    assert said == [
        "kernel.py:1: 0% of the cycles, 100% of the bytes, 75% of the lanes off: load(x)",
        "standard.py:9: 57% of the cycles, 0% of the bytes",
        "kernel.py:3: 43% of the cycles, 0% of the bytes: add(x)",
    ]


def test_an_rdna_wave_takes_a_cycle_and_a_dual_instruction_counts_once() -> None:
    mixed = {"v_dual_add_f32": 10, "v_dual_mul_f32": 10, "v_add_f32_e32": 5, "s_nop": 3}
    mixed["v_wmma_f32_16x16x16_f16"] = 2
    kernels = read_told({"made_up": COUNTS | {"by_mnemonic": mixed}}, "gfx1100")
    assert (kernels[0].instructions, kernels[0].vector_instructions) == (20, 15)
    (bound,) = estimate("case", "gfx1100", kernels).bounds
    assert bound.device == "RX 7900 XTX"
    clock = 2.5e9  # four waves on four SIMDs; 32 cycles a product; 256 bytes of LDS a cycle
    assert bound.vector_s == pytest.approx(15 / 4 / clock)
    assert bound.matrix_s == pytest.approx(2 * 32 / 4 / clock)
    assert bound.lds_s == pytest.approx(2 / clock)


def test_a_predicted_time_stands_beside_the_bound_with_its_interval() -> None:
    told = COUNTS | {"by_mnemonic": {"v_add_f32_e32": 5}}
    known = read_told(
        {"a": told | {"predicted_s": 1e-5}, "b": told | {"predicted_s": 2e-5}}, "gfx942"
    )
    case = estimate("case", "gfx942", known)
    assert case.predicted is not None and case.predicted.device == case.bounds[0].device
    assert case.predicted.time_s == pytest.approx(3e-5)
    low, high = SPAN
    assert case.predicted.low_s == pytest.approx(low * 3e-5)
    assert case.predicted.high_s == pytest.approx(high * 3e-5)
    assert f"predicted {case.predicted.words}, not measured" in words(case)
    (unknown,) = read_told({"c": told | {"predicted_s": None}}, "gfx942")
    case = estimate("case", "gfx942", [*known, unknown])
    assert case.predicted is None and "predicted" not in words(case)
    with pytest.raises(ValueError):
        read_told({"a": told | {"predicted_s": -1.0}}, "gfx942")


def test_a_wave_of_64_lanes_takes_four_cycles() -> None:
    mixed = {"v_add_f32_e32": 5, "v_mfma_f32_32x32x8bf16_1k": 2}
    kernels = read_told({"made_up": COUNTS | {"by_mnemonic": mixed}}, "gfx90a")
    bounds = {one.device: one for one in estimate("case", "gfx90a", kernels).bounds}
    assert bounds["MI210"].vector_s == pytest.approx(5 * 4 / 4 / 1.7e9)
    assert bounds["MI210"].matrix_s == pytest.approx(2 * 64 / 4 / 1.7e9)
    assert bounds["MI210"].lds_s == pytest.approx(4 / 1.7e9)


def test_a_matrix_instruction_without_known_cycles_has_no_bound() -> None:
    mixed = {"v_add_f32_e32": 5, "v_mfma_f32_9x9x9_made_up": 2}
    kernels = read_told({"made_up": COUNTS | {"by_mnemonic": mixed}}, "gfx942")
    found = estimate("case", "gfx942", kernels)
    assert not found.bounds
    assert words(found).startswith(
        "no bound: the cycles of v_mfma_f32_9x9x9_made_up on gfx942 are not known; 7 instructions"
    )


SHOWN = {
    "assembly": {"kernel.py:1": [["v_add_f32_e32 v0, v1, v2", 6], ["s_nop 0", 2]]},
    "timeline": {
        "cycles": 10,
        "slot": 1,
        "barriers": [4],
        "places": ["standard.py:9", "kernel.py:1"],
        "waves": [[[1, 0, 4]], [[1, 4, 10]]],
    },
    "vgprs": 128,
    "workgroup_waves": 4,
    "workgroup_lds_bytes": 32 << 10,
}


def shown(**changes: Any) -> Any:
    """A kernel's counts with what a page shows of it; changes go into the timeline."""
    told = COUNTS | {"by_mnemonic": {"v_add_f32_e32": 6}, "by_place": PLACES}
    timeline = SHOWN["timeline"] | changes  # type: ignore[operator]
    return {"made_up": told | {"shown": SHOWN | {"timeline": timeline}}}


PLACES = {"kernel.py:1": place({"v_add_f32_e32": 6, "s_nop": 2}, lanes=8 * 64)}


def test_occupancy_and_assembly_are_kept_of_what_a_process_tells() -> None:
    (kernel,) = read_told(shown(), "gfx942")
    # 512 registers hold 4 waves of 128; 64 KiB of LDS hold two workgroups, so 2 waves a SIMD
    assert (kernel.occupancy_waves, kernel.max_waves, kernel.occupancy_limit) == (2, 8, "lds")
    assert kernel.lines[0].assembly == [("v_add_f32_e32 v0, v1, v2", 6), ("s_nop 0", 2)]
    assert kernel.timeline is not None and kernel.timeline.places == ["kernel.py:1"]
    assert kernel.timeline.waves == [[(0, 0, 4)], [(0, 4, 10)]]
    (plain,) = read_told(shown(), "gfx942", shown=False)
    assert plain.timeline is None and plain.lines[0].assembly == []


@pytest.mark.parametrize(
    "changes",
    [
        {"waves": [[[2, 0, 4]]]},
        {"waves": [[[0, 4, 4]]]},
        {"waves": [[[0, 0, 40]]]},
        {"waves": [[[0, 0, 1]]] * 17},
        {"slot": 0},
        {"cycles": "many"},
    ],
)
def test_a_timeline_that_is_nonsense_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        read_told(shown(**changes), "gfx942")


@pytest.mark.parametrize(
    "forged", [{"bytes": -1}, {"touched_bytes": 10**400}, {"by_mnemonic": {"v_add_f32": -5}}]
)
def test_counts_that_no_process_can_have_are_refused(forged: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="int"):
        read_told({"made_up": COUNTS | forged}, "gfx942")
