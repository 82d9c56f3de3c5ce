"""Ceilings: published measurements with the paper's peak beside, measured ones, and files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ratchet.base.devices import catalogue
from ratchet.base.devices.ceilings import Ceilings, Roofline
from ratchet.base.errors import TraceError
from ratchet.trace.answers.ceilings import (
    Rooflines,
    file_ceilings,
    given_ceilings,
    measured_ceilings,
    named_ceilings,
    trace_ceilings,
)
from ratchet.trace.answers.report import report
from ratchet.trace.answers.work import work
from tests.trace import made_traces as mt

DEVICE = {
    "device": {"model": "AMD Instinct MI300X", "caches_bytes": {"l2": 4, "l1d": 9},
               "cache_instances": {"l2": 8}},
    "gemm_flops_per_s": {"bf16": 6e14, "fp32": 1e14}, "loop_flops_per_s": {},
    "copy_bytes_per_s": {"dram": 4e12}, "triad_bytes_per_s": {"dram": 4.1e12}, "notes": ["more"],
}  # fmt: skip
ARCHITECTURE = {
    "name": "MI300X", "mem_bw_gbps": 5300,
    "max_achievable_tflops": {"matrix_bf16": 708, "matrix_fp32": 163, "vector_fp32": 81},
}  # fmt: skip


def of_device(tmp_path: Path, name: str) -> Rooflines:
    device = {"id": 0, "name": name, "numSms": 304, "totalGlobalMem": 1}
    return trace_ceilings(mt.made(tmp_path, [mt.op("aten::mm", 0, 1)], deviceProperties=[device]))


def test_published_measurements_come_before_the_paper(tmp_path: Path) -> None:
    found, entry = of_device(tmp_path, "AMD Instinct MI300X"), catalogue.load()["MI300X"]
    published = [
        fact.number * 1e12 for key, fact in entry.facts.items()
        if key.startswith(("measured.matrix_bf16", "max_achievable.matrix_bf16"))
    ]  # fmt: skip
    roof, paper = found.at("bf16", 10**10), found.paper_at("bf16")
    assert roof is not None and paper is not None
    assert roof.flops_per_s == max(published) and len(published) > 2
    assert roof.bytes_per_s == 4.3e12 and paper.bytes_per_s == entry.memory_bytes_per_s()
    assert paper.flops_per_s == entry.peak_flops_per_s("matrix_bf16")
    assert found.source_of("bf16") == "MI300X, FLOP/s and bandwidth as measured and published"
    assert found.source_of("fp32") == "MI300X, bandwidth as measured and published"
    assert found.source_of("long int") == found.source_of("fp8")  # held against the fastest type
    assert named_ceilings("GB300").source_of("bf16") == "GB300 (NVL72), on paper"


@pytest.mark.parametrize("name", list(catalogue.load().devices))
def test_no_published_measurement_is_above_the_paper(name: str) -> None:
    found = named_ceilings(name)
    for dtype, roof in found.of.items():
        paper = found.paper_at(dtype)
        assert paper is not None and roof.flops_per_s <= paper.flops_per_s
        assert roof.bytes_per_s <= paper.bytes_per_s
        for rate in found.products.get(dtype, {}).values():
            assert 0 < rate <= roof.flops_per_s


@pytest.mark.parametrize(
    ("product", "teraflops"),
    [
        ((128, 7168, 16384), 645),  # as published
        ((100, 7168, 16384), 645),  # fewer rows than published with this weight
        ((7168, 128, 16384), 645),  # the operands exchanged
        ((129, 7168, 16384), 1358),
        ((5000, 7168, 16384), 1402.6),  # nothing published: the device's best
        ((128, 7168, 16385), 1402.6),
        (None, 1402.6),
    ],
)
def test_a_product_has_the_rate_published_for_its_shape(
    product: tuple[int, int, int] | None, teraflops: float
) -> None:
    roof = named_ceilings("H100").at("fp8", 10**9, product)
    assert roof is not None and roof.flops_per_s == pytest.approx(teraflops * 1e12)


@pytest.mark.parametrize(
    ("name", "dims", "product"),
    [
        ("aten::mm", "[[4, 8], [8, 16]]", (4, 16, 8)),
        ("aten::addmm", "[[16], [4, 8], [8, 16]]", (4, 16, 8)),
        ("aten::bmm", "[[2, 4, 8], [2, 8, 16]]", None),
        ("ratchet::linear", "[[2, 4, 8], [16, 8]]", (8, 16, 8)),
        ("vllm::some_gemm", "[[4, 8], [16, 8]]", (4, 16, 8)),
    ],
)
def test_products_know_their_sizes(
    name: str, dims: str, product: tuple[int, int, int] | None
) -> None:
    found = work(name, dims, json.dumps(["float"] * 3))
    assert found is not None and found.product == product
    assert product is None or found.flops == 2 * product[0] * product[1] * product[2]


def test_the_paper_stands_beside_each_row(tmp_path: Path) -> None:
    events = [
        mt.op("aten::mm", 0, 9, **{"Input Dims": [[4096, 4096]] * 2, "Input type": ["float"] * 2}),
        mt.launch(1, 1, 1), mt.kernel("gemm", 10, 900, 1),
    ]  # fmt: skip
    (row,) = report(mt.made(tmp_path, events), named_ceilings("H100")).roofline
    assert 0 < row.paper <= row.least
    (bare,) = report(mt.made(tmp_path, events)).roofline
    assert bare.paper == bare.least == 0


def test_ceilings_from_files(tmp_path: Path) -> None:
    path = tmp_path / "device.json"
    path.write_text(json.dumps(DEVICE))
    found = given_ceilings(str(path))
    assert found.source_of("bf16") == "AMD Instinct MI300X, measured"
    assert found.at("bf16", 10**9) == Roofline(flops_per_s=6e14, bytes_per_s=4.1e12)
    assert found.rates is not None and found.rates.level_bytes == {"l2": 32}
    paper = found.paper_at("bf16")
    assert paper is not None and paper.flops_per_s == 1307.4e12
    path.write_text(json.dumps(ARCHITECTURE))
    found = given_ceilings(str(path))
    assert found.at("fp32", 10**9) == Roofline(flops_per_s=163e12, bytes_per_s=5.3e12)
    assert set(found.of) == {"bf16", "fp32"} and found.source == "MI300X, from a file"


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "{}", "7", "\xff", '{"device": 3}', "[" * 100_000,
        json.dumps(DEVICE | {"gemm_flops_per_s": {}}),
        json.dumps(DEVICE | {"gemm_flops_per_s": {"bf16": -1}}),
        json.dumps(DEVICE | {"copy_bytes_per_s": {"dram": "fast"}}),
        json.dumps(ARCHITECTURE | {"mem_bw_gbps": 0}),
        json.dumps(ARCHITECTURE | {"max_achievable_tflops": {"matrix_int4": 3}}),
        json.dumps(ARCHITECTURE | {"max_achievable_tflops": [1]}),
        json.dumps(ARCHITECTURE).replace("708", "NaN"),
    ],
)  # fmt: skip
def test_a_file_without_ceilings_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "made.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(TraceError, match=r"made.json holds no ceilings .*ratchet device --json"):
        file_ceilings(path)
    with pytest.raises(TraceError, match="cannot be read"):
        given_ceilings(str(tmp_path / "none.json"))
    with pytest.raises(TraceError, match=r"'H1' is no file.*: give here, .* or one of MI210"):
        given_ceilings("H1")


def test_measured_rates_stand_before_published_ones(tmp_path: Path) -> None:
    rates = Ceilings(
        gemm_flops_per_s={"bf16": 2e12}, copy_bytes_per_s={"dram": 1e11},
        triad_bytes_per_s={"dram": 1e11},
    )  # fmt: skip
    assert measured_ceilings(rates, "this GPU").of["bf16"].flops_per_s == 2e12
    unknown = of_device(tmp_path, "GPU of tomorrow")
    assert unknown == Rooflines(of={}, source="GPU of tomorrow is not in the catalogue")
    assert unknown.source_of("bf16") == unknown.source and unknown.at("bf16", 1) is None
