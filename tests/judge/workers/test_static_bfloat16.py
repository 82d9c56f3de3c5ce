"""Rounding to bfloat16 in the interpreter agrees with torch's, bit for bit."""

from __future__ import annotations

import numpy as np
import torch

from ratchet.amd.compile.triton_source import round_to_bfloat16


def test_every_kind_of_number_rounds_as_in_torch() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 200_000, dtype=np.uint32)
    ties = (rng.integers(0, 1 << 16, 5_000, dtype=np.uint32) << 16) | np.uint32(0x8000)
    ones = (rng.integers(0, 1 << 16, 5_000, dtype=np.uint32) << 16) | np.uint32(0xFFFF)
    values = np.concatenate([bits, ties, ones]).view(np.float32)
    expected = torch.from_numpy(values.copy()).bfloat16()
    ours = torch.from_numpy(round_to_bfloat16(values).view(np.int16)).view(torch.bfloat16)
    assert torch.equal(expected.isnan(), ours.isnan())
    kept = ~expected.isnan()
    assert torch.equal(expected[kept].view(torch.int16), ours[kept].view(torch.int16))


def test_shapes_stay() -> None:
    assert round_to_bfloat16(np.ones((3, 4), np.float32).T).shape == (4, 3)
    assert round_to_bfloat16(np.float32(1.5).reshape(())).shape == ()
