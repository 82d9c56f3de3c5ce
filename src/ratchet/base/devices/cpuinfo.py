"""The CPU as Linux describes it in /proc and /sys; on other systems, as Python describes it.

A missing file means a missing fact, never an error: a container may hide any of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
CPUS = Path("/sys/devices/system/cpu")
STAT = Path("/proc/stat")

KNOWN_FLAGS = (
    *("sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni"),
    *("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_bf16", "amx_int8", "amx_fp16"),
    *("asimd", "asimddp", "sve", "sve2", "bf16", "i8mm", "sme"),
)

# Linux arch/x86/include/uapi/asm/prctl.h, and Documentation/arch/x86/xstate.rst: tile data is
# feature 18, and a process must ask for it before its first AMX instruction.
SYS_ARCH_PRCTL = 158
ARCH_REQ_XCOMP_PERM = 0x1023
XFEATURE_XTILEDATA = 18

MULTIPLES = {"K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuInfo:
    vendor: str
    model: str
    flags: frozenset[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cache:
    """A data or unified cache: the size of one instance, and their number on the usable CPUs."""

    name: str
    size_bytes: int
    instances: int


def read(path: Path = CPUINFO) -> CpuInfo:
    """Vendor, model name and flags; empty if the system does not report them."""
    fields: dict[str, str] = {}
    for line in _text(path).splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    vendors = {"AuthenticAMD": "AMD", "GenuineIntel": "Intel"}
    vendor = fields.get("vendor_id", "")
    name = fields.get("model name", "")
    # Virtual machines call every EPYC the same: only the family and the model tell them apart.
    family, model, stepping = (fields.get(key, "") for key in ("cpu family", "model", "stepping"))
    if family:
        name = f"{name} (family {family}, model {model}, stepping {stepping})"
    return CpuInfo(
        vendor=vendors.get(vendor, vendor),
        model=name or platform.processor() or platform.machine(),
        flags=frozenset((fields.get("flags") or fields.get("Features", "")).split()),
    )


def usable_flags(flags: frozenset[str]) -> tuple[str, ...]:
    """Return the flags that Ratchet uses, without AMX if the Linux kernel does not permit it."""
    amx = "amx_tile" in flags and amx_permitted()
    return tuple(
        flag for flag in KNOWN_FLAGS if flag in flags and (amx or not flag.startswith("amx_"))
    )


@functools.cache
def amx_permitted() -> bool:
    """Ask the Linux kernel for AMX tiles; False if it refuses or does not know them.

    Call this only if the CPU has the flags. The permission holds for this process and its children.
    """
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    arguments = (SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
    return int(libc.syscall(*(ctypes.c_long(argument) for argument in arguments))) == 0


def usable_cpus() -> frozenset[int]:
    """Logical CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def physical_cores(cpus: tuple[int, ...], root: Path = CPUS) -> int:
    """Return the number of cores of these logical CPUs; their own number if the system hides it."""
    siblings = {
        _text(root / f"cpu{cpu}" / "topology" / "thread_siblings_list") or str(cpu) for cpu in cpus
    }
    return len(siblings)


def data_caches(cpus: tuple[int, ...], root: Path = CPUS) -> tuple[Cache, ...]:
    sizes: dict[str, int] = {}
    shared: dict[str, set[str]] = {}
    for cpu in cpus:
        for entry in sorted((root / f"cpu{cpu}" / "cache").glob("index*")):
            kind, level = _text(entry / "type"), _text(entry / "level")
            size = _size_bytes(_text(entry / "size"))
            if kind in ("Data", "Unified") and size:
                name = "l1d" if level == "1" else f"l{level}"
                sizes[name] = size
                shared.setdefault(name, set()).add(_text(entry / "shared_cpu_list") or str(cpu))
    return tuple(
        Cache(name=name, size_bytes=sizes[name], instances=len(shared[name]))
        for name in sorted(sizes)
    )


class OthersUse:
    """The use of some CPUs by other processes, from the moment that this is made."""

    def __init__(self, cpus: frozenset[int] | None = None, stat: Path = STAT) -> None:
        self._cpus, self._stat = usable_cpus() if cpus is None else cpus, stat
        self._before = self._seen()

    def share(self) -> float | None:
        """Return the share of the CPUs' time, from 0 to 1, that others took; None if unknown.

        A hypervisor's other guests count; this process's own children count once they have ended.
        """
        after = self._seen()
        if after is None or self._before is None:
            return None
        (began_s, all_s, own_s), (now_s, all_after_s, own_after_s) = self._before, after
        there_s = (now_s - began_s) * len(self._cpus)
        others_s = all_after_s - all_s - (own_after_s - own_s)
        return min(1.0, max(0.0, others_s / there_s)) if there_s > 0 else None

    def _seen(self) -> tuple[float, float, float] | None:
        """Return the time now, and the seconds of work of these CPUs and of this process."""
        ticks = 0
        lines = {
            head: rest for head, *rest in map(str.split, _text(self._stat).splitlines()) if rest
        }
        for cpu in self._cpus:
            # proc(5): user, nice, system, idle, iowait, irq, softirq, steal; guests are in user.
            found = lines.get(f"cpu{cpu}", [])[:8]
            if len(found) < 8 or not all(one.isdigit() for one in found):
                return None
            ticks += sum(int(one) for at, one in enumerate(found) if at not in (3, 4))
        own = os.times()
        own_s = own.user + own.system + own.children_user + own.children_system
        return time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"), own_s


def _size_bytes(text: str) -> int:
    digits, multiple = text.rstrip("KMG"), MULTIPLES.get(text[-1:], 1)
    return int(digits) * multiple if digits.isdigit() else 0


def _text(path: Path) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text().strip()
    return ""
