"""Every fact has a source, derived peaks follow from their parts, and names are never guessed."""

from __future__ import annotations

import math
import re

import pytest

from ratchet.base import FOLDER
from ratchet.base.devices import catalogue
from ratchet.base.devices.catalogue import CatalogueDevice
from ratchet.base.errors import DeviceError

DEVICES = tuple(catalogue.load().devices.values())
FACTS = [fact for device in DEVICES for fact in device.facts.values()]


def test_every_fact_has_a_source_that_is_not_memory() -> None:
    assert len(FACTS) > 300
    for fact in FACTS:
        assert fact.source.strip(), fact
        assert "memory, not looked up" not in fact.source, fact
        assert fact.evidence in catalogue.EVIDENCE, fact


def test_every_fact_is_read_somewhere() -> None:
    """A fact that nothing reads is checked by nobody, and grows old."""
    text = "".join(path.read_text("utf-8") for path in FOLDER.rglob("*.py"))
    kinds = {re.split(r"[.@]", fact.field)[0] for fact in FACTS}
    unread = {one for one in kinds if not re.search(rf'"{one}[".]', text)}
    assert unread == {"flops_per_clk_per_cu"}, "these are for the test below alone"


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_peaks_follow_from_units_and_clock(device: CatalogueDevice) -> None:
    units, clock_ghz = device.number("compute_units"), device.number("max_engine_clock")
    checked = 0
    for field, fact in device.facts.items():
        kind = field.removeprefix("peak_dense.")
        per_clock = device.number(f"flops_per_clk_per_cu.{kind}")
        if field != kind and None not in (per_clock, units, clock_ghz):
            assert fact.number == pytest.approx(per_clock * units * clock_ghz / 1e3, rel=3e-3)
            checked += 1
    if device.name.startswith("MI300"):
        assert checked >= 2


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_numbers_are_numbers_and_not_negative(device: CatalogueDevice) -> None:
    for field, fact in device.facts.items():
        if field.startswith(("peak_dense.", "flops_per_clk", "memory_bandwidth", "compute_units")):
            assert math.isfinite(fact.number)
            assert fact.number >= 0


def test_a_program_sees_half_of_a_dual_die() -> None:
    both = catalogue.load()["MI250X"]
    assert both.logical_devices == 2
    assert both.peak_flops_per_s("matrix_bf16") == pytest.approx(383e12 / 2)
    assert both.memory_bytes_per_s() == pytest.approx(3276.8e9 / 2)


def test_no_unit_and_no_knowledge_are_both_no_peak() -> None:
    device = catalogue.load()["MI210"]
    assert device.peak_flops_per_s("matrix_fp8") is None
    assert device.peak_flops_per_s("matrix_fp4") is None
    assert catalogue.load()["A100 SXM 80GB"].get("arch") is None


@pytest.mark.parametrize(
    ("model", "units", "name"),
    [
        ("AMD Instinct MI300X", 304, "MI300X"),
        ("AMD Instinct MI300X", 0, "MI300X"),
        ("AMD Instinct MI250X/MI250", 110, "MI250X"),
        ("AMD Radeon RX 7900 XTX", 48, "RX 7900 XTX"),
        ("AMD Radeon RX 7900 XTX", 96, "RX 7900 XTX"),
        ("NVIDIA H200", 132, "H200 SXM"),
        ("NVIDIA H100 80GB HBM3", 132, "H100 SXM"),
        ("NVIDIA A100-SXM4-80GB", 108, "A100 SXM 80GB"),
        ("NVIDIA A100-SXM4-40GB", 108, "A100 SXM 40GB"),
        ("AMD EPYC 9654 96-Core Processor (family 25)", 0, "EPYC 9654 (Genoa)"),
    ],
)
def test_driver_names_are_recognised(model: str, units: int, name: str) -> None:
    found = catalogue.load().match(model, compute_units=units)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    ("model", "units"),
    [
        ("AMD Instinct MI300X", 38),
        ("AMD Instinct MI250X/MI250", 104),
        ("NVIDIA H100 PCIe", 114),
        ("NVIDIA H200 NVL", 132),
        ("NVIDIA A100-SXM4-64GB", 108),
        ("NVIDIA GH200 480GB", 132),
        ("NVIDIA H100 MIG 1g.10gb", 16),
        ("AMD Radeon RX 7900 XT", 42),
        ("AMD EPYC (family 25, model 17, stepping 1)", 0),
        ("", 0),
    ],
)
def test_near_names_and_slices_are_not_guessed(model: str, units: int) -> None:
    assert catalogue.load().match(model, compute_units=units) is None


ROW = {
    "device": "X1",
    "field": "cores",
    "value": "4",
    "unit": "",
    "evidence": "primary",
    "source": "its manual",
    "note": "",
}


@pytest.mark.parametrize("spoilt", [{"source": " "}, {"evidence": "memory"}])
def test_rows_without_evidence_are_refused(spoilt: dict[str, str]) -> None:
    with pytest.raises(DeviceError, match="X1 cores has evidence"):
        catalogue.parse([{**ROW, **spoilt}])


def test_a_fact_stands_once() -> None:
    with pytest.raises(DeviceError, match="appears twice"):
        catalogue.parse([ROW, ROW])


def test_unknown_names_and_words_as_numbers_are_refused() -> None:
    with pytest.raises(DeviceError, match="no device 'MI999'"):
        catalogue.load()["MI999"]
    with pytest.raises(DeviceError, match="a word"):
        catalogue.load()["MI300X"].number("target")
