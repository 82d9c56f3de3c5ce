"""gfx950's products of scaled small floats and its transposed reads of LDS, element by element.

The layout is that of AMD's published examples: an 8-bit operand has 16 neighbours along k, and 16
more half of k further; a 4-bit operand has 32 neighbours. A scale belongs to 32 along k.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_assembly import run

LANES = np.arange(64)
RANDOM = np.random.default_rng(3)
FOUR_BITS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
EIGHT_BITS = {
    "0": torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy(),
    "1": torch.arange(256, dtype=torch.uint8).view(torch.float8_e5m2).float().numpy(),
}


def small_words() -> np.ndarray:
    """Words whose bytes and halves of bytes are small finite floats, however they are rotated."""
    return RANDOM.integers(0, 1 << 32, 64, dtype=np.uint64) & 0x37373737


def rotated(words: np.ndarray, by: int) -> np.ndarray:
    return (words >> by | words << (32 - by)) & 0xFFFFFFFF


def elements(words: np.ndarray, kind: str, rows: int, inner: int) -> np.ndarray:
    """Rows of `inner` elements from registers that hold the word rotated by 8 n."""
    found = np.zeros((rows, inner))
    groups = 64 // rows
    for lane in LANES:
        group, row = lane // rows, lane % rows
        for j in range(32):
            if kind == "4":
                word = rotated(words[lane : lane + 1], 8 * (j // 8) % 32)[0]
                found[row, group * 32 + j] = FOUR_BITS[int(word) >> 4 * (j % 8) & 15]
            else:
                word = rotated(words[lane : lane + 1], 8 * (j // 4) % 32)[0]
                k = group * 16 + j // 16 * 16 * groups + j % 16
                found[row, k] = EIGHT_BITS[kind][int(word) >> 8 * (j % 4) & 255]
    return found


def filled(first: int, source: str) -> str:
    """Eight registers with a word rotated by 8 n."""
    return "\n".join(
        f"v_alignbit_b32 v{first + n}, {source}, {source}, {8 * n % 32}" for n in range(8)
    )


@pytest.mark.compiler
@pytest.mark.parametrize(("rows", "inner"), [(16, 128), (32, 64)])
@pytest.mark.parametrize("kinds", [("0", "0"), ("1", "4"), ("4", "4")])
def test_a_scaled_product(rows: int, inner: int, kinds: tuple[str, str]) -> None:
    a, b = small_words(), small_words()
    scales = RANDOM.integers(0, 1 << 32, 64, dtype=np.uint64) & 0x07070707 | 0x78787878
    registers = [f"v[{first}:{first + (3 if kind == '4' else 7)}]"
                 for first, kind in zip((10, 20), kinds, strict=True)]  # fmt: skip
    last = 30 + rows * rows // 64 - 1
    wanted = elements(a, kinds[0], rows, inner), elements(b, kinds[1], rows, inner)
    factors = [
        2.0 ** ((scales >> shift & 255).astype(float) - 127).reshape(-1, rows).T.repeat(32, 1)
        for shift in (8, 16)
    ]
    product = (wanted[0] * factors[0]) @ (wanted[1] * factors[1]).T
    for register in range(0, rows * rows // 64, 3):
        body = f"{filled(10, 'v1')}\n{filled(20, 'v2')}\n"
        body += f"v_mfma_scale_f32_{rows}x{rows}x{inner}_f8f6f4 v[30:{last}], {registers[0]}, "
        body += f"{registers[1]}, 0, v3, v3 op_sel:[1,0,0] op_sel_hi:[0,1,0] "
        body += f"cbsz:{kinds[0]} blgp:{kinds[1]}\nv_mov_b32_e32 v4, v{30 + register}"
        given = ([int(x) for x in one] for one in (a, b, scales))
        low, _, _ = run(body, *given, target="gfx950")
        row = register // 4 * 4 * (64 // rows) + LANES // rows * 4 + register % 4
        found = np.array(low, dtype=np.uint32).view(np.float32)
        np.testing.assert_allclose(found, product[row, LANES % rows], rtol=1e-4, atol=1e-3)


@pytest.mark.compiler
@pytest.mark.parametrize("bits", [16, 8, 4])
def test_a_transposed_read(bits: int) -> None:
    words = RANDOM.integers(0, 1 << 32, 128, dtype=np.uint64)
    body = f"""v_lshlrev_b32_e32 v6, 1, v0
ds_write_b32 v6, v1
ds_write_b32 v6, v2 offset:4
s_waitcnt lgkmcnt(0)
s_barrier
ds_read_b64_tr_b{bits} v[4:5], v6
s_waitcnt lgkmcnt(0)"""
    low, high, _ = run(body, [int(x) for x in words[:64]], [int(x) for x in words[64:]],
                       target="gfx950")  # fmt: skip
    each = 64 // bits
    both = [int(words[lane]) | int(words[64 + lane]) << 32 for lane in LANES]
    mask = (1 << bits) - 1
    for row in range(0, 64, 16):  # 16 lanes hold a matrix of `each` rows and 16 columns
        flat = [one >> bits * k & mask for one in both[row : row + 16] for k in range(each)]
        for column in range(16):
            wanted = sum(flat[16 * k + column] << bits * k for k in range(each))
            assert low[row + column] | high[row + column] << 32 == wanted
