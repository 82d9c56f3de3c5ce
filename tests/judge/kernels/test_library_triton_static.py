"""What the Triton library compiles to for AMD's GPUs: no spills on CDNA 3 and 4, matrix units."""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import Any

import pytest

from ratchet.amd.profile import inspect_kernel
from ratchet.judge.kernels.kernel import TARGETS
from ratchet.judge.kernels.library import kernels_for
from ratchet.judge.problems.suites import find_problem
from ratchet.judge.trial.kernel_trial import why_no_kernels

EVERYTHING = os.environ.get("RATCHET_TEST") == "all"
KERNELS = kernels_for("gpu")
QUICK = ("attention_forward",)
"""Compiled in every run, for `CHECKED` alone."""
CHECKED = ("gfx942", "gfx950")
PRODUCTS = {
    "linear_cross_entropy": {"logits_kernel", "product_kernel"},
    "attention_forward": {"attention_forward_kernel"},
    "attention_backward": {"key_gradient_kernel", "query_gradient_kernel"},
}
"""Kernels that must use the matrix units, by entry."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="triton is not installed"
    ),
    pytest.mark.skipif(
        why_no_kernels() is not None,
        reason="no kernel can be tried on this machine",
    ),
]


@functools.cache
def profile(entry: str) -> dict[str, Any]:
    """Each entry is compiled once, at the sizes of an 8 B model."""
    if not EVERYTHING and entry not in QUICK:
        pytest.skip("thorough: RATCHET_TEST=all compiles every entry for five targets")
    targets = TARGETS if EVERYTHING else CHECKED
    found = inspect_kernel(KERNELS[entry], find_problem(entry), targets, time_limit_s=280.0)
    return found["targets"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("entry", KERNELS)
def test_it_compiles_for_every_target_and_spills_nothing_on_cdna_3_and_4(entry: str) -> None:
    for target, found in profile(entry).items():
        assert found["error"] is None, (target, found["error"])
        assert found["skipped_configs"] == 0
        assert any(one["launches"] for one in found["kernels"])
        if target in CHECKED:
            spilled = [
                (one["name"], one["constants"], one["spills"], one["scratch_bytes"])
                for one in found["kernels"]
                if one["spills"] or one["scratch_bytes"]
            ]
            assert spilled == [], target


@pytest.mark.parametrize("entry", KERNELS)
def test_products_run_on_the_matrix_units_and_rows_move_in_wide_accesses(entry: str) -> None:
    for target, found in profile(entry).items():
        for one in found["kernels"]:
            rows = one["matrix_instructions"]
            if one["name"] in PRODUCTS.get(entry, set()):
                prefix = "v_mfma_f32_" if target.startswith("gfx9") else "v_wmma_f32_"
                assert sum(row["in_loops"] for row in rows) > 0, (target, one["name"])
                assert all(row["name"].startswith(prefix) for row in rows)
                assert not any(row.get("older_shape") for row in rows), (target, one["name"])
            else:
                assert rows == []
        widest = [max(map(int, one["global_load_bits"])) for one in found["kernels"]]
        assert 128 in widest, (target, widest)
