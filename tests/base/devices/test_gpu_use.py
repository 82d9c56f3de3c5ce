"""What a driver tells of others on a GPU, and which GPU is taken where several differ."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ratchet.base.devices import gpu_use
from ratchet.base.devices.gpu_use import GpuUse

GB = 10**9
OURS = 0
"""Stands for the process of a test, which may be a fork of the one that made the lists below."""
PROPERTIES = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """One GPU with 20 GB taken by others."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (60 * GB, 80 * GB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda *_: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: PROPERTIES)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.version, "hip", None)


class Nvml:
    """NVIDIA's library as far as it is asked; it knows one GPU."""

    def __init__(self, busy_percent: int | None, pids: list[int] | None) -> None:
        self.busy_percent, self.pids = busy_percent, pids

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByPciBusId_v2(self, address: bytes, _: Any) -> int:
        return int(address != b"00000000:3b:00.0")

    def nvmlDeviceGetUtilizationRates(self, _: Any, use: Any) -> int:
        if self.busy_percent is None:
            return 3
        use._obj.gpu = self.busy_percent
        return 0

    def nvmlDeviceGetComputeRunningProcesses_v3(self, _: Any, count: Any, found: Any) -> int:
        if self.pids is None:
            return 3
        for place, pid in enumerate(self.pids):
            found[place].pid = os.getpid() if pid == OURS else pid
            found[place].used = 4 * GB
        count._obj.value = len(self.pids)
        return 0


@pytest.mark.parametrize(
    ("busy_percent", "pids", "busy", "processes"),
    [
        (87, [OURS, 1, 2], 0.87, 2),
        (0, [OURS], 0.0, 0),
        (0, [4_000_000, 4_000_001], 0.0, None),  # of another namespace: ours may be one of them
        (None, None, None, None),  # a part of a GPU
    ],
)
def test_nvidias_driver_is_asked(
    busy_percent: int | None,
    pids: list[int] | None,
    busy: float | None,
    processes: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Nvml(busy_percent, pids))
    assert gpu_use.gpu_use(0) == GpuUse(bytes=20 * GB, busy=busy, processes=processes)


def test_processes_of_the_same_command_are_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn's arms lie on the GPU while its judge looks."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        pids = [os.getpid(), child.pid, 1]
        monkeypatch.setattr(ctypes, "CDLL", lambda name: Nvml(0, pids))
        assert gpu_use.gpu_use(0) == GpuUse(bytes=16 * GB, busy=0.0, processes=1)
        child.communicate(b"\n")


@pytest.mark.parametrize("library", [None, object()])
def test_without_the_library_or_with_an_older_one_memory_is_known(
    library: object | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str) -> object:
        if library is None:
            raise OSError(f"{name}: no such file")
        return library

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert gpu_use.gpu_use(0) == GpuUse(bytes=20 * GB)


def test_amds_driver_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.1")
    monkeypatch.setattr(gpu_use, "SYSTEM", tmp_path)
    assert gpu_use.gpu_use(0) == GpuUse(bytes=20 * GB)
    device = tmp_path / "bus/pci/devices/0000:3b:00.0"
    kfd = tmp_path / "class/kfd/kfd"
    for number, location in (("0", 0), ("1", 0x3B << 8)):
        node = kfd / "topology/nodes" / number
        node.mkdir(parents=True)
        (node / "properties").write_text(f"simd_count 4\nlocation_id {location}\ndomain 0\n")
        (node / "gpu_id").write_text(f"1000{number}\n")
    for pid, gpu in ((os.getpid(), "10001"), (1, "10001"), (2, "10007")):
        (kfd / "proc" / str(pid)).mkdir(parents=True)
        (kfd / "proc" / str(pid) / f"vram_{gpu}").write_text("4096\n")
    device.mkdir(parents=True)
    (device / "gpu_busy_percent").write_text("99\n")
    assert gpu_use.gpu_use(0) == GpuUse(bytes=20 * GB, busy=0.99, processes=1)


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (GpuUse(bytes=1 << 30), ""),
        (GpuUse(bytes=1 << 30, busy=0.0, processes=3), ""),  # they hold next to nothing, at rest
        (GpuUse(bytes=20 * GB), "other processes hold 20 GB of cuda:0: if"),
        (GpuUse(bytes=0, busy=0.5), "cuda:0 is at work 50% of the time: if"),
        (GpuUse(bytes=20 * GB, busy=0.5, processes=2), "time, and 2 others have it open: if"),
        (GpuUse(bytes=0, busy=0.5, processes=1), "and 1 other process has it open: if"),
    ],
)
def test_a_gpu_that_others_use_is_told_in_a_line(use: GpuUse, words: str) -> None:
    said = use.words("cuda:0")
    assert words in said and bool(words) == bool(said)
    assert "\n" not in said and (not said or said.endswith("--device"))


def test_of_gpus_that_differ_the_one_that_is_taken_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ["NVIDIA H100", "NVIDIA H100", "NVIDIA L4"]
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda at: names[at])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert not gpu_use.choice_words(0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert "cuda:0, NVIDIA H100, is taken" in gpu_use.choice_words(0)
    assert "--device cuda:2, NVIDIA L4" in gpu_use.choice_words(0)
    assert not gpu_use.choice_words(2)  # it was named
