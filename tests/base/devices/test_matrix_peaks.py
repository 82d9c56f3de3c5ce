"""The table of matrix instructions gives every published matrix peak."""

from __future__ import annotations

import pytest
from each_case import each

from ratchet.base.devices import catalogue, matrix
from ratchet.base.devices.catalogue import CatalogueDevice

AMD_GPUS = [
    device
    for device in catalogue.load().devices.values()
    if (target := device.get("target")) is not None and target.value.startswith("gfx")
]
PEAKS = [
    (device, field.removeprefix("peak_dense.matrix_"))
    for device in AMD_GPUS
    for field in device.facts
    if field.startswith("peak_dense.matrix_")
]


def test_the_catalogue_has_peaks_of_every_target() -> None:
    targets = {device.facts["target"].value for device in AMD_GPUS}
    assert targets >= {"gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"}
    assert len(PEAKS) >= 50


@each(PEAKS)
def test_cycles_units_and_clock_give_the_published_peak(device: CatalogueDevice, kind: str) -> None:
    published = device.facts[f"peak_dense.matrix_{kind}"].number * 1e12
    computed = matrix.peak_flops_per_s(device, kind)
    if published == 0:
        assert computed is None  # the device has no such unit, and the table no such row
    else:
        assert computed == pytest.approx(published, rel=3e-3)


def test_every_row_has_a_source_and_follows_from_its_shape() -> None:
    rows = matrix.load()
    assert len(rows) > 140
    for row in rows:
        assert row.source.strip(), row
        m, n, k = row.shape
        assert row.flops % (2 * m * n * k) == 0, row
        assert row.cycles > 0, row


def test_no_instruction_is_faster_than_its_peak_says() -> None:
    for row in matrix.load():
        kind = next((kind for kind, types in matrix.KINDS.items() if row.in_type in types), None)
        best = matrix.fastest(row.gfx, kind) if kind else None
        if best is not None and not row.sparse:
            assert row.flops_per_simd_per_cycle <= best.flops_per_simd_per_cycle


@pytest.mark.parametrize(
    ("gfx", "name", "older"),
    [
        ("gfx950", "v_mfma_f32_32x32x8_bf16", True),
        ("gfx950", "v_mfma_f32_16x16x16_f16", True),
        ("gfx950", "v_mfma_f32_32x32x16_bf16", False),
        ("gfx942", "v_mfma_f32_32x32x8_bf16", False),
        ("gfx90a", "v_mfma_f32_32x32x4bf16", True),
        ("gfx90a", "v_mfma_f32_32x32x8bf16_1k", False),
    ],
)
def test_older_shapes_at_half_rate_are_known(gfx: str, name: str, older: bool) -> None:
    found = matrix.find(gfx, name)
    assert found is not None
    assert matrix.is_older_shape(found) is older


def test_one_name_with_several_input_types_gives_the_one_asked_for() -> None:
    name = "v_mfma_f32_16x16x128_f8f6f4"
    slow, quick = matrix.find("gfx950", name), matrix.find("gfx950", name, in_type="fp4")
    assert slow is not None and quick is not None
    assert (slow.in_type, slow.cycles) == ("fp8", 32)
    assert quick.cycles == 16
    assert matrix.find("gfx950", "v_mfma_f32_1x1x1_f32") is None
