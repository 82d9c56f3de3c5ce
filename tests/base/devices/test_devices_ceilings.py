"""Ceilings: measured for real once, kept by fingerprint, measured again when the file is bad."""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec
import pytest
import torch

from ratchet.base.devices import ceilings as room
from ratchet.base.devices import describe, paper_of, rates
from ratchet.base.devices.ceilings import APART_S, FORMAT, QUIET, Ceilings, measure, unrefuted
from ratchet.base.devices.cpuinfo import OthersUse
from ratchet.base.devices.probe import Device, compiler, level_bytes, probe
from ratchet.base.errors import DeviceError

CPU = probe("cpu")

KNOWN = Ceilings(
    device=CPU.fingerprint,
    gemm_flops_per_s={"fp32": 2e11, "bf16": 4e11},
    copy_bytes_per_s={"l2": 9e10, "l3": 1.8e11, "dram": 5e10},
    triad_bytes_per_s={"l2": 1e11, "l3": 1.7e11, "dram": 6e10},
    level_bytes={"l2": 2**21, "l3": 2**25},
)


BUSY = msgspec.structs.replace(
    KNOWN,
    gemm_flops_per_s={"fp32": 7e10, "bf16": 1.4e11},
    copy_bytes_per_s={"dram": 3.4e9},
    triad_bytes_per_s={"dram": 3.4e9},
    busy=0.7,
)
"""The same machine, measured beside other work."""


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_measured_here", {})


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
    assert set(found.loop_flops_per_s) <= {"fp32", "bf16"}
    assert ("fp32" in found.loop_flops_per_s) == (compiler() is not None)
    assert found.flops_per_s["fp32"] == max(
        found.gemm_flops_per_s["fp32"], found.loop_flops_per_s.get("fp32", 0.0)
    )
    assert measure(CPU, folder=tmp_path) == found


def test_the_second_time_is_read_back(tmp_path: Path, counted: list[Device]) -> None:
    assert measure(CPU, folder=tmp_path) == measure(CPU, folder=tmp_path) == KNOWN
    assert len(counted) == 1
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


def test_asking_anew_keeps_the_best_of_each_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for found in (KNOWN, BUSY):
        monkeypatch.setattr(room, "_measured", lambda device, found=found: found)
        measure(CPU, again="now", folder=tmp_path)
    assert measure(CPU, folder=tmp_path).flops_per_s == KNOWN.flops_per_s
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
        monkeypatch.setattr(room, "_measured_here", {})
        return measure(CPU, again=again, folder=tmp_path)

    assert later() == slow
    assert measure(CPU, again="due", folder=tmp_path) == slow  # the same process and minute
    assert later("") == slow
    better = later()
    assert better.gemm_flops_per_s == {"fp32": 2e11, "bf16": 5e11}
    assert better.copy_bytes_per_s == KNOWN.copy_bytes_per_s and better.times == 2
    assert [later().times for _ in range(3)] == [3, 3, 3]
    assert later("now").times == 4


@pytest.fixture
def more_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("more_threads")
def test_each_thread_count_is_measured_and_more_threads_are_never_slower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_measured", lambda device: KNOWN)
    measure(CPU, folder=tmp_path)
    torch.set_num_threads(torch.get_num_threads() + 1)
    slower = msgspec.structs.replace(BUSY, triad_bytes_per_s={"dram": 9e10})
    monkeypatch.setattr(room, "_measured", lambda device: slower)
    for _ in range(2):
        found = measure(CPU, folder=tmp_path)
        assert found.flops_per_s == KNOWN.flops_per_s
        assert found.bandwidth_bytes_per_s() == 9e10
        assert found.provisional
    torch.set_num_threads(torch.get_num_threads() - 1)
    assert measure(CPU, folder=tmp_path) == KNOWN


def test_a_measurement_on_busy_cores_is_provisional_until_one_was_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "_measured", lambda device: BUSY)

    def later() -> Ceilings:
        for path in tmp_path.iterdir():
            os.utime(path, (0, 0))
        monkeypatch.setattr(room, "_measured_here", {})
        return measure(CPU, again="due", folder=tmp_path)

    assert [later().times for _ in range(5)] == [1, 2, 3, 4, 5]
    assert "70%" in later().provisional
    monkeypatch.setattr(
        room, "_measured", lambda device: msgspec.structs.replace(KNOWN, busy=QUIET)
    )
    assert not later().provisional
    assert later().times == 7  # one was quiet, so no more is due


def fastest(seconds: float) -> object:
    """Return the rule by which a call of 2e9 operations in so many seconds refutes ceilings."""
    return lambda ceilings: seconds < ceilings.bound_s(2e9, 0.0)


def test_a_faster_measurement_refutes_a_ceiling_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [BUSY, KNOWN]
    monkeypatch.setattr(room, "_measured", lambda device: found.pop(0))
    kept = measure(CPU, folder=tmp_path)
    assert unrefuted(CPU, kept, fastest(0.1), folder=tmp_path) == kept and len(found) == 1
    better = unrefuted(CPU, kept, fastest(0.01), folder=tmp_path)
    assert better.flops_per_s == KNOWN.flops_per_s and not found
    # A reader that still holds the old rates gets those of the file.
    assert unrefuted(CPU, kept, fastest(0.01), folder=tmp_path) == better


def test_where_memory_runs_out_refuted_ceilings_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(device: Device) -> Ceilings:
        raise DeviceError("cpu cannot hold 7 bytes: free its memory")

    monkeypatch.setattr(room, "_measured", full)
    assert unrefuted(CPU, BUSY, fastest(1e-9), folder=tmp_path) == BUSY
    assert "free its memory" in caplog.text


def test_what_was_refuted_was_not_quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file claims to be quiet; a beaten rate says otherwise, so more measurements are due."""
    found = [msgspec.structs.replace(BUSY, busy=0.0, times=3), msgspec.structs.replace(BUSY)]
    monkeypatch.setattr(room, "_measured", lambda device: found.pop(0))
    kept = measure(CPU, folder=tmp_path)
    assert not kept.provisional
    monkeypatch.setattr(room, "_measured_here", {})  # another process reads it
    again = unrefuted(CPU, kept, fastest(0.01), folder=tmp_path)
    assert again.provisional and again.times == 1
    assert again.flops_per_s == kept.flops_per_s


def test_what_no_measurement_reaches_is_measured_once_in_a_quiet_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet, calls = msgspec.structs.replace(KNOWN, busy=0.0), 0

    def measured(device: Device) -> Ceilings:
        nonlocal calls
        calls += 1
        return BUSY if calls == 1 else quiet

    now = 1e6
    monkeypatch.setattr(room, "_measured", measured)
    monkeypatch.setattr(room.time, "monotonic", lambda: now)
    kept = measure(CPU, folder=tmp_path)
    for _ in range(3):
        kept = unrefuted(CPU, kept, fastest(1e-9), folder=tmp_path)
    assert calls == 2
    now += APART_S + 1
    unrefuted(CPU, kept, fastest(1e-9), folder=tmp_path)
    assert calls == 3


def test_on_busy_cores_one_thread_is_tried_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gemm", "multiply_add"):
        monkeypatch.setattr(rates, name, lambda device: {"fp32": 1e11})
    for name in ("copy", "triad"):
        monkeypatch.setattr(rates, name, lambda device: {"dram": 1e10 / torch.get_num_threads()})
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for share, rate in ((0.5, 1e10), (0.0, 5e9), (None, 5e9)):
            monkeypatch.setattr(OthersUse, "share", lambda self, share=share: share)
            found = room._measured(CPU)
            assert found.bandwidth_bytes_per_s() == rate and found.busy == share
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_use_of_others_is_what_this_process_did_not_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat, now = tmp_path / "stat", [100.0, 4.0]
    tick = os.sysconf("SC_CLK_TCK")
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("os.times", lambda: os.times_result((now[1], 0.0, 0.0, 0.0, 0.0)))

    def at(seconds: float, own: float, *work: float) -> None:
        now[:] = [100.0 + seconds, 4.0 + own]
        rows = [f"cpu{cpu} {round(tick * used)} 0 0 9 9 0 0 0 7 7" for cpu, used in enumerate(work)]
        stat.write_text("\n".join(["cpu 1 2 3 4 5 6 7 8", *rows, "intr 5"]))

    at(0.0, 0.0, 10.0, 20.0, 30.0)
    use = OthersUse(frozenset({0, 1}), stat)
    assert use.share() is None  # no time has passed
    at(10.0, 12.0, 20.0, 30.0, 99.0)
    assert use.share() == pytest.approx(0.4)
    at(10.0, 25.0, 20.0, 30.0, 99.0)
    assert use.share() == 0.0
    stat.write_text("cpu 1 2 3\n")
    assert use.share() is None
    assert OthersUse(frozenset({0}), tmp_path / "missing").share() is None
    assert 0.0 <= (OthersUse().share() or 0.0) <= 1.0


def test_a_machine_that_is_kept_busy_is_seen_to_be() -> None:
    """One process a core works, until it is told to end; how much it gets to do is not asked."""
    busy = [sys.executable, "-S", "-c", "while True: pass"]
    hogs = [subprocess.Popen(busy) for _ in range(CPU.threads)]
    try:
        use = OthersUse()
        deadline = time.monotonic() + 30.0
        while not (share := use.share()) or share <= QUIET:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    assert msgspec.structs.replace(KNOWN, busy=share).provisional


def test_the_loop_says_a_rate_for_each_type() -> None:
    text = "fp32 2.4e11\nbf16 4.8e11\nbf16 3e12\n"
    assert rates.read_rates(text) == {"fp32": 2.4e11, "bf16": 3e12}
    assert rates.read_rates("") == {}


@pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler")
def test_the_loop_runs_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "LOOP_BUDGET_S", 0.0)
    found = rates.multiply_add(CPU)
    assert found["fp32"] > 1e8
    assert ("bf16" in found) == (not rates.BF16_FLAGS.isdisjoint(CPU.isa))
    assert "bf16" not in rates.multiply_add(replace(CPU, isa=("avx2",)))


def test_without_a_compiler_there_is_no_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "compiler", lambda: None)
    assert rates.multiply_add(CPU) == {}
    failing = tmp_path / "g++"
    failing.write_text("#!/bin/sh\necho no such flag >&2; exit 1\n")
    failing.chmod(0o755)
    monkeypatch.setattr(rates, "compiler", lambda: str(failing))
    assert rates.multiply_add(CPU) == {}


def test_a_narrow_type_is_not_slower_than_fp32() -> None:
    """A CPU without bf16 instructions widens the values."""
    slow = msgspec.structs.replace(
        KNOWN, gemm_flops_per_s={"fp32": 1.4e11, "bf16": 1e10}, loop_flops_per_s={"fp32": 1.8e11}
    )
    assert slow.flops_per_s == {"fp32": 1.8e11, "bf16": 1.8e11}
    assert KNOWN.flops_per_s == {"fp32": 2e11, "bf16": 4e11}


def test_a_bound_falls_as_the_rates_rise_and_grows_with_the_work() -> None:
    work = [KNOWN.bound_s(flops, size) for flops, size in ((1e9, 1e6), (2e9, 1e6), (2e9, 1e9))]
    assert work == sorted(work) and KNOWN.bound_s(4e11, 0.0) == 1.0
    assert KNOWN.bound_s(0.0, 6e10) == 1.0
    assert BUSY.bound_s(2e9, 1e9) > KNOWN.bound_s(2e9, 1e9)
    assert math.isfinite(KNOWN.bound_s(0.0, 0.0))


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
    for changes in ({"device": "0" * 16}, {"format": 99}, {"format": FORMAT - 1, "times": 3}):
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(KNOWN, **changes)))
        assert measure(CPU, folder=tmp_path) == KNOWN
    assert len(counted) == 4


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


def test_a_report_says_that_its_rates_are_provisional() -> None:
    report = describe(CPU, BUSY)
    assert report.provisional and report.busy == 0.7
    assert any("other work took 70%" in one and "provisional" in one for one in report.notes)
    assert not describe(CPU, KNOWN).provisional


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
