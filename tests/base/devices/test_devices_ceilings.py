"""Ceilings: measured for real once, kept by fingerprint, measured again when the file is bad."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Literal

import msgspec
import pytest
import torch

from ratchet.base.devices import ceilings as room
from ratchet.base.devices import describe, paper_of, rates
from ratchet.base.devices.ceilings import Ceilings, measure
from ratchet.base.devices.probe import Device, level_bytes, probe

CPU = probe("cpu")

KNOWN = Ceilings(
    device=CPU.fingerprint,
    gemm_flops_per_s={"fp32": 2e11, "bf16": 4e11},
    copy_bytes_per_s={"l2": 9e10, "l3": 1.8e11, "dram": 5e10},
    triad_bytes_per_s={"l2": 1e11, "l3": 1.7e11, "dram": 6e10},
    level_bytes={"l2": 2**21, "l3": 2**25},
)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Device]:
    """Stand in for the measurement, and count it."""
    calls: list[Device] = []

    def measured(device: Device) -> Ceilings:
        calls.append(device)
        return KNOWN

    monkeypatch.setattr(room, "_measured", measured)
    return calls


def test_measured_for_real(tmp_path: Path) -> None:
    found = measure(CPU, folder=tmp_path)
    assert set(found.gemm_flops_per_s) == {"fp32", "bf16"}
    assert set(found.copy_bytes_per_s) == set(found.triad_bytes_per_s) >= {"dram"}
    assert found.threads == torch.get_num_threads()
    assert found.device == CPU.fingerprint
    # Only absurd numbers: a busy machine may be slow, and no test depends on speed.
    assert all(1e6 < rate < 1e16 for rate in found.gemm_flops_per_s.values())
    assert all(1e6 < rate < 1e14 for rate in found.copy_bytes_per_s.values())
    assert measure(CPU, folder=tmp_path) == found


def test_the_second_time_is_read_back(tmp_path: Path, counted: list[Device]) -> None:
    assert measure(CPU, folder=tmp_path) == measure(CPU, folder=tmp_path) == KNOWN
    assert len(counted) == 1
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


def test_asking_anew_replaces_what_was_kept(tmp_path: Path, counted: list[Device]) -> None:
    measure(CPU, folder=tmp_path)
    measure(CPU, cache=False, folder=tmp_path)
    assert len(counted) == 2
    assert len(list(tmp_path.iterdir())) == 1


def test_a_bad_minute_is_made_up_for_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = msgspec.structs.replace(
        KNOWN, gemm_flops_per_s={"fp32": 1e11, "bf16": 5e11}, copy_bytes_per_s={"dram": 1e9}
    )
    calls = iter([slow, KNOWN, KNOWN, KNOWN])
    monkeypatch.setattr(room, "_measured", lambda device: next(calls))

    def later(again: Literal["", "due", "now"] = "due") -> Ceilings:
        """Measure in another process, long after the last one."""
        for path in tmp_path.iterdir():
            os.utime(path, (0, 0))
        monkeypatch.setattr(room, "_measured_here", set())
        return measure(CPU, again=again, folder=tmp_path)

    assert later() == slow
    assert measure(CPU, again="due", folder=tmp_path) == slow  # the same process and minute
    assert later("") == slow
    better = later()
    assert better.gemm_flops_per_s == {"fp32": 2e11, "bf16": 5e11}
    assert better.copy_bytes_per_s == KNOWN.copy_bytes_per_s and better.times == 2
    assert [later().times for _ in range(3)] == [3, 3, 3]
    assert later("now").times == 4


def test_the_thread_count_is_part_of_the_key(tmp_path: Path, counted: list[Device]) -> None:
    measure(CPU, folder=tmp_path)
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        measure(CPU, folder=tmp_path)
    finally:
        torch.set_num_threads(before)
    assert len(counted) == 2


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"[]",
        b"null",
        msgspec.json.encode(KNOWN)[:-40],
        msgspec.json.encode(KNOWN).replace(b"200000000000.0", b"-1"),
        msgspec.json.encode(KNOWN).replace(b'"fp32":', b'"fp32":null,"x":'),
    ],
)
def test_a_damaged_file_is_measured_again(
    content: bytes, tmp_path: Path, counted: list[Device], caplog: pytest.LogCaptureFixture
) -> None:
    measure(CPU, folder=tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert measure(CPU, folder=tmp_path) == KNOWN
    assert len(counted) == 2
    assert "measuring again" in caplog.text
    assert msgspec.json.decode(path.read_bytes(), type=Ceilings) == KNOWN


def test_a_file_of_another_device_or_format_does_not_count(
    tmp_path: Path, counted: list[Device]
) -> None:
    measure(CPU, folder=tmp_path)
    (path,) = tmp_path.iterdir()
    for changes in ({"device": "0" * 16}, {"format": 99}):
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(KNOWN, **changes)))
        assert measure(CPU, folder=tmp_path) == KNOWN
    assert len(counted) == 3


def test_a_folder_that_cannot_be_made_is_only_logged(
    tmp_path: Path, counted: list[Device], caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with caplog.at_level(logging.WARNING):
        assert measure(CPU, folder=blocked / "ceilings") == KNOWN
    assert "not kept" in caplog.text


def test_a_failed_write_leaves_nothing_behind(
    tmp_path: Path,
    counted: list[Device],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with caplog.at_level(logging.WARNING):
        assert measure(CPU, folder=tmp_path) == KNOWN
    assert "No space left" in caplog.text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_is_no_rate_is_refused(rate: float) -> None:
    content = msgspec.to_builtins(KNOWN)
    content["gemm_flops_per_s"] = {"fp32": rate}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(content, Ceilings)


def test_working_sets_fit_their_level_and_dram_fits_none() -> None:
    for device in (CPU, Device(kind="cpu", vendor="", model="", cores=1, threads=1, isa=())):
        sets, levels = rates.working_sets(device), level_bytes(device)
        assert all(sets[level] <= levels[level] for level in sets if level != "dram")
        assert sets["dram"] >= 2**26
        assert "l1d" not in sets


def test_the_best_quarter_decides() -> None:
    assert rates.best_of([9.0, 1.0, 2.0, 3.0, 50.0, 60.0, 70.0, 80.0]) == 1.5
    assert rates.best_of([4.0]) == 4.0


def test_precision_is_given_back() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with rates._whole_precision():
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_device_without_a_catalogue_entry_is_noted() -> None:
    device = Device(kind="cpu", vendor="?", model="Unheard-of 1", cores=1, threads=1, isa=())
    report = describe(device, KNOWN)
    assert report.paper is None
    assert "not in the catalogue" in report.notes[0]
    assert report.ridge_flops_per_byte["bf16"] == pytest.approx(4e11 / 6e10)


def test_a_known_device_brings_its_paper_and_sources() -> None:
    device = Device(
        kind="cuda",
        vendor="AMD",
        model="AMD Instinct MI300X",
        cores=304,
        threads=304,
        isa=("gfx942",),
        runtime="rocm 7.2",
    )
    report = describe(device, KNOWN)
    assert report.notes == ()
    assert report.paper is not None
    assert report.paper.name == "MI300X"
    assert report.paper.peak_flops_per_s["matrix_bf16"] == pytest.approx(1307.4e12)
    assert report.paper.memory_bytes_per_s == pytest.approx(5300e9)
    assert set(report.paper.sources) >= {"peak_dense.matrix_bf16", "memory_bandwidth"}
    assert report.target == "gfx942"
    assert paper_of(Device(**{**_fields(device), "cores": 38})) is None


def _fields(device: Device) -> dict[str, object]:
    return {name: getattr(device, name) for name in Device.__dataclass_fields__}


@pytest.mark.gpu(twin="train/turn/test_simulated_gpu.py::test_a_process_meets_a_gpu")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
def test_a_gpu_measured_for_real(tmp_path: Path) -> None:
    found = measure(probe("cuda"), folder=tmp_path)
    assert set(found.gemm_flops_per_s) == {"fp32", "bf16", "fp16"}
    assert found.copy_bytes_per_s["dram"] > 1e9
