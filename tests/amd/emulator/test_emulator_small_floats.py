"""8-bit floats and the clamping mode, against torch's own conversions."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from small_assembly import run

from ratchet.base.errors import KernelError

FORMATS = [
    ("gfx942", "fp8", torch.float8_e4m3fnuz),
    ("gfx942", "bf8", torch.float8_e5m2fnuz),
    ("gfx950", "fp8", torch.float8_e4m3fn),
    ("gfx950", "bf8", torch.float8_e5m2),
]
RANDOM = np.random.default_rng(0)
FINITE = (RANDOM.standard_normal(57) * 10.0 ** RANDOM.uniform(-6, 2, 57)).astype(np.float32)
EDGES = np.array([0.0, -0.0, np.nan, 2.0**-10, 1.0625, 1.1875, 240.0], dtype=np.float32)
CLAMPS = "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1\n"


def words(values: np.ndarray) -> list[int]:
    return [int(one) for one in values.view(np.uint32)]


@pytest.mark.compiler
@pytest.mark.parametrize(("target", "name", "dtype"), FORMATS)
def test_numbers_become_small(target: str, name: str, dtype: torch.dtype) -> None:
    values = np.concatenate([FINITE, EDGES])
    values = np.where(np.abs(values) > 240, 1.0, values).astype(np.float32)
    body = f"v_mov_b32_e32 v4, -1\nv_cvt_pk_{name}_f32 v4, v1, v1\n"
    body += f"v_cvt_pk_{name}_f32 v5, v1, v1 op_sel:[0,0,1]"
    low, high, _ = run(body, words(values), target=target)
    wanted = torch.from_numpy(values).to(dtype).view(torch.uint8).tolist()
    assert [one & 255 for one in low] == wanted
    assert [one >> 16 for one in low] == [0xFFFF] * 64
    assert [one >> 24 for one in high] == wanted


@pytest.mark.compiler
@pytest.mark.parametrize(("target", "name", "dtype"), FORMATS)
def test_every_small_float_becomes_a_number(target: str, name: str, dtype: torch.dtype) -> None:
    for first in range(0, 256, 64):
        codes = [code | (255 - code) << 8 for code in range(first, first + 64)]
        body = f"v_cvt_f32_{name}_sdwa v4, v1 src0_sel:BYTE_0\n"
        body += f"v_cvt_pk_f32_{name}_e32 v[6:7], v1\nv_mov_b32_e32 v5, v7"
        low, high, _ = run(body, codes, target=target)
        for found, shift in ((low, 0), (high, 8)):
            bytes_of = torch.tensor([code >> shift & 255 for code in codes], dtype=torch.uint8)
            wanted = bytes_of.view(dtype).float().numpy()
            np.testing.assert_array_equal(np.array(found, dtype=np.uint32).view("<f4"), wanted)


@pytest.mark.compiler
def test_the_mode_decides_what_is_too_large() -> None:
    given = words(np.array([1e9, -1e9, np.inf, 250.0], dtype=np.float32))
    body = "v_cvt_pk_fp8_f32 v4, v1, v1\nv_cvt_f16_f32_e32 v5, v1"
    small, half, _ = run(CLAMPS + body, given)
    assert [one & 255 for one in small[:4]] == [0x7F, 0xFF, 0x7F, 0x7F]
    assert half[:4] == [0x7BFF, 0xFBFF, 0x7C00, struct.unpack("<H", struct.pack("<e", 250.0))[0]]
    small, half, _ = run(body, given)
    assert [one & 255 for one in small[:4]] == [0x80] * 4
    assert half[:3] == [0x7C00, 0xFC00, 0x7C00]


@pytest.mark.compiler
def test_the_first_bit_that_differs_from_the_sign() -> None:
    body = "v_readfirstlane_b32 s8, v1\nv_readfirstlane_b32 s9, v2\n"
    body += "s_flbit_i32 s10, s8\ns_flbit_i32_i64 s11, s[8:9]\n"
    body += "v_mov_b32_e32 v4, s10\nv_mov_b32_e32 v5, s11"
    for low, high, both in ((5, 0xFFFFFF00, (29, 24)), (0, 0, (0xFFFFFFFF,) * 2)):
        first, second, _ = run(body, [low], [high])
        assert (first[0], second[0]) == both


def test_a_target_without_small_floats_says_so() -> None:
    with pytest.raises(KernelError, match="gfx90a has no such instruction"):
        run("v_cvt_pk_fp8_f32 v4, v1, v1", target="gfx90a")


SCALE = 0x41800000  # 16: conversions to small floats divide by it, those from them multiply
SCALED_BACK = [("fp8", torch.float8_e4m3fn), ("bf8", torch.float8_e5m2)]


@pytest.mark.compiler
@pytest.mark.parametrize(("name", "dtype"), SCALED_BACK)
def test_a_scale_goes_with_a_conversion(name: str, dtype: torch.dtype) -> None:
    values = np.where(np.abs(FINITE) > 240, 1.0, FINITE).astype(np.float32)
    values = np.resize(values, 64).astype(np.float32)
    body = f"s_mov_b32 s8, {SCALE}\nv_mov_b32_e32 v4, -1\n"
    body += f"v_cvt_scalef32_pk_{name}_f32 v4, v1, v1, s8 op_sel:[0,0,0,1]\n"
    body += f"v_cvt_scalef32_pk_f32_{name} v[6:7], v4, s8 op_sel:[1,0,0]\nv_mov_b32_e32 v5, v7"
    small, back, _ = run(body, words(values), target="gfx950")
    wanted = torch.from_numpy(values / 16).to(dtype)
    assert [one >> 16 & 255 for one in small] == wanted.view(torch.uint8).tolist()
    assert [one & 0xFFFF for one in small] == [0xFFFF] * 64
    found = np.array(back, dtype=np.uint32).view(np.float32)
    np.testing.assert_array_equal(found, wanted.float().numpy() * 16)


@pytest.mark.compiler
def test_floats_of_four_bits_and_maxima_that_keep_nan() -> None:
    body = "v_cvt_scalef32_pk_f32_fp4 v[4:5], v1, 1.0 op_sel:[0,1,0]"
    low, high, _ = run(body, [0x007F0000, 0x00A50000], target="gfx950")
    found = [np.array(one[:2], dtype=np.uint32).view(np.float32).tolist() for one in (low, high)]
    assert found == [[-6.0, 3.0], [6.0, -1.0]]
    nan = 0x7FC00000
    low, _, _ = run(
        "v_maximum3_f32 v4, v1, v1, v2", [nan, 0x3F800000], [0x40000000], target="gfx950"
    )
    assert low[:2] == [nan, 0x40000000]


WIDER = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def in_words(values: torch.Tensor) -> tuple[list[int], list[int]]:
    """The values' two halves: each in a register of its own, or both in the first register."""
    if values.dtype == torch.float32:
        bits = values.view(torch.int32).tolist()
        return [one & 0xFFFFFFFF for one in bits[::2]], [one & 0xFFFFFFFF for one in bits[1::2]]
    bits = [one & 0xFFFF for one in values.view(torch.int16).tolist()]
    return [low | high << 16 for low, high in zip(bits[::2], bits[1::2], strict=True)], [0] * 64


@pytest.mark.compiler
@pytest.mark.parametrize("wider", WIDER)
@pytest.mark.parametrize(("name", "dtype"), SCALED_BACK)
def test_a_scaled_conversion_to_small_floats(name: str, dtype: torch.dtype, wider: str) -> None:
    values = np.resize(np.where(np.abs(FINITE) > 240, 1.0, FINITE), 128).astype(np.float32)
    given = torch.from_numpy(values).to(WIDER[wider])
    low, high = in_words(given)
    sources = "v1, v2" if wider == "f32" else "v1"
    place = "[0,0,0,1]" if wider == "f32" else "[0,0,1]"
    body = f"s_mov_b32 s8, {SCALE}\nv_mov_b32_e32 v4, -1\n"
    body += f"v_cvt_scalef32_pk_{name}_{wider} v4, {sources}, s8 op_sel:{place}"
    found, _, _ = run(body, low, high, target="gfx950")
    wanted = (given.float() / 16).to(dtype).view(torch.uint8).tolist()
    assert [one >> 16 & 255 for one in found] == wanted[::2]
    assert [one >> 24 for one in found] == wanted[1::2]
    assert [one & 0xFFFF for one in found] == [0xFFFF] * 64


@pytest.mark.compiler
@pytest.mark.parametrize("wider", WIDER)
@pytest.mark.parametrize(("name", "dtype"), SCALED_BACK)
def test_every_small_float_is_scaled_back(name: str, dtype: torch.dtype, wider: str) -> None:
    result = "v[6:7]" if wider == "f32" else "v6"
    for first in range(0, 256, 64):
        codes = [code | (255 - code) << 8 for code in range(first, first + 64)]
        body = f"s_mov_b32 s8, {SCALE}\nv_cvt_scalef32_pk_{wider}_{name} {result}, v1, s8\n"
        body += "v_mov_b32_e32 v4, v6\nv_mov_b32_e32 v5, v7"
        low, high, _ = run(body, codes, target="gfx950")
        both = torch.tensor([[code & 255, code >> 8] for code in codes], dtype=torch.uint8)
        wanted = both.view(dtype).float().mul(16).to(WIDER[wider]).float()
        if wider == "f32":
            words_found = torch.tensor([low, high]).to(torch.int32).T.contiguous()
        else:
            words_found = torch.tensor(low).to(torch.int32)[:, None].contiguous()
        found = words_found.view(WIDER[wider]).float()
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.compiler
@pytest.mark.parametrize("wider", WIDER)
def test_every_float_of_four_bits_is_scaled_back(wider: str) -> None:
    numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    numbers = torch.cat([numbers, -numbers])
    codes = [code | (15 - code) << 4 for code in range(16)] * 4
    result = "v[6:7]" if wider == "f32" else "v6"
    body = f"s_mov_b32 s8, {SCALE}\nv_lshlrev_b32_e32 v1, 8, v1\n"
    body += f"v_cvt_scalef32_pk_{wider}_fp4 {result}, v1, s8 op_sel:[1,0,0]\n"
    low, high, _ = run(body + "v_mov_b32_e32 v4, v6\nv_mov_b32_e32 v5, v7", codes, target="gfx950")
    words_found = [low, high] if wider == "f32" else [low]
    together = torch.tensor(list(zip(*words_found, strict=True))).to(torch.int32)
    found = together.view(WIDER[wider]).float()
    wanted = torch.stack([numbers * 16, numbers.flip(0) * 16], 1).repeat(4, 1)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
