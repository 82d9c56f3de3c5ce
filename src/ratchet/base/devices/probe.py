"""This machine: the CPU from Linux's own files, a GPU through torch, and short hashes of both.

A result carries the fingerprints of its device and of its software.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

from ratchet.base.devices import cpuinfo
from ratchet.base.errors import DeviceError
from ratchet.base.show.words import counted

COMPILERS = ("g++", "clang++", "c++")


@dataclass(frozen=True, kw_only=True, slots=True)
class Software:
    """The versions that can change a result; empty for a package that is not installed."""

    torch: str
    triton: str
    python: str
    compiler: str

    @property
    def fingerprint(self) -> str:
        return short_hash(asdict(self))


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """The origin of a result, which may be reused if `device` and `software` are equal."""

    device: str
    software: str
    device_model: str
    versions: Software


def fingerprint(device: Device) -> Origin:
    versions = software()
    return Origin(
        device=device.fingerprint,
        software=versions.fingerprint,
        device_model=device.model,
        versions=versions,
    )


def software_fingerprint() -> str:
    """A short hash of the versions of torch, triton, Python and the C++ compiler."""
    return software().fingerprint


@functools.cache
def software() -> Software:
    """Return the installed versions, read without importing the packages."""
    return Software(
        torch=_version("torch"),
        triton=_version("triton") or _version("pytorch-triton-rocm"),
        python=platform.python_version(),
        compiler=compiler_version(),
    )


def compiler() -> str | None:
    """Return the path of the C++ compiler: RATCHET_CXX, CXX or the first of COMPILERS."""
    names = (os.environ.get("RATCHET_CXX"), os.environ.get("CXX"), *COMPILERS)
    return next((path for name in names if name and (path := shutil.which(name))), None)


@functools.cache
def compiler_version() -> str:
    """Return the first line of the C++ compiler's --version; empty without a compiler."""
    path = compiler()
    if path is None:
        return ""
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.partition("\n")[0].strip()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def short_hash(content: Mapping[str, object]) -> str:
    """Return the first 16 hex digits of the SHA-256 of the content's JSON."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


LOG = logging.getLogger(__name__)

Kind = Literal["cpu", "cuda"]
Isa = Literal["amx", "avx512_bf16", "avx512", "avx2", "portable"]

HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Variables that hide GPUs from torch."""
AVX512 = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One CPU or one GPU, as a program sees it."""

    kind: Kind  # torch's name: ROCm devices are `cuda` too
    vendor: str
    model: str
    cores: int  # Physical cores this process may use; compute units or SMs on a GPU
    threads: int  # Logical CPUs this process may use; the same as `cores` on a GPU
    isa: tuple[str, ...]  # SIMD and matrix flags that Ratchet uses, of a CPU; the target of a GPU
    caches_bytes: dict[str, int] = field(default_factory=dict)
    """Size of one instance of each data cache: l1d, l2, l3."""
    cache_instances: dict[str, int] = field(default_factory=dict)
    """Number of instances of each cache on the usable cores."""
    memory_bytes: int = 0
    index: int = 0
    runtime: str = ""  # `rocm 7.2` or `cuda 13.0` on a GPU

    @property
    def torch_name(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"

    @property
    def target(self) -> str:
        """`gfx942` or `sm_90` on a GPU, the best ISA of a CPU."""
        return best_isa(self) if self.kind == "cpu" else "".join(self.isa[:1])

    @property
    def fingerprint(self) -> str:
        """A short hash that stays the same on the same machine; memory counts in whole GiB."""
        return short_hash(
            {
                "kind": self.kind,
                "vendor": self.vendor,
                "model": self.model,
                "cores": self.cores,
                "threads": self.threads,
                "isa": self.isa,
                "caches": self.caches_bytes,
                "memory_gib": round(self.memory_bytes / 2**30),
            }
        )


def probe(device: str = "auto") -> Device:
    """Describe a device: `auto` (a GPU if torch sees one), `cpu`, `cuda` or `cuda:N`.

    DeviceError for any other name, and for a GPU that is missing.
    """
    kind, _, index = device.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (index and (kind != "cuda" or not index.isdigit())):
        raise DeviceError(f"no device {device!r}: use auto, cpu, cuda or cuda:N")
    if kind == "auto":
        kind = "cuda" if _gpu_count() else "cpu"
    return _cpu() if kind == "cpu" else _gpu(int(index or 0))


def describe_device(device: Device) -> dict[str, object]:
    """The device as plain JSON, with its target and its fingerprint."""
    return {**asdict(device), "target": device.target, "fingerprint": device.fingerprint}


def level_bytes(device: Device) -> dict[str, int]:
    """Return the total size of each cache level but L1: it is too small to time through torch."""
    return {
        name: size * device.cache_instances.get(name, 1)
        for name, size in sorted(device.caches_bytes.items())
        if name != "l1d"
    }


def best_isa(device: Device | None = None) -> Isa:
    """Return the widest instruction set that kernels may use, from a CPU's flags."""
    flags = frozenset((device or _cpu()).isa)
    if not flags >= AVX512:
        return "avx2" if flags >= {"avx2", "fma"} else "portable"
    if flags >= {"amx_tile", "amx_bf16"}:
        return "amx"
    return "avx512_bf16" if "avx512_bf16" in flags else "avx512"


def _cpu() -> Device:
    # The number of usable CPUs may change (taskset), so it is part of the cache's key.
    return _cpu_on(tuple(sorted(cpuinfo.usable_cpus())))


@functools.cache
def _cpu_on(cpus: tuple[int, ...]) -> Device:
    info = cpuinfo.read()
    caches = cpuinfo.data_caches(cpus)
    if not info.model:
        LOG.warning("the CPU reports no model name: results are stored under 'unknown'")
    return Device(
        kind="cpu",
        vendor=info.vendor or "unknown",
        model=info.model or "unknown",
        cores=cpuinfo.physical_cores(cpus),
        threads=len(cpus),
        isa=cpuinfo.usable_flags(info.flags),
        caches_bytes={cache.name: cache.size_bytes for cache in caches},
        cache_instances={cache.name: cache.instances for cache in caches},
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    )


def _gpu_count() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def how_to_see_more(count: int) -> str:
    """Return what lets torch see a GPU, or more than `count` of them, as a clause."""
    import torch

    if not (torch.version.cuda or torch.version.hip):
        return "install a ROCm or CUDA build of torch"
    for name in HIDING:
        if (value := os.environ.get(name)) is not None:
            return f"unset {name}={value!r}, which hides the others"
    if count:
        return "name one of those"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:  # such as a driver older than torch's
        said = " ".join(str(error).split()).partition(". ")[0]
        return f"mend this: {said}"
    return "check that the driver is loaded"


def _gpu(index: int) -> Device:
    import torch

    count = _gpu_count()
    if index >= count:
        raise DeviceError(
            f"cuda:{index} is not available: torch {torch.__version__} sees "
            f"{counted(count, 'GPU')}; use cpu, or {how_to_see_more(count)}"
        )
    properties = torch.cuda.get_device_properties(index)
    rocm = torch.version.hip
    # The same torch.cuda calls serve both vendors; only the target's name differs.
    target = (
        str(properties.gcnArchName).partition(":")[0]
        if rocm
        else f"sm_{properties.major}{properties.minor}"
    )
    level_two = int(getattr(properties, "L2_cache_size", 0))
    return Device(
        kind="cuda",
        vendor="AMD" if rocm else "NVIDIA",
        model=str(properties.name),
        cores=int(properties.multi_processor_count),
        threads=int(properties.multi_processor_count),
        isa=(target,),
        caches_bytes={"l2": level_two} if level_two else {},
        cache_instances={"l2": 1} if level_two else {},
        memory_bytes=int(properties.total_memory),
        index=index,
        runtime=f"rocm {rocm}" if rocm else f"cuda {torch.version.cuda}",
    )
