"""Every dense matrix instruction of the table: which lane and register holds which element.

The places are those of "Matrix Arithmetic Instructions" in the CDNA 3 manual. With B blocks of
M x K by K x M, a lane holds n = M K B / 64 neighbours along k: lane b M + i + (k // n) M B has
A[i][k] of block b in its element k % n, and B[k][i] likewise. A result's rows go to registers in
runs of h = 4, or h = 1 in f64; a register has room for the same row of as many runs as fit into 64
lanes, over blocks first where a block does not fill it.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from each_case import each
from small_assembly import run

from ratchet.amd.emulator.hip_build import compiled_machine
from ratchet.base.devices import matrix
from ratchet.base.devices.matrix import MatrixInstruction
from ratchet.base.errors import KernelError

TARGETS = ("gfx90a", "gfx942", "gfx950")
DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "int8": torch.int8,
    "amd_fp8": torch.float8_e4m3fnuz,
    "amd_bf8": torch.float8_e5m2fnuz,
    "fp8": torch.float8_e4m3fn,
    "bf8": torch.float8_e5m2,
}
RESULTS = {"fp32": np.float32, "int32": np.int32, "fp64": np.float64}
EMULATED = [
    row
    for row in matrix.load()
    if row.gfx in TARGETS
    and row.name.startswith("v_mfma")
    and row.in_type in DTYPES
    and not (row.sparse or row.name.endswith("f8f6f4"))
]


def words(kind: str, chance: random.Random) -> list[int]:
    """One word for each lane, of small numbers; a lane's registers all hold it."""
    if kind == "fp64":
        return [chance.choice((0x3FF00000, 0xC0000000, 0x40080000)) for _ in range(64)]
    count = 4 // torch.empty(0, dtype=DTYPES[kind]).element_size()
    numbers = torch.tensor([chance.randint(-3, 3) for _ in range(64 * count)])
    return numbers.to(DTYPES[kind]).view(torch.uint8).view(torch.int32).tolist()


def elements(given: Sequence[int], kind: str, each: int) -> np.ndarray:
    """A lane's elements: 64 x `each`."""
    size = torch.empty(0, dtype=DTYPES[kind]).element_size()
    lanes = torch.tensor(given, dtype=torch.int64).to(torch.int32)[:, None]
    repeated = lanes.repeat(1, max(1, each * size // 4)).contiguous()
    return repeated.view(torch.uint8).view(DTYPES[kind]).double().numpy()


def blocks_of(given: np.ndarray, size: int, inner: int, blocks: int) -> np.ndarray:
    """The blocks' rows: blocks x `size` x `inner`."""
    each = given.shape[1]
    found = np.zeros((blocks, size, inner))
    for block, row, k in np.ndindex(*found.shape):
        found[block, row, k] = given[block * size + row + k // each * size * blocks, k % each]
    return found


def place(row: MatrixInstruction, block: int, i: int, j: int, blocks: int) -> tuple[int, int]:
    """The register, or pair of them, and the lane of an element of the result."""
    size, run_of = row.shape[0], 1 if row.out_type == "fp64" else 4
    a_block_s_registers, lanes_of_runs = size * size // 64, size * size // run_of
    runs, together = 64 // size, max(1, 64 // lanes_of_runs)
    register = block * a_block_s_registers + i // (run_of * runs) * run_of + i % run_of
    return register, block % together * size + i // run_of % runs * together * size + j


@each(EMULATED, parts=4)
def test_a_product_is_where_the_manual_has_it(row: MatrixInstruction) -> None:
    check(row)


def check(
    row: MatrixInstruction,
    modifiers: str = "",
    block_of_a: Callable[[int], int] = int,
    lane_of_b: Callable[[int], int] = int,
) -> None:
    """Compare one product, whose blocks and lanes may share operands, with numpy's."""
    size, _, inner = row.shape
    blocks = row.flops // (2 * size * size * inner)
    each, width = size * inner * blocks // 64, 2 if row.out_type == "fp64" else 1
    chance = random.Random(row.name)
    a, b = words(row.in_type, chance), words(row.in_type_b, chance)
    bytes_each = torch.empty(0, dtype=DTYPES[row.in_type]).element_size()
    given, results = each * bytes_each // 4, max(1, size * size * blocks // 64) * width
    rows = blocks_of(elements(a, row.in_type, each), size, inner, blocks)
    rows = rows[[block_of_a(block) for block in range(blocks)]]
    lanes = elements(b, row.in_type_b, each)[[lane_of_b(lane) for lane in range(64)]]
    columns = blocks_of(lanes, size, inner, blocks)
    wanted = np.einsum("bik,bjk->bij", rows, columns)
    moves = [f"v_mov_b32_e32 v{6 + n}, v1\nv_mov_b32_e32 v{16 + n}, v2" for n in range(given)]
    product = (
        f"{row.name} v[32:{31 + results}], v[6:{5 + given}], v[16:{15 + given}], 0"
        if given > 1
        else f"{row.name} v[32:{31 + results}], v6, v16, 0"
    ) + modifiers
    found = []
    for first in range(0, results, 2):
        copies = [f"v_mov_b32_e32 v{4 + n}, v{32 + first + n}" for n in range(2)]
        found += run("\n".join([*moves, product, *copies]), a, b, target=row.gfx)[:2]
    bits = np.asarray(found[:results], dtype=np.uint32)
    if width == 2:
        pairs = bits[1::2].astype(np.uint64) << np.uint64(32) | bits[::2]
        values = pairs.view(np.float64)
    else:
        values = bits.view(RESULTS[row.out_type])
    for block, i, j in np.ndindex(*wanted.shape):
        register, lane = place(row, block, i, j, blocks)
        assert values[register, lane] == pytest.approx(wanted[block, i, j], rel=1e-14)


SHARED = {
    " cbsz:4": (lambda block: 0, int),
    " cbsz:2 abid:3": (lambda block: block // 4 * 4 + 3, int),
    " blgp:1": (int, lambda lane: lane % 32),
    " blgp:2": (int, lambda lane: lane % 32 + 32),
    " cbsz:1 abid:1 blgp:6": (lambda block: block | 1, lambda lane: lane % 16 + 32),
}


@pytest.mark.parametrize("modifiers", SHARED)
def test_blocks_of_a_and_lanes_of_b_are_shared(modifiers: str) -> None:
    """Triton broadcasts a single row of A so (`cbsz:4`)."""
    name = "v_mfma_f32_4x4x4_16b_bf16"
    (row,) = (one for one in EMULATED if (one.gfx, one.name) == ("gfx942", name))
    check(row, modifiers, *SHARED[modifiers])


@pytest.mark.parametrize("modifiers", ["cbsz:5", "cbsz:1 abid:2", "blgp:3"])
def test_a_sharing_that_is_not_known_is_refused(modifiers: str) -> None:
    with pytest.raises(KernelError, match="is not emulated here"):
        run(f"v_mfma_f32_4x4x4_16b_bf16 v[32:35], v[6:7], v[16:17], 0 {modifiers}", [0])


@pytest.mark.parametrize("target", ["gfx942", "gfx1100"])
def test_a_machine_shares_no_data_with_another_in_its_process(target: str) -> None:
    """The machine for waves of 32 has arrays of the same names, and smaller."""
    library = str(compiled_machine(target))
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    )
    kinds = {line.split()[-2] for line in listed.stdout.splitlines()}
    assert "u" not in kinds  # unique in the process


def test_most_of_the_table_is_emulated() -> None:
    assert len(EMULATED) > 75
