"""The bound on the time, worked by hand from made-up counts."""

from __future__ import annotations

import pytest

from ratchet.judge.emulator.estimate import estimate, read_told

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
}


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


def test_a_wave_of_64_lanes_takes_four_cycles() -> None:
    mixed = {"v_add_f32_e32": 5, "v_mfma_f32_32x32x8bf16_1k": 2}
    kernels = read_told({"made_up": COUNTS | {"by_mnemonic": mixed}}, "gfx90a")
    bounds = {one.device: one for one in estimate("case", "gfx90a", kernels).bounds}
    assert bounds["MI210"].vector_s == pytest.approx(5 * 4 / 4 / 1.7e9)
    assert bounds["MI210"].matrix_s == pytest.approx(2 * 64 / 4 / 1.7e9)
    assert bounds["MI210"].lds_s == pytest.approx(4 / 1.7e9)
