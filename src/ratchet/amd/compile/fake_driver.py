"""A driver for Triton that records launches instead of running them, in a candidate's sandbox.

Triton compiles through it as on the GPU that it names: the limits on shared memory, the autotuner
and the grid are real, but no kernel runs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ratchet.amd.architectures import Architecture, clocks_of
from ratchet.base.process.channel import Message

if TYPE_CHECKING:
    import torch

MAX_CONFIGS = 24  # configurations that autotuners may compile; the rest is only counted
MAX_LAUNCHES = 2000
MAX_TEXT_BYTES = 4 << 20
KEPT_TEXTS = ("amdgcn", "ttir", "ptx")


class FakeDriver:
    """Replaces `triton.runtime.driver.active`; records `launches` and `kernels`."""

    def __init__(self, architecture: Architecture, *, units: int) -> None:
        self.architecture = architecture
        self._files: dict[str, dict[str, str]] = {}
        """The files of each kernel that Triton compiled, by the kernel's hash."""
        self.launches: list[Message] = []
        self.kernels: dict[str, Message] = {}
        self.skipped_configs = 0
        self.tuning = False
        self.utils = _Utils(self, units)

    def install(self) -> None:
        """Make Triton compile and launch through this driver, in this whole process."""
        import triton
        import triton.testing

        triton.knobs.compilation.listener = self.keep_files
        triton.runtime.driver.set_active(self)
        triton.testing.do_bench = triton.testing.do_bench_cudagraph = self.benchmark
        # Triton caches a device's limit on shared memory: all targets would have the first one's.
        triton.compiler.compiler.max_shared_mem.cache_clear()

    def keep_files(
        self, *, metadata: Mapping[str, str], metadata_group: dict[str, str], **_: object
    ) -> None:
        """Listen to Triton's compiler."""
        self._files[metadata["hash"]] = dict(metadata_group)

    def texts_of(self, digest: str) -> dict[str, str]:
        """Return the assembly and the first intermediate form of a kernel, by file ending."""
        found = {}
        for name, path in self._files.get(digest, {}).items():
            ending = name.rpartition(".")[2]
            if ending in KEPT_TEXTS:
                found[ending] = Path(path).read_text(errors="replace")[:MAX_TEXT_BYTES]
        return found

    def launcher_cls(self, source: object, metadata: object) -> Callable[..., None]:
        return Launcher(self, source, metadata)

    def get_current_target(self) -> object:
        """Return the GPU that Triton compiles for."""
        from triton.backends.compiler import GPUTarget

        name, lanes = self.architecture.name, self.architecture.wavefront_size
        if self.architecture.backend == "hip":
            return GPUTarget("hip", name, lanes)
        return GPUTarget("cuda", int(name.removeprefix("sm_")), lanes)

    def get_benchmarker(self) -> Callable[..., float | list[float]]:
        """Return the function with which an autotuner times a configuration."""
        return self.benchmark

    def benchmark(
        self,
        call: Callable[[], object],
        *_: object,
        quantiles: Sequence[float] | None = None,
        **__: object,
    ) -> float | list[float]:
        """Return a call's "time", as autotuners and programs ask Triton for it."""
        time = self.time(call)
        return time if quantiles is None else [time] * len(quantiles)

    def time(self, call: Callable[[], object]) -> float:
        """Compile an autotuner's configuration; return its scratch memory as its "time".

        So an autotuner keeps the first configuration that spills nothing.
        """
        if sum(one["tuning"] for one in self.launches) >= MAX_CONFIGS:
            self.skipped_configs += 1
            return math.inf
        self.tuning = True
        try:
            call()
        finally:
            self.tuning = False
        last = self.launches[-1] if self.launches else None
        return 1.0 + (0 if last is None else self.kernels[last["kernel"]]["scratch_bytes"])

    def is_active(self) -> bool:
        return True

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, _: int) -> None:
        """Do nothing."""

    def get_current_stream(self, _: object = None) -> int:
        return 0

    def get_device_capability(self, *_: object) -> tuple[int, int]:
        """Return the capability as torch.cuda does: gfx942 is (9, 4), sm_90 is (9, 0)."""
        return capability(self.architecture)

    def get_active_torch_device(self) -> torch.device:
        """Return `cuda`, which is torch's name for HIP devices too."""
        import torch

        return torch.device("cuda", 0)

    def get_device_interface(self) -> ModuleType:
        """Return torch.cuda, as `torch_cuda` replaced it."""
        import torch

        return torch.cuda

    def get_empty_cache_for_benchmark(self) -> None:
        """Return None: there is no cache to flush."""

    def clear_cache(self, _: object) -> None:
        """Do nothing."""

    def assemble_tensormap_to_arg(self, _: object, args: object) -> object:
        return args


class Launcher:
    """Records the grid and the arguments of a launch."""

    def __init__(self, driver: FakeDriver, source: Any, metadata: Any) -> None:
        self._driver = driver
        self._signature = [str(kind) for kind in source.signature.values()]
        self._key = f"{metadata.name}-{metadata.hash}"
        if self._key not in driver.kernels:
            texts = driver.texts_of(metadata.hash)
            driver.kernels[self._key] = _describe(source, metadata, texts)
        driver.utils.registers = driver.kernels[self._key]["registers"]

    def __call__(self, *given: Any) -> None:
        """Take grid x, y, z, stream, function, two metadata, two hooks, arguments."""
        if len(self._driver.launches) >= MAX_LAUNCHES:
            raise RuntimeError(f"more than {MAX_LAUNCHES} launches in one call of the entry")
        arguments = [
            _argument(value)
            for value, kind in zip(given[9:], self._signature, strict=False)
            if kind != "constexpr"
        ]
        self._driver.launches.append(
            {
                "kernel": self._key,
                "grid": [int(size) for size in given[:3]],
                "arguments": arguments,
                "tuning": self._driver.tuning,
            }
        )


class _Utils:
    """The part of the driver's C library that Triton uses."""

    def __init__(self, driver: FakeDriver, units: int) -> None:
        self._driver = driver
        self._units = units
        self.registers = 0

    def load_binary(self, name: str, *_: object) -> tuple[object, str, int, int, int]:
        """Return module, function, registers, spills, threads of the largest workgroup."""
        return object(), name, self.registers, 0, 1024

    def get_device_properties(self, _: object = 0) -> dict[str, object]:
        """Return all that Triton's driver for AMD tells."""
        one = self._driver.architecture
        clocks = clocks_of(one)
        return {
            "arch": one.name,
            "max_shared_mem": one.lds_bytes_per_workgroup,
            "max_num_regs": one.vgprs_per_lane * one.wavefront_size * one.simds_per_unit,
            "multiprocessor_count": self._units,
            "sm_clock_rate": clocks.engine_khz,
            "mem_clock_rate": clocks.memory_khz,
            "mem_bus_width": clocks.bus_bits,
            "warpSize": one.wavefront_size,
            "max_threads_per_sm": one.max_waves_per_simd * one.simds_per_unit * one.wavefront_size,
            "cooperativeLaunch": 1,
        }


def capability(architecture: Architecture) -> tuple[int, int]:
    """Return the major and minor version as torch.cuda does."""
    digits = architecture.name.removeprefix("gfx").removeprefix("sm_")
    if architecture.backend == "cuda":
        return int(digits[:-1]), int(digits[-1])
    return int(digits[:-2]), int(digits[-2])


def _describe(source: Any, metadata: Any, texts: dict[str, str]) -> Message:
    names = list(getattr(source.fn, "arg_names", ()))
    constants = {_name(names, key): _plain(value) for key, value in source.constants.items()}
    assembly = texts.get("amdgcn", "")
    return {
        "name": str(metadata.name),
        "num_warps": int(metadata.num_warps),
        "num_stages": int(metadata.num_stages),
        "shared_bytes": int(metadata.shared),
        "signature": {_name(names, key): str(kind) for key, kind in source.signature.items()},
        "constants": constants,
        "registers": assembly_number(assembly, "vgpr_count"),
        "scratch_bytes": assembly_number(assembly, "private_segment_fixed_size"),
        "texts": texts,
    }


def _name(names: Sequence[str], key: object) -> str:
    place = key[0] if isinstance(key, tuple) and len(key) == 1 else key
    return names[place] if isinstance(place, int) and place < len(names) else str(place)


def _plain(value: object) -> object:
    plain = value is None or isinstance(value, (bool, int, float, str))
    return value if plain else str(value)[:200]


def assembly_number(assembly: str, key: str) -> int:
    """Return a number of the kernel's description in assembly; 0 if it has none."""
    found = re.search(rf"\.{key}:\s*(\d+)", assembly)
    return int(found.group(1)) if found else 0


def _argument(value: Any) -> object:
    """Return a scalar unchanged; a tensor as its bytes without repeats, and its place."""
    if isinstance(value, (bool, int, float)) or value is None:
        return value
    base = getattr(value, "base", value)  # a host-side tensor descriptor
    if not hasattr(base, "untyped_storage"):
        return None
    sizes = zip(base.shape, base.stride(), strict=True)
    elements = math.prod(int(size) for size, stride in sizes if stride != 0)
    place = [int(base.data_ptr()), [int(size) for size in base.shape]]
    return {"bytes": elements * base.element_size(), "place": place}
