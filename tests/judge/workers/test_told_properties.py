"""What a program reads of an emulated GPU, held against the real classes of torch and Triton."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch

from ratchet.amd.architectures import (
    ARCHITECTURES,
    CLOCKS,
    PretendedDevice,
)
from ratchet.amd.compile.torch_cuda import device_answers
from ratchet.base.devices import catalogue
from ratchet.judge.kernels.kernel import TARGETS

NOT_IN_THE_STUB = {
    *("max_threads_per_block", "regs_per_multiprocessor", "shared_memory_per_block_optin"),
    *("pci_bus_id", "pci_device_id", "pci_domain_id"),
}
"""Attributes of torch's class (torch/csrc/cuda/Module.cpp) that its stub leaves out."""
DEVICES = {
    "gfx90a": "MI250X",
    "gfx942": "MI300X",
    "gfx950": "MI355X",
    "gfx1100": "RX 7900 XTX",
    "gfx1201": "RX 9070 XT",
}


def in_the_stub() -> dict[str, str]:
    """Return the attributes of the class in the stub of the torch at hand, with their types."""
    stub = Path(torch.__file__).parent / "_C" / "__init__.pyi"
    tree = ast.parse(stub.read_text())
    (found,) = (
        one
        for one in tree.body
        if isinstance(one, ast.ClassDef) and one.name == "_CudaDeviceProperties"
    )
    fields = [one for one in found.body if isinstance(one, ast.AnnAssign)]
    return {ast.unparse(one.target): ast.unparse(one.annotation) for one in fields}


@pytest.mark.parametrize("target", TARGETS)
def test_every_property_of_torchs_class_is_told(target: str) -> None:
    device = PretendedDevice(architecture=ARCHITECTURES[target], name="a GPU", units=64)
    answer = device_answers(device)["get_device_properties"]
    assert callable(answer)
    told, stub = vars(answer(0)), in_the_stub()
    assert len(stub) > 15
    assert set(stub) | NOT_IN_THE_STUB == set(told)
    whole = [name for name, kind in stub.items() if kind == "_int"]
    assert all(isinstance(told[name], int) for name in whole)


def test_every_property_of_tritons_driver_is_told() -> None:
    triton = pytest.importorskip("triton", reason="Triton is not installed")
    from ratchet.amd.compile.fake_driver import FakeDriver

    source = Path(triton.__file__).parent / "backends" / "amd" / "driver.c"
    built = re.search(r"Py_BuildValue\(\s*\"\{.*?\}\"(.*?)\);", source.read_text(), re.DOTALL)
    assert built is not None
    driver = FakeDriver(ARCHITECTURES["gfx942"], units=304)
    told = driver.utils.get_device_properties(0)
    assert set(re.findall(r'"(\w+)"', built[1])) == set(told)


@pytest.mark.parametrize("target", TARGETS)
def test_clocks_are_those_of_the_catalogue(target: str) -> None:
    device, told = catalogue.load()[DEVICES[target]], CLOCKS[target]
    clock_ghz, bandwidth = device.number("max_engine_clock"), device.number("memory_bandwidth")
    assert clock_ghz and bandwidth
    assert told.engine_khz == pytest.approx(clock_ghz * 1e6)
    given = 2 * told.memory_khz * told.bus_bits / 8 / 1e6 * device.logical_devices
    assert given == pytest.approx(bandwidth, rel=1e-6)
