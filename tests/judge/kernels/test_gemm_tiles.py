"""The emulated AMX tiles against the instruction's formula, and the header against a compiler."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.languages import cpp
from ratchet.judge.kernels.library import sources

pytestmark = pytest.mark.compiler

DRIVER = """
#include "amx_tiles.h"
extern "C" int64_t go(const void* a, int64_t a_stride, const void* b, int64_t b_stride, void* c,
                      int64_t c_stride, int64_t rows, int64_t pairs, int64_t columns) {
    AmxConfig config = amx_full_config();
    config.rows[0] = config.rows[4] = static_cast<uint8_t>(rows);
    config.row_bytes[0] = config.row_bytes[6] = static_cast<uint16_t>(columns * 4);
    config.row_bytes[4] = static_cast<uint16_t>(pairs * 4);
    config.rows[6] = static_cast<uint8_t>(pairs);
    if (!amx_permitted()) return 1;
    AmxScope tiles(config);
    tile_load<0>(c, c_stride);
    tile_load<4>(a, a_stride);
    tile_load<6>(b, b_stride);
    tile_dpbf16ps<0, 4, 6>();
    tile_store<0>(c, c_stride);
    return 0;
}
"""


def driver(emulate: bool) -> Kernel:
    header = sources.self_contained("amx_tiles.h")
    text = DRIVER.replace('#include "amx_tiles.h"', header)
    schedule = (("amx_emulate", "1"),) if emulate else ()
    return Kernel(name="tiles", language="cpp", source=text, entry="go", schedule=schedule)


@pytest.fixture(scope="module")
def tiles(compiled: Path) -> ctypes.CDLL:
    path = cpp.compile_kernel(driver(emulate=True), cache=compiled)
    library = ctypes.CDLL(str(path))
    library.go.restype = ctypes.c_int64
    return library


def bf16_bits(values: np.ndarray) -> np.ndarray:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def floats(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def run(
    tiles: ctypes.CDLL, a: np.ndarray, b: np.ndarray, c: np.ndarray, sizes: tuple[int, ...]
) -> int:
    arguments: list[object] = []
    for array in (a, b, c):
        arguments += [ctypes.c_void_p(array.ctypes.data), ctypes.c_int64(array.strides[0])]
    return int(tiles.go(*arguments, *(ctypes.c_int64(size) for size in sizes)))


@pytest.mark.parametrize(
    ("rows", "pairs", "columns"), [(16, 16, 16), (1, 1, 1), (5, 7, 3), (16, 4, 9)]
)
@pytest.mark.parametrize("gap", [0, 6])
def test_one_product_is_the_formula(
    tiles: ctypes.CDLL, rows: int, pairs: int, columns: int, gap: int
) -> None:
    rng = np.random.default_rng(rows * 100 + pairs)
    a = np.zeros((rows, 2 * pairs + gap), np.uint16)
    b = np.zeros((pairs, 2 * columns + gap), np.uint16)
    a[:, : 2 * pairs] = bf16_bits(rng.standard_normal((rows, 2 * pairs)))
    b[:, : 2 * columns] = bf16_bits(rng.standard_normal((pairs, 2 * columns)))
    c = rng.standard_normal((rows, columns + gap)).astype(np.float32)
    before = c.copy()
    assert run(tiles, a, b, c, (rows, pairs, columns)) == 0
    wide_a = floats(a[:, : 2 * pairs]).astype(np.float64)
    pair_rows = floats(b[:, : 2 * columns]).astype(np.float64).reshape(pairs, columns, 2)
    wide_b = pair_rows.transpose(0, 2, 1).reshape(2 * pairs, columns)
    expected = before[:, :columns] + wide_a @ wide_b
    np.testing.assert_allclose(c[:, :columns], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(c[:, columns:], before[:, columns:])


def test_denormals_are_flushed(tiles: ctypes.CDLL) -> None:
    a = np.zeros((1, 2), np.uint16)
    a[0, 0] = 0x0001  # the smallest bf16 denormal
    b = bf16_bits(np.full((1, 2), 1.0))
    c = np.array([[1e-40]], np.float32)
    assert run(tiles, a, b, c, (1, 1, 1)) == 0
    assert c[0, 0] == 0.0


def test_even_and_odd_terms_are_summed_apart(tiles: ctypes.CDLL) -> None:
    a = bf16_bits(np.array([[2.0**24, 1.0, 1.0, 1.0]]))
    b = bf16_bits(np.ones((2, 2)))
    c = np.zeros((1, 1), np.float32)
    assert run(tiles, a, b, c, (1, 2, 1)) == 0
    assert c[0, 0] == 2.0**24 + 2  # even: 2^24 + 1 rounds to 2^24; odd: 2


def test_the_real_instructions_assemble(tmp_path: Path) -> None:
    """Without the emulation; where there is no AMX permission is refused, and nothing traps."""
    path = cpp.compile_kernel(driver(emulate=False), cache=tmp_path)
    library = ctypes.CDLL(str(path))
    library.go.restype = ctypes.c_int64
    a, b = np.zeros((16, 32), np.uint16), np.zeros((16, 32), np.uint16)
    c = np.ones((16, 16), np.float32)
    assert run(library, a, b, c, (16, 16, 16)) in (0, 1)
    np.testing.assert_array_equal(c, 1.0)
