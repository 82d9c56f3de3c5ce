"""A GPU's shared memory, on a fake driver: its calls, two processes, refusals, leaks."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fake_gpu import FLAVOURS, FakeDriver, build_driver

from ratchet.base.process.channel import Channel, close_descriptors, open_pair
from ratchet.judge.kernels.languages.cpp import find_compiler
from ratchet.judge.workers import device, driver_memory
from ratchet.judge.workers.device import (
    BLANK,
    DeviceMemory,
    HostBlock,
    HostMemory,
    Memory,
    bytes_of,
    filled,
    flat_bytes,
)
from ratchet.judge.workers.driver_memory import (
    AccessDescription,
    AllocationFlags,
    AllocationProperties,
    DeviceRegion,
    DriverRefusal,
    Location,
)

pytestmark = pytest.mark.compiler
NOTHING = (0, 0, 0)
OTHER_PROCESS = """
import json, sys, torch
from ratchet.base.process.channel import inherited
from ratchet.judge.workers.driver_memory import Driver
from ratchet.judge.workers.device import DeviceMemory
from ratchet.judge.workers.driver_memory import DeviceRegion

dialect, library, number = sys.argv[1:]
channel = inherited(int(number))
driver = Driver(dialect, library=library)
memory = DeviceMemory(driver, torch.device("cpu"))
message, (descriptor,) = channel.receive()
region = memory.region(message["size"], 3)
numbers = memory.tensor(region.address, torch.float32, (4, 3), (3, 1))  # nothing lies there yet
region.reveal(descriptor, writable=True)
channel.send({"seen": numbers.flatten().tolist()}, [])
numbers.mul_(2)
channel.send({"done": True}, [])
"""


@pytest.fixture(scope="module", params=FLAVOURS)
def fake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return build_driver(request.param, tmp_path_factory.mktemp("driver"))


@pytest.fixture(autouse=True)
def nothing_is_left(fake: FakeDriver) -> Iterator[None]:
    before = sorted(os.listdir("/proc/self/fd"))
    yield
    assert fake.held == NOTHING
    assert len(os.listdir("/proc/self/fd")) == len(before)


def memory_of(fake: FakeDriver) -> DeviceMemory:
    return DeviceMemory(fake.open(), torch.device("cpu"))


def test_structs_are_as_large_as_the_headers_have_them(fake: FakeDriver) -> None:
    """cuda.h 12: CUmemLocation 8, CUmemAllocationProp 32 (location at 8, the pointer at 16, the
    flags at 24), CUmemAccessDesc 12 (flags at 8); hip_runtime_api.h's end the same."""
    assert ctypes.sizeof(Location) == 8
    assert ctypes.sizeof(AllocationFlags) == 8
    assert ctypes.sizeof(AllocationProperties) == 32
    assert ctypes.sizeof(AccessDescription) == 12
    places = [
        AllocationProperties.location.offset,
        AllocationProperties.win32_handle_metadata.offset,
        AllocationProperties.flags.offset,
        AccessDescription.flags.offset,
    ]
    assert places == [8, 16, 24, 8]
    compiled = (ctypes.c_int64 * 7)()
    ctypes.CDLL(str(fake.path)).fake_sizes(compiled)
    assert list(compiled) == [8, 32, 12, *places]


HEADERS = {
    "cuda": ("nvidia/include", "cuda.h", "CU", "CUdeviceptr", "CUmemGenericAllocationHandle"),
    "hip": (
        *("amd/include", "hip/hip_runtime_api.h", "hip"),
        *("hipDeviceptr_t", "hipMemGenericAllocationHandle_t"),
    ),
}
VALUES = {
    "cuda": (
        *("CU_MEM_ALLOCATION_TYPE_PINNED", "CU_MEM_LOCATION_TYPE_DEVICE"),
        *("CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR", "CU_MEM_ACCESS_FLAGS_PROT_READWRITE"),
        "CU_MEM_ALLOC_GRANULARITY_MINIMUM",
    ),
    "hip": (
        *("hipMemAllocationTypePinned", "hipMemLocationTypeDevice"),
        *("hipMemHandleTypePosixFileDescriptor", "hipMemAccessFlagsProtReadWrite"),
        "hipMemAllocationGranularityMinimum",
    ),
}


def test_the_makers_own_headers_say_the_same(fake: FakeDriver, tmp_path: Path) -> None:
    """Triton's wheel carries both makers' headers."""
    triton = importlib.util.find_spec("triton")
    if triton is None or triton.origin is None:
        pytest.skip("needs Triton, whose wheel carries cuda.h and hip_runtime_api.h")
    folder, header, prefix, pointer, handle = HEADERS[fake.dialect]
    include = Path(triton.origin).parent / "backends" / folder
    if not (include / header).is_file():
        pytest.skip(f"this Triton carries no {header}")
    struct = {name: f"{prefix}{name}" for name in ("memLocation", "memAllocationProp")}
    if fake.dialect == "hip":
        struct = {"memLocation": "hipMemLocation", "memAllocationProp": "hipMemAllocationProp"}
    access = "CUmemAccessDesc" if fake.dialect == "cuda" else "hipMemAccessDesc"
    properties = struct["memAllocationProp"]
    asked = [
        f"sizeof({struct['memLocation']})",
        f"sizeof({properties})",
        f"sizeof({access})",
        f"offsetof({properties}, requestedHandleTypes)",
        f"offsetof({properties}, location)",
        f"offsetof({properties}, win32HandleMetaData)",
        f"offsetof({properties}, allocFlags)",
        f"offsetof({access}, flags)",
        f"sizeof({pointer})",
        f"sizeof({handle})",
        *VALUES[fake.dialect],
    ]
    source = tmp_path / "asked.cpp"
    lines = "".join(f'    printf("%lld\\n", (long long)({one}));\n' for one in asked)
    source.write_text(
        f"#include <cstddef>\n#include <cstdio>\n#include <{header}>\nint main() {{\n{lines}}}\n"
    )
    program = tmp_path / "asked"
    options = ["-D__HIP_PLATFORM_AMD__", "-w", f"-I{include}"]
    command = [str(find_compiler()), *options, str(source), "-o", str(program)]
    subprocess.run(command, check=True, capture_output=True)
    told = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    assert [int(line) for line in told.split()] == [
        ctypes.sizeof(Location),
        ctypes.sizeof(AllocationProperties),
        ctypes.sizeof(AccessDescription),
        AllocationProperties.requested_handle_types.offset,
        AllocationProperties.location.offset,
        AllocationProperties.win32_handle_metadata.offset,
        AllocationProperties.flags.offset,
        AccessDescription.flags.offset,
        *(8, 8),
        driver_memory.PINNED,
        driver_memory.ON_DEVICE,
        driver_memory.AS_DESCRIPTOR,
        driver_memory.READ_AND_WRITE,
        driver_memory.SMALLEST,
    ]


def test_sizes_are_whole_granules(fake: FakeDriver) -> None:
    driver = fake.open()
    assert driver.granule == 2 << 20
    assert [driver.rounded(size) for size in (0, 1, 2 << 20, (2 << 20) + 1)] == [
        *(2 << 20, 2 << 20, 2 << 20),
        4 << 20,
    ]


def test_memory_is_seen_at_two_places_and_given_back(fake: FakeDriver) -> None:
    memory = memory_of(fake)
    block = memory.block("test", 100)
    block.blank()
    block.write(8, flat_bytes(torch.arange(6, dtype=torch.int32)))
    region = memory.region(100, 5)
    tensor = memory.tensor(region.address + 8, torch.int32, (2, 3), (3, 1))
    region.reveal(block.descriptor, writable=True)
    assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]]
    tensor += 1
    assert block.read(8, 24).view(torch.int32).tolist() == [1, 2, 3, 4, 5, 6]
    assert block.holds(32, 60) and not block.holds(8, 24)
    assert block.holds(8, flat_bytes(tensor))
    assert fake.held == (0, 2, 2)  # handles are given up as soon as they are mapped
    del tensor
    region.release()
    block.close()


def test_a_descriptor_is_not_handed_to_what_the_process_starts(fake: FakeDriver) -> None:
    block = memory_of(fake).block("test", 1)
    assert not os.get_inheritable(block.descriptor)
    block.close()


def test_slack_moves_the_addresses(fake: FakeDriver) -> None:
    driver = fake.open()
    plain, moved = DeviceRegion(driver, 1), DeviceRegion(driver, 1, 4096 + 7)
    assert plain.address == plain._whole
    assert moved.address == moved._whole + 7 * driver.granule
    assert moved._whole_bytes == 8 * driver.granule
    plain.release()
    moved.release()


def test_another_process_maps_what_is_sent_to_it(fake: FakeDriver) -> None:
    memory = memory_of(fake)
    block = memory.block("test", 48)
    block.write(0, flat_bytes(torch.arange(12.0)))
    ours, theirs = open_pair()
    command = [sys.executable, "-c", OTHER_PROCESS, fake.dialect, str(fake.path)]
    other = subprocess.Popen(
        [*command, str(theirs.fileno())], pass_fds=(theirs.fileno(),), stderr=subprocess.PIPE
    )
    theirs.close()
    channel = Channel(ours)
    channel.send({"size": 48}, [block.descriptor])
    seen, extra = channel.receive(limit_s=60)
    assert seen["seen"] == [float(number) for number in range(12)]
    channel.receive(limit_s=60)
    close_descriptors(extra)
    _, complaint = other.communicate(timeout=60)
    assert other.returncode == 0, complaint
    assert block.read(0, 48).view(torch.float32).tolist() == [2.0 * n for n in range(12)]
    channel.close()
    block.close()


CALLS = ("MemCreate", "MemExportToShareableHandle", "MemMap", "MemSetAccess", "MemAddressReserve")


@pytest.mark.parametrize("call", [*CALLS, "MemGetAllocationGranularity", "Init"])
def test_a_refusal_names_the_call_and_leaves_nothing(
    fake: FakeDriver, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RATCHET_FAKE_REFUSES", call)
    name = driver_memory.PREFIX[fake.dialect] + call
    with pytest.raises(DriverRefusal, match=rf"^{name} refused: FAKE_NOT_SUPPORTED \(801\)$"):
        memory_of(fake).block("test", 1)


@pytest.mark.parametrize("call", ["MemImportFromShareableHandle", "MemMap", "MemSetAccess"])
def test_what_cannot_be_mapped_leaves_nothing(
    fake: FakeDriver, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = memory_of(fake)
    block, region = memory.block("test", 1), memory.region(1, 1)
    monkeypatch.setenv("RATCHET_FAKE_REFUSES", call)
    with pytest.raises(DriverRefusal):
        region.reveal(block.descriptor, writable=True)
    monkeypatch.delenv("RATCHET_FAKE_REFUSES")
    region.release()
    block.close()


def test_a_descriptor_of_something_else_is_refused(fake: FakeDriver) -> None:
    region = memory_of(fake).region(1, 0)
    readable, writable = os.pipe()
    with pytest.raises(DriverRefusal, match="INVALID_VALUE"):
        region.reveal(readable, writable=False)
    close_descriptors([readable, writable])
    region.release()


def test_a_library_without_the_calls_is_one_line(fake: FakeDriver, tmp_path: Path) -> None:
    with pytest.raises(DriverRefusal, match="has no virtual memory calls"):
        driver_memory.Driver(fake.dialect, library="libm.so.6")
    with pytest.raises(DriverRefusal, match="has no virtual memory calls"):
        driver_memory.Driver(fake.dialect, library=str(tmp_path / "no.so"))


def test_persisting_lines_are_reset_where_there_is_such_a_thing(fake: FakeDriver) -> None:
    assert fake.open().reset_persisting_cache() == (fake.dialect == "cuda")


def test_a_gpu_is_tried_before_it_is_used(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = device.Gpu(fake.accelerator.as_json())
    opened.try_sharing()
    done = opened.flush()
    assert done == {"flushed_bytes": 1 << 16, "persisting_reset": fake.dialect == "cuda"}
    monkeypatch.setenv("RATCHET_FAKE_REFUSES", "MemExportToShareableHandle")
    with pytest.raises(DriverRefusal, match="MemExportToShareableHandle refused"):
        opened.try_sharing()


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "gaps", "broadcast", "empty"])
def test_a_tensor_keeps_its_strides_and_gaps_on_a_device(fake: FakeDriver, layout: str) -> None:
    wide = torch.arange(24.0).reshape(4, 6)
    tensor = {
        "contiguous": wide,
        "transposed": wide.T,
        "gaps": wide[:, :4],
        "broadcast": wide[:1].expand(4, 6),
        "empty": wide[:0],
    }[layout]
    placed = device.Gpu(fake.accelerator.as_json()).place(tensor)
    assert placed.stride() == tensor.stride() or layout == "empty"
    assert torch.equal(placed, tensor)
    assert placed.data_ptr() != tensor.data_ptr() or layout == "empty"
    assert torch.equal(flat_bytes(placed), flat_bytes(tensor))


def test_both_memories_hold_the_same_tensors(fake: FakeDriver) -> None:
    kinds: list[Memory] = [HostMemory(), memory_of(fake)]
    for memory in kinds:
        block, region = memory.block("test", 4096), memory.region(4096, 2)
        values = flat_bytes(torch.arange(8, dtype=torch.bfloat16))
        if isinstance(block, HostBlock):
            block.fill([*filled(64, BLANK), bytes_of(values), *filled(4096 - 80, BLANK)])
        else:
            block.blank()
            block.write(64, values)
        block.finish(fixed=False)
        region.reveal(block.descriptor, writable=True)
        seen = memory.tensor(region.address + 64, torch.bfloat16, (2, 2), (4, 1))
        assert seen.tolist() == [[0.0, 1.0], [4.0, 5.0]]
        assert memory.tensor(region.address, torch.float32, (0, 3), (3, 1)).shape == (0, 3)
        assert bool(memory.tensor(region.address, torch.float32, (4,), (1,)).isnan().all())
        del seen
        region.release()
        block.close()


def test_the_driver_of_this_process_is_found_by_what_is_mapped(fake: FakeDriver) -> None:
    fake.open()
    assert str(fake.path) in driver_memory.loaded_files()
    found = driver_memory.already_loaded(fake.dialect)
    assert found.endswith(driver_memory.LIBRARIES[fake.dialect])


def test_folders_of_loaded_libraries_are_what_a_sandbox_lacks(fake: FakeDriver) -> None:
    fake.open()
    folders = device.driver_folders()
    assert str(fake.path.parent) in folders
    assert not any(f"{one}/".startswith("/usr/") for one in folders)
    assert json.dumps(folders)


def test_rocms_folder_is_shown_by_the_name_under_which_its_libraries_are_mapped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In rocm/pytorch, /opt/rocm links to a version's folder; a sandbox has /opt/rocm alone."""
    mapped = ["/opt/rocm-7.0.0/lib/libamdhip64.so.7.0.1", "/opt/rocm/lib/libhsa-runtime64.so.1"]
    monkeypatch.setattr(device, "loaded_files", lambda: mapped)
    assert device.driver_folders() == ["/opt/rocm-7.0.0/lib"]
