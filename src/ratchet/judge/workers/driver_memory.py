"""A GPU's memory that several processes see: the driver's virtual memory calls, by ctypes.

CUDA's and HIP's functions and structs differ only in their names (CUmemAllocationProp,
CUmemLocation and CUmemAccessDesc of NVIDIA's cuda.h since CUDA 10.2; hipMemAllocationProp,
hipMemLocation and hipMemAccessDesc of AMD's hip_runtime_api.h since ROCm 5.6). Another process maps
physical memory through a file descriptor. Legacy IPC handles do not cross a sandbox's namespaces.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_int, c_size_t, c_ubyte, c_uint64, c_ulonglong, c_ushort, c_void_p
from typing import Any, Final, Literal

from ratchet.base.errors import JudgeError

Dialect = Literal["cuda", "hip"]
PREFIX: Final[dict[Dialect, str]] = {"cuda": "cu", "hip": "hip"}
LIBRARIES: Final[dict[Dialect, str]] = {"cuda": "libcuda.so.1", "hip": "libamdhip64.so"}
PINNED, ON_DEVICE, AS_DESCRIPTOR, READ_AND_WRITE = 1, 1, 1, 3
"""CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE,
CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR and CU_MEM_ACCESS_FLAGS_PROT_READWRITE; HIP's values of
the same names are equal."""
SMALLEST: Final = 0  # CU_MEM_ALLOC_GRANULARITY_MINIMUM, hipMemAllocationGranularityMinimum
HIP_TAKES_VALUE: Final = 70_100_000
"""Since HIP 7.1 hipMemImportFromShareableHandle takes the descriptor itself, as CUDA does. Before,
it took a pointer to it (ROCm/rocm-systems#759, #11020). The version is 10^7 major + 10^5 minor."""
MOST_SLACK: Final = 64
OUT_OF_MEMORY: Final = 2  # CUDA_ERROR_OUT_OF_MEMORY and hipErrorOutOfMemory
MORE_MEMORY: Final = "other work holds the GPU's memory: free it, or name another with --device"


class Location(ctypes.Structure):
    """CUmemLocation: 8 bytes."""

    _fields_ = (("type", c_int), ("id", c_int))


class AllocationFlags(ctypes.Structure):
    """The last member of CUmemAllocationProp: 8 bytes."""

    _fields_ = (
        ("compression_type", c_ubyte),
        ("gpu_direct_rdma_capable", c_ubyte),
        ("usage", c_ushort),
        ("reserved", c_ubyte * 4),
    )


class AllocationProperties(ctypes.Structure):
    """CUmemAllocationProp: 32 bytes."""

    _fields_ = (
        ("type", c_int),
        ("requested_handle_types", c_int),
        ("location", Location),
        ("win32_handle_metadata", c_void_p),
        ("flags", AllocationFlags),
    )


class AccessDescription(ctypes.Structure):
    """CUmemAccessDesc: 12 bytes."""

    _fields_ = (("location", Location), ("flags", c_int))


ARGUMENTS: Final[dict[str, tuple[Any, ...]]] = {
    "MemGetAllocationGranularity": (POINTER(c_size_t), POINTER(AllocationProperties), c_int),
    "MemCreate": (POINTER(c_uint64), c_size_t, POINTER(AllocationProperties), c_ulonglong),
    "MemExportToShareableHandle": (c_void_p, c_uint64, c_int, c_ulonglong),
    "MemImportFromShareableHandle": (POINTER(c_uint64), c_void_p, c_int),
    "MemAddressReserve": (POINTER(c_uint64), c_size_t, c_size_t, c_uint64, c_ulonglong),
    "MemMap": (c_uint64, c_size_t, c_size_t, c_uint64, c_ulonglong),
    "MemSetAccess": (c_uint64, c_size_t, POINTER(AccessDescription), c_size_t),
    "MemUnmap": (c_uint64, c_size_t),
    "MemRelease": (c_uint64,),
    "MemAddressFree": (c_uint64, c_size_t),
}
"""Handles and device pointers have eight bytes in both; HIP declares them as pointers."""


class DriverRefusal(JudgeError):
    """A driver refused a call; the message names the call and the driver's error."""


class NoDeviceMemory(DriverRefusal):
    """A driver refused memory, because too little of it is free."""


class Driver:
    """The memory of one device through its driver. Every failed call raises DriverRefusal."""

    def __init__(self, dialect: Dialect, *, index: int = 0, library: str = "") -> None:
        """Load the driver, or that at `library`, and initialise it."""
        self.dialect = dialect
        path = library or already_loaded(dialect) or LIBRARIES[dialect]
        try:
            self._library = ctypes.CDLL(path)
            self._calls = {name: self._function(name, types) for name, types in ARGUMENTS.items()}
            self._call_plain("Init", 0)
        except (OSError, AttributeError) as error:
            raise DriverRefusal(f"{path} has no virtual memory calls: {error}") from error
        self._by_value = dialect == "cuda" or self._version() >= HIP_TAKES_VALUE
        self._properties = AllocationProperties(
            type=PINNED,
            requested_handle_types=AS_DESCRIPTOR,
            location=Location(type=ON_DEVICE, id=index),
        )
        self._access = AccessDescription(
            location=Location(type=ON_DEVICE, id=index), flags=READ_AND_WRITE
        )
        granule = c_size_t()
        self._call(
            "MemGetAllocationGranularity",
            ctypes.byref(granule),
            ctypes.byref(self._properties),
            SMALLEST,
        )
        if granule.value <= 0:
            raise DriverRefusal(f"{path} names a granularity of {granule.value} bytes")
        self.granule = granule.value

    def rounded(self, size_bytes: int) -> int:
        """Return the smallest size that can be allocated and mapped for this many bytes."""
        return max(1, -(-size_bytes // self.granule)) * self.granule

    def create(self, size_bytes: int) -> int:
        """Allocate physical memory of a rounded size; return its handle."""
        handle = c_uint64()
        self._call("MemCreate", ctypes.byref(handle), size_bytes, ctypes.byref(self._properties), 0)
        return handle.value

    def export(self, handle: int) -> int:
        """Return a descriptor of the memory for any process; it belongs to the caller."""
        descriptor = c_int(-1)
        self._call("MemExportToShareableHandle", ctypes.byref(descriptor), handle, AS_DESCRIPTOR, 0)
        if descriptor.value < 0:
            raise DriverRefusal(f"{self._name('MemExportToShareableHandle')} gave no descriptor")
        os.set_inheritable(descriptor.value, False)
        return descriptor.value

    def imported(self, descriptor: int) -> int:
        """Return a handle of this process for the memory behind a descriptor."""
        handle, held = c_uint64(), c_int(descriptor)
        given = c_void_p(descriptor) if self._by_value else ctypes.byref(held)
        self._call("MemImportFromShareableHandle", ctypes.byref(handle), given, AS_DESCRIPTOR)
        return handle.value

    def release(self, handle: int) -> None:
        """Release a handle. Mappings and open descriptors keep the memory."""
        self._call("MemRelease", handle)

    def reserve(self, size_bytes: int) -> int:
        address = c_uint64()
        self._call("MemAddressReserve", ctypes.byref(address), size_bytes, 0, 0, 0)
        return address.value

    def free(self, address: int, size_bytes: int) -> None:
        """Free reserved addresses; nothing may be mapped there."""
        self._call("MemAddressFree", address, size_bytes)

    def map(self, address: int, size_bytes: int, handle: int) -> None:
        """Map memory at reserved addresses, for the device to read and write."""
        self._call("MemMap", address, size_bytes, 0, handle, 0)
        try:
            self._call("MemSetAccess", address, size_bytes, ctypes.byref(self._access), 1)
        except DriverRefusal:
            self.unmap(address, size_bytes)
            raise

    def unmap(self, address: int, size_bytes: int) -> None:
        self._call("MemUnmap", address, size_bytes)

    def reset_persisting_cache(self) -> bool:
        """Make persisting lines of L2 ordinary ones; return False if the driver has none."""
        reset = getattr(self._library, "cuCtxResetPersistingL2Cache", None)
        return reset is not None and reset() == 0

    def _function(self, name: str, types: Sequence[Any]) -> Callable[..., int]:
        found = self._library[self._name(name)]
        found.argtypes, found.restype = types, c_int
        return found

    def _name(self, name: str) -> str:
        return PREFIX[self.dialect] + name

    def _call(self, name: str, *given: object) -> None:
        self._check(name, self._calls[name](*given))

    def _call_plain(self, name: str, *given: object) -> None:
        self._check(name, getattr(self._library, self._name(name))(*given))

    def _check(self, name: str, code: int) -> None:
        if code == 0:
            return
        word = self._word(code)
        refusal = f"{self._name(name)} refused: {word}"
        if code == OUT_OF_MEMORY:
            raise NoDeviceMemory(f"{refusal}; {MORE_MEMORY}")
        raise DriverRefusal(refusal)

    def _word(self, code: int) -> str:
        """Return the driver's name of an error, such as CUDA_ERROR_NOT_SUPPORTED."""
        word: bytes | None
        try:
            if self.dialect == "hip":
                self._library.hipGetErrorName.restype = ctypes.c_char_p
                word = self._library.hipGetErrorName(code)
            else:
                text = ctypes.c_char_p()
                self._library.cuGetErrorName(code, ctypes.byref(text))
                word = text.value
        except AttributeError:
            word = None
        return f"error {code}" if word is None else f"{word.decode(errors='replace')} ({code})"

    def _version(self) -> int:
        version = c_int()
        self._call_plain("RuntimeGetVersion", ctypes.byref(version))
        return version.value


class DeviceRegion:
    """A reserved range of a device's addresses, inside a larger one so it cannot be foreseen."""

    def __init__(self, driver: Driver, size_bytes: int, slack: int = 0) -> None:
        self._driver = driver
        self.size_bytes = driver.rounded(size_bytes)
        before = slack % MOST_SLACK * driver.granule
        self._whole_bytes = before + self.size_bytes
        self._whole = driver.reserve(self._whole_bytes)
        self.address = self._whole + before
        self._mapped = False

    def reveal(self, descriptor: int, *, writable: bool) -> None:
        """Map the memory behind `descriptor` here. A device can write whatever it can read."""
        handle = self._driver.imported(descriptor)
        try:
            self.hold(handle)
        finally:
            self._driver.release(handle)

    def hold(self, handle: int) -> None:
        """Map memory of this process here."""
        self._driver.map(self.address, self.size_bytes, handle)
        self._mapped = True

    def release(self) -> None:
        """Unmap the memory and free the addresses. The device must be idle."""
        if self._mapped:
            self._driver.unmap(self.address, self.size_bytes)
            self._mapped = False
        self._driver.free(self._whole, self._whole_bytes)


def already_loaded(dialect: Dialect) -> str:
    """Return the driver's file in this process, or "": a second copy would be another driver."""
    stem = LIBRARIES[dialect].split(".so")[0] + ".so"
    return next((path for path in loaded_files() if os.path.basename(path).startswith(stem)), "")


def loaded_files() -> list[str]:
    """Return every file that is mapped into this process, once."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        fields = [line.rstrip("\n").split(maxsplit=5) for line in file]
    return list(dict.fromkeys(f[5] for f in fields if len(f) == 6 and f[5].startswith("/")))
