"""The probe on this machine, on made-up machines, and where a device is not there."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ratchet.base.devices import cpuinfo, paper_of
from ratchet.base.devices import probe as fingerprint
from ratchet.base.devices.probe import HIDING, Device, best_isa, describe_device, probe
from ratchet.base.errors import DeviceError
from ratchet.train.turn.settings import workload_options
from ratchet.train.workloads.device import place

ZEN4 = ("avx2", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16")

has_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")


def cpu(*flags: str, **changes: object) -> Device:
    device = Device(
        kind="cpu", vendor="AMD", model="EPYC", cores=4, threads=8, isa=flags, memory_bytes=2**35
    )
    return replace(device, **changes)


def test_this_cpu() -> None:
    device = probe("cpu")
    assert device.kind == "cpu"
    assert device.vendor
    assert device.model
    assert 1 <= device.cores <= device.threads <= (os.cpu_count() or 1)
    assert device.memory_bytes > 2**28
    assert all(size > 0 for size in device.caches_bytes.values())
    assert device.torch_name == "cpu"
    assert device.target == best_isa() == best_isa(device)


def test_the_fingerprint_is_stable_and_short() -> None:
    assert probe("cpu").fingerprint == probe("cpu").fingerprint
    assert len(probe("cpu").fingerprint) == 16
    json.dumps(describe_device(probe("cpu")))


def test_the_fingerprint_tells_machines_apart_but_not_a_few_megabytes() -> None:
    device = cpu(*ZEN4)
    assert device.fingerprint == cpu(*ZEN4, memory_bytes=2**35 - 2**22).fingerprint
    others = [cpu(*ZEN4, cores=2), cpu("avx2"), cpu(*ZEN4, model="Xeon"), cpu(*ZEN4, threads=4)]
    assert len({device.fingerprint, *(other.fingerprint for other in others)}) == 5


@pytest.mark.parametrize(
    ("flags", "isa"),
    [
        ((), "portable"),
        (("avx2", "fma"), "avx2"),
        (("avx2",), "portable"),
        (("avx512f",), "portable"),
        (ZEN4[:-1], "avx512"),
        (ZEN4, "avx512_bf16"),
        ((*ZEN4, "amx_tile", "amx_bf16"), "amx"),
        ((*ZEN4, "amx_tile", "amx_int8"), "avx512_bf16"),
        (("amx_tile", "amx_bf16"), "portable"),
    ],
)
def test_best_isa_asks_for_all_that_it_needs(flags: tuple[str, ...], isa: str) -> None:
    assert best_isa(cpu(*flags)) == isa


@pytest.mark.parametrize("permitted", [True, False])
def test_amx_counts_only_with_the_kernels_permission(
    permitted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpuinfo, "amx_permitted", lambda: permitted)
    flags = cpuinfo.usable_flags(frozenset({*ZEN4, "amx_tile", "amx_bf16", "something_else"}))
    assert ("amx_bf16" in flags) is permitted
    assert "something_else" not in flags
    assert best_isa(cpu(*flags)) == ("amx" if permitted else "avx512_bf16")


def test_the_kernel_is_not_asked_for_amx_without_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> bool:
        raise AssertionError("asked for AMX")

    monkeypatch.setattr(cpuinfo, "amx_permitted", asked)
    assert cpuinfo.usable_flags(frozenset(ZEN4)) == ZEN4


def test_permission_is_refused_or_given_but_never_an_error() -> None:
    permitted = cpuinfo.amx_permitted()
    if "amx_tile" not in cpuinfo.read().flags:
        assert permitted is False


def test_cpuinfo_of_other_machines(tmp_path: Path) -> None:
    intel = tmp_path / "intel"
    intel.write_text(
        "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Xeon 8481C\n"
        "stepping\t: 8\nflags\t\t: avx2 amx_tile\n\nvendor_id\t: another\n"
    )
    found = cpuinfo.read(intel)
    assert (found.vendor, found.model) == ("Intel", "Xeon 8481C (family 6, model 143, stepping 8)")
    assert found.flags == {"avx2", "amx_tile"}
    arm = tmp_path / "arm"
    arm.write_text("processor\t: 0\nFeatures\t: fp asimd sve bf16\n")
    assert cpuinfo.usable_flags(cpuinfo.read(arm).flags) == ("asimd", "sve", "bf16")
    assert cpuinfo.read(tmp_path / "none").flags == frozenset()


def write_cpu(root: Path, index: int, siblings: str, caches: list[tuple[str, ...]]) -> None:
    topology = root / f"cpu{index}" / "topology"
    topology.mkdir(parents=True)
    (topology / "thread_siblings_list").write_text(siblings + "\n")
    for number, values in enumerate(caches):
        entry = root / f"cpu{index}" / "cache" / f"index{number}"
        entry.mkdir(parents=True)
        for name, value in zip(("level", "type", "size", "shared_cpu_list"), values, strict=True):
            (entry / name).write_text(value + "\n")


def test_caches_and_cores_of_a_made_up_machine(tmp_path: Path) -> None:
    for index, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        write_cpu(
            tmp_path,
            index,
            siblings,
            [
                ("1", "Data", "48K", siblings),
                ("1", "Instruction", "32K", siblings),
                ("2", "Unified", "2M", siblings),
                ("3", "Unified", "256M", "0-3"),
            ],
        )
    assert cpuinfo.physical_cores((0, 1, 2, 3), tmp_path) == 2
    assert cpuinfo.physical_cores((0, 2), tmp_path) == 1
    found = {c.name: (c.size_bytes, c.instances) for c in cpuinfo.data_caches((0, 1, 2), tmp_path)}
    assert found == {"l1d": (48 << 10, 2), "l2": (2 << 20, 2), "l3": (256 << 20, 1)}


def test_a_machine_that_hides_its_caches(tmp_path: Path) -> None:
    assert cpuinfo.data_caches((0, 1), tmp_path) == ()
    assert cpuinfo.physical_cores((0, 1), tmp_path) == 2


@pytest.mark.parametrize("name", ["tpu", "cpu:1", "cuda:x", "cuda:-1", "auto:0", ""])
def test_unknown_devices_are_refused(name: str) -> None:
    with pytest.raises(DeviceError, match="use auto, cpu, cuda or cuda:N"):
        probe(name)


def test_a_gpu_that_is_not_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="sees 0 GPUs; use cpu") as caught:
        probe("cuda")
    assert "\n" not in str(caught.value)
    assert probe("auto").kind == "cpu"
    monkeypatch.setattr("ratchet.base.devices.probe._gpu_count", lambda: 1)
    with pytest.raises(DeviceError, match="sees 1 GPU; use cpu"):
        probe("cuda:7")


def fake_gpu(monkeypatch: pytest.MonkeyPatch, *, hip: str | None, cuda: str | None) -> None:
    properties = SimpleNamespace(
        name="AMD Instinct MI300X" if hip else "NVIDIA H200",
        gcnArchName="gfx942:sramecc+:xnack-",
        major=9,
        minor=0,
        multi_processor_count=304 if hip else 132,
        total_memory=192 * 2**30,
        L2_cache_size=4 * 2**20,
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.version, "cuda", cuda)


def test_rocm_and_cuda_are_read_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpu(monkeypatch, hip="7.2", cuda=None)
    device = probe("cuda:1")
    assert (device.kind, device.vendor, device.target) == ("cuda", "AMD", "gfx942")
    assert (device.torch_name, device.runtime, device.cores) == ("cuda:1", "rocm 7.2", 304)
    fake_gpu(monkeypatch, hip=None, cuda="13.0")
    device = probe("auto")
    assert (device.vendor, device.target, device.runtime) == ("NVIDIA", "sm_90", "cuda 13.0")
    with pytest.raises(DeviceError, match="cuda:2 is not available"):
        probe("cuda:2")


def no_gpu(monkeypatch: pytest.MonkeyPatch, *, cuda: str | None, fault: str = "") -> None:
    def init() -> None:
        if fault:
            raise RuntimeError(fault)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.version, "hip", None)
    for name in HIDING:
        monkeypatch.delenv(name, raising=False)


OLD_DRIVER = (
    "The NVIDIA driver on your system is too old (found version 12020). Please update your GPU "
    "driver by downloading and installing a new version"
)


@pytest.mark.parametrize(
    ("hidden", "cuda", "fault", "remedy"),
    [
        ("", "13.0", "", "unset CUDA_VISIBLE_DEVICES='', which hides the others"),
        (None, None, "", "install a ROCm or CUDA build of torch"),
        (None, "13.0", OLD_DRIVER, r"mend this: .* is too old \(found version 12020\)$"),
        (None, "13.0", "", "check that the driver is loaded"),
    ],
)
def test_why_no_gpu_is_seen_is_one_line_with_the_remedy(
    hidden: str | None,
    cuda: str | None,
    fault: str,
    remedy: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    no_gpu(monkeypatch, cuda=cuda, fault=fault)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    for ask in (probe, place):
        with pytest.raises(DeviceError, match=remedy) as error:
            ask("cuda")
        assert "\n" not in str(error.value)


def test_two_gpus_of_different_kinds_are_two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpu(monkeypatch, hip=None, cuda="13.0")
    slice_of_one = SimpleNamespace(
        name="NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        major=9,
        minor=0,
        multi_processor_count=16,
        total_memory=10 * 2**30,
    )
    known = torch.cuda.get_device_properties(0)
    found = (known, slice_of_one)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: found[index])
    first, second = probe("cuda:0"), probe("cuda:1")
    assert first.fingerprint != second.fingerprint
    assert (second.cores, second.memory_bytes) == (16, 10 * 2**30)
    assert paper_of(first) is not None and paper_of(second) is None
    options = workload_options(["llama-tiny"], None, None, None, None, "cuda:1")
    assert options == {"device": "cuda:1"}
    assert workload_options(["llama-tiny"], None, None, None, None, "cuda") == {"device": "cuda"}


@pytest.mark.gpu(twin="base/devices/test_devices_probe.py::test_rocm_and_cuda_are_read_alike")
@has_gpu
def test_this_gpu() -> None:
    device = probe("cuda")
    assert device.kind == "cuda"
    assert device.memory_bytes > 0
    assert device.target.startswith(("gfx", "sm_"))


def test_software_versions() -> None:
    versions = fingerprint.software()
    # The metadata of a wheel from PyPI leaves out what follows the plus sign.
    assert versions.torch in (torch.__version__, torch.__version__.partition("+")[0])
    assert versions.python.count(".") == 2
    assert versions.fingerprint == fingerprint.software_fingerprint()
    other = replace(versions, compiler="another 1.0")
    assert other.fingerprint != versions.fingerprint


def test_a_fingerprint_is_json() -> None:
    found = asdict(fingerprint.fingerprint(probe("cpu")))
    assert json.loads(json.dumps(found))["device"] == probe("cpu").fingerprint


def test_a_missing_or_broken_compiler_is_no_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("RATCHET_CXX", raising=False)
    assert fingerprint.compiler_version.__wrapped__() == ""
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    assert fingerprint.compiler_version.__wrapped__() == ""
