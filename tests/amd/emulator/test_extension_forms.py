"""Torch extensions in the forms that people write, and what their host code gets wrong."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from ratchet.amd.architectures import PretendedDevice
from ratchet.amd.compile.hip_compiler import find_hip, first_error
from ratchet.amd.emulator import extensions
from ratchet.amd.emulator.extension_build import ExtensionOrder, as_hip
from ratchet.amd.emulator.hip_build import build_ordered, compiled_machine, precompiled
from ratchet.amd.emulator.launch import Emulator
from ratchet.amd.emulator.program import pretended_device
from ratchet.amd.targets import emulated
from ratchet.base.errors import KernelError
from ratchet.base.process import Clock
from ratchet.judge.court.calls import judge
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.kernel_file import load_kernel
from ratchet.judge.kernels.source_files import split_files
from ratchet.judge.sandbox.rocm import find_tool
from ratchet.judge.trial.kernel_trial import why_no_kernels

HERE = Path(__file__).parent / "extensions"
needs_hip = pytest.mark.skipif(
    find_tool("clang") is None or shutil.which("ld") is None or not find_hip().whole,
    reason="clang, HIP's headers (triton) or rocm-device-libs are not installed",
)
needs_sandbox = pytest.mark.skipif(
    why_no_kernels() is not None, reason="no kernel can be tried on this machine"
)


@pytest.mark.parametrize(
    ("name", "entry", "carried"),
    [
        ("bound.hip", "forward", {"rows.cuh"}),
        ("library.hip", "forward", {"rows.cuh"}),
        ("loaded.py", "centred", {"loaded.cpp", "loaded.cu", "rows.cuh"}),
        ("inline_hip.py", "centred", set()),
    ],
)
def test_each_form_has_its_entry_and_its_files(name: str, entry: str, carried: set[str]) -> None:
    wanted = "centred" if name.endswith(".py") else "centred_of_a_problem"
    kernel = load_kernel(HERE / name, entry=wanted, or_only_one=True)
    assert kernel.entry == entry
    assert set(split_files(kernel.source)[1].texts) == carried


def test_properties_are_those_of_the_largest_device_of_a_target() -> None:
    told = {name: pretended_device(name) for name in ("gfx90a", "gfx942", "gfx950", "gfx1100")}
    assert {name: one.units for name, one in told.items()} == {
        "gfx90a": 110,
        "gfx942": 304,
        "gfx950": 256,
        "gfx1100": 96,
    }
    assert told["gfx942"].name == "AMD Instinct MI300X"


def test_a_kernel_is_told_of_the_device() -> None:
    source = 'PYBIND11_MODULE(x, m) { m.def("forward", &forward); }'
    kernel = Kernel(name="k", language="hip", source=source, entry="forward")
    found = emulated(kernel, "gfx942", Clock.of(10.0))
    assert "'name': 'AMD Instinct MI300X', 'units': 304" in found.source


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("k.cu:3:10: fatal error: 'hipblas/hipblas.h' file not found", "beside the kernel"),
        ("k.cu:9:2: error: invalid output constraint '=f' in asm", "inline PTX is NVIDIA's"),
    ],
)
def test_an_error_says_what_to_do(said: str, hint: str) -> None:
    found = first_error(said)
    assert found.startswith(said.replace("fatal error: ", "").replace("error: ", ""))
    assert hint in found


@needs_hip
@needs_sandbox
@pytest.mark.compiler
@pytest.mark.thorough
@pytest.mark.parametrize("target", ["gfx942", "gfx1100"])
@pytest.mark.parametrize("name", ["bound.hip", "library.hip", "loaded.py", "inline_hip.py"])
def test_each_form_is_judged(name: str, target: str) -> None:
    if target == "gfx1100" and name != "bound.hip":
        pytest.skip("one form is enough on waves of 32 lanes")
    verdict = judge(HERE / name, HERE / "rows_problem.py", target=target, time_limit_s=900)
    assert verdict.status == "correct", verdict.reason


def built(order: ExtensionOrder, folder: Path, target: str = "gfx942") -> Path:
    """Compile an extension as the judge does."""
    headers = precompiled(target, with_torch=True)
    made = build_ordered(target, Clock.of(900.0), headers, msgspec.to_builtins(order))
    with contextlib.closing(made) as packed:
        packed.unpack(folder)
    return folder


X = torch.linspace(-2, 2, 64)
Loader = Callable[[str], Callable[..., object]]


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loader]:
    source, target = (HERE / "misuse.hip").read_text(), "gfx942"
    os.environ[extensions.EMULATOR] = str(compiled_machine(target))
    made = extensions.EmulatedExtensions(
        Emulator(Path(os.environ[extensions.EMULATOR])),
        PretendedDevice.of(target, {"name": "AMD Instinct MI300X", "units": 304}),
        build=lambda order: built(order, tmp_path_factory.mktemp("built")),
    )
    module = made.load("misuse", {"misuse.hip": source})
    yield lambda name: getattr(module, name)  # type: ignore[no-any-return]
    del os.environ[extensions.EMULATOR]


@needs_hip
@pytest.mark.compiler
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["plain", "pinned", "host_copy", "spins", "host_threads"])
def test_what_looks_odd_and_is_right(loader: Loader, name: str) -> None:
    found = loader(name)(X.clone())
    assert isinstance(found, torch.Tensor)
    torch.testing.assert_close(found, 2 * X)


@needs_hip
@pytest.mark.compiler
@pytest.mark.thorough
def test_a_cooperative_launch_waits_for_the_whole_grid(loader: Loader) -> None:
    x = torch.arange(64.0)
    torch.testing.assert_close(loader("cooperative")(x.clone()), x + x.sum())


@needs_hip
@pytest.mark.compiler
@pytest.mark.thorough
def test_segments_are_reduced_by_hipcub(loader: Loader) -> None:
    """One of the segments is empty, and one has more elements than a block has threads."""
    x, bounds = torch.arange(700.0), [0, 1, 1, 300, 700]
    found = loader("segments")(x.clone(), torch.tensor(bounds, dtype=torch.int32))
    ends = itertools.pairwise(bounds)
    assert isinstance(found, torch.Tensor)
    assert found.tolist() == [x[begin:end].sum() for begin, end in ends]


@needs_hip
@pytest.mark.compiler
@pytest.mark.thorough
def test_host_code_reads_the_properties_of_the_device(loader: Loader) -> None:
    found = loader("properties")(X.clone())
    assert isinstance(found, torch.Tensor)
    assert found.tolist() == [304, 64, 2, 1]


@needs_hip
@pytest.mark.compiler
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("own_thread", "calls HIP from a thread of its own"),
        ("second_gpu", "another GPU than 0: one is emulated"),
        ("too_large", "more than 4 GiB is not emulated"),
        ("too_many_blocks", "cooperative launch of more than 2,048 waves"),
        ("wide_block", "2048 x 1 x 1 threads cannot be launched"),
        ("reads_file", "weights.bin cannot be opened"),
        ("asserts", "one row, not 64"),
    ],
)
def test_host_code_that_goes_wrong_is_told_in_a_line(loader: Loader, name: str, told: str) -> None:
    with pytest.raises((KernelError, RuntimeError), match=told):
        loader(name)(X.clone())
    assert torch.equal(loader("plain")(X), 2 * X), "the next call is well"  # type: ignore[arg-type]


@needs_hip
@pytest.mark.compiler
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("#include <cusparseLt.h>", r"1:10: '\w+/?\w+.h' file not found"),
        (
            '__global__ void f(int* x) { asm("mov.u32 %0, %%laneid;" : "=v"(x[0])); }',
            r"mov\.u32 \(inline PTX",
        ),
        ("__device__ int f() { return nowhere; }", "k.cu:1:29: use of undeclared identifier"),
    ],
)
def test_what_does_not_compile_keeps_its_line(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=told):
        files = {"k.cu": as_hip("k.cu", text)}
        built(ExtensionOrder(name="extension", sources=("k.cu",), files=files), tmp_path)
