"""The GPUs that kernels are compiled for, and what one of their compute units can hold.

AMD's limits are those of LLVM (llvm/lib/Target/AMDGPU/Utils/AMDGPUBaseInfo.cpp, IsaInfo, LLVM 20),
which the occupancy in its assembly follows. Sizes of the LDS are also in ROCm's
docs/reference/gpu-specs.rst.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from ratchet.base.errors import KernelError

Backend = Literal["hip", "cuda"]
MEMORY_BYTES: Final = 64 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """One compiler target. A "unit" is the hardware that the waves of a workgroup share."""

    name: str
    backend: Backend
    wavefront_size: int
    max_waves_per_simd: int
    simds_per_unit: int
    """CDNA: the four of a compute unit. RDNA: the four of a work-group processor."""
    vgprs_per_lane: int  # registers that the waves of one SIMD share, per lane
    vgpr_granule: int
    lds_bytes_per_unit: int
    lds_bytes_per_workgroup: int
    max_workgroups_per_unit: int  # workgroups of more than one wave, which need a barrier each


@dataclass(frozen=True, kw_only=True, slots=True)
class Clocks:
    """The clocks and caches of a target's largest device, one logical device of it.

    Source: the catalogue (devices/data/hardware.csv), which a test compares. Programs take twice
    the memory's clock times the bus for the bandwidth (`triton.testing.get_dram_gbps`), so the
    clock told is the one that gives the catalogue's.
    """

    engine_khz: int
    memory_khz: int
    bus_bits: int
    l2_bytes: int  # as HIP tells it: of one die on MI300 and MI350


CLOCKS: Final = {
    "gfx90a": Clocks(engine_khz=1_700_000, memory_khz=1_600_000, bus_bits=4096, l2_bytes=8 << 20),
    "gfx942": Clocks(engine_khz=2_100_000, memory_khz=2_587_891, bus_bits=8192, l2_bytes=4 << 20),
    "gfx950": Clocks(engine_khz=2_400_000, memory_khz=3_906_250, bus_bits=8192, l2_bytes=4 << 20),
    "gfx1100": Clocks(engine_khz=2_500_000, memory_khz=10_000_000, bus_bits=384, l2_bytes=6 << 20),
    "gfx1201": Clocks(engine_khz=2_970_000, memory_khz=10_000_000, bus_bits=256, l2_bytes=8 << 20),
}


def clocks_of(architecture: Architecture) -> Clocks:
    """Return a target's clocks; those of an MI300X for a target that is not AMD's."""
    return CLOCKS.get(architecture.name, CLOCKS["gfx942"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Rates that the clock needs of a target: caches, in bytes and engine cycles, of one die.

    Sizes: ROCm's docs/reference/gpu-specs.rst. Lines and bytes per cycle: the white papers "AMD
    CDNA 2 Architecture", "AMD CDNA 3 Architecture" and "RDNA Architecture", and ROCm's page of the
    MI300's microarchitecture (L1 64 bytes per cycle and compute unit, L2 128 per channel: 32
    channels on an MI200's die, 16 on an XCD; Infinity Cache 17.2 TB/s over 8 XCDs). A load's
    latency: LLVM's SISchedule.td (WriteVMEM: 320 cycles), taken for L2; RDNA 3's Infinity Cache:
    150 ns (chipsandcheese.com, "Latency Testing is Hard"). Latencies of L1, LDS, CDNA's Infinity
    Cache and memory have no source here: they are assumed. Vector instructions: SISchedule.td.
    """

    l1_bytes: int
    l1_line: int
    l1_bytes_per_cycle: float
    l2_bytes: int
    l2_bytes_per_cycle: float
    mall_bytes: int = 0  # the Infinity Cache
    mall_bytes_per_cycle: float = 0.0
    l1_latency: int = 120  # assumed
    l2_line: int = 128
    l2_latency: int = 320
    mall_latency: int = 500  # assumed
    memory_latency: int = 800  # assumed
    memory_share: float = 0.8
    """Share of the memory's bandwidth: BabelStream on an MI300X (hardware.csv: 0.77)."""
    code_bytes: int = 64 << 10
    code_line: int = 64
    lds_latency: int = 64  # assumed
    lds_bytes_per_cycle: float = 128.0
    address_cycles: int = 4  # 16 lanes' addresses in a cycle
    vector_latency: int = 4
    has_slow_conversions: bool = True  # WriteFloatCvt: a quarter of the rate
    has_slow_products: bool = False  # WriteIntMul


_RADEON: Final = Rates(
    l1_bytes=32 << 10, l1_line=128, l1_bytes_per_cycle=128.0, l2_bytes=6 << 20,
    l2_bytes_per_cycle=2048.0, mall_bytes=96 << 20, mall_bytes_per_cycle=1024.0, mall_latency=375,
    code_bytes=32 << 10, code_line=128, address_cycles=1, vector_latency=5,
    has_slow_conversions=False, has_slow_products=True,
)  # fmt: skip
_MI300: Final = Rates(
    l1_bytes=32 << 10, l1_line=128, l1_bytes_per_cycle=64.0, l2_bytes=4 << 20,
    l2_bytes_per_cycle=2048.0, mall_bytes=256 << 20, mall_bytes_per_cycle=1024.0,
)  # fmt: skip
RATES: Final = {
    "gfx90a": Rates(
        l1_bytes=16 << 10, l1_line=64, l1_bytes_per_cycle=64.0, l2_bytes=8 << 20,
        l2_bytes_per_cycle=4096.0, code_bytes=32 << 10,
    ),
    "gfx942": _MI300,
    "gfx950": _MI300,
    "gfx1100": _RADEON,
    "gfx1201": replace(_RADEON, l2_bytes=8 << 20, mall_bytes=64 << 20),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class PretendedDevice:
    """A GPU as a program is told about it."""

    architecture: Architecture
    name: str
    units: int = 1  # compute units
    memory_bytes: int = MEMORY_BYTES

    @classmethod
    def of(cls, target: str, told: Mapping[str, Any]) -> PretendedDevice:
        """Return a target's device; what nobody told has the target's name, and one unit."""
        return cls(architecture=ARCHITECTURES[target], **({"name": target} | dict(told)))


_CDNA: Final = Architecture(
    name="",
    backend="hip",
    wavefront_size=64,
    max_waves_per_simd=8,
    simds_per_unit=4,
    vgprs_per_lane=512,
    vgpr_granule=8,
    lds_bytes_per_unit=64 << 10,
    lds_bytes_per_workgroup=64 << 10,
    max_workgroups_per_unit=16,
)
_RDNA: Final = Architecture(
    name="",
    backend="hip",
    wavefront_size=32,
    max_waves_per_simd=16,
    simds_per_unit=4,
    vgprs_per_lane=1536,
    vgpr_granule=24,
    lds_bytes_per_unit=128 << 10,
    lds_bytes_per_workgroup=64 << 10,
    max_workgroups_per_unit=32,
)


def _sm(name: str, shared_bytes: int) -> Architecture:
    """Source: CUDA C++ Programming Guide, technical specifications per compute capability."""
    return replace(
        _RDNA,
        name=name,
        backend="cuda",
        vgprs_per_lane=512,
        vgpr_granule=8,
        lds_bytes_per_unit=shared_bytes,
        lds_bytes_per_workgroup=shared_bytes - 1024,
    )


ARCHITECTURES: Final = {
    one.name: one
    for one in (
        replace(_CDNA, name="gfx90a"),
        replace(_CDNA, name="gfx942"),
        replace(
            _CDNA, name="gfx950", lds_bytes_per_unit=160 << 10, lds_bytes_per_workgroup=160 << 10
        ),
        replace(_RDNA, name="gfx1100"),
        replace(_RDNA, name="gfx1201"),
        _sm("sm_80", 164 << 10),
        _sm("sm_90", 228 << 10),
    )
}


def find_architectures(names: Sequence[str]) -> list[Architecture]:
    """Return the architectures of these names, each once; raises KernelError for an unknown one."""
    for name in names:
        if name not in ARCHITECTURES:
            raise KernelError(
                f"target {name!r} is not known: use one of {', '.join(ARCHITECTURES)}"
            )
    return [ARCHITECTURES[name] for name in dict.fromkeys(names)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Occupancy:
    """The waves of a kernel that one SIMD holds at a time, and what limits them."""

    waves_per_simd: int
    workgroups: int  # that a compute unit holds; on RDNA, that a work-group processor does
    limit: str  # `registers`, `lds`, `workgroups`, or `none` at the hardware's own maximum


def occupancy(
    architecture: Architecture, *, vgprs: int, lds_bytes: int, workgroup_waves: int
) -> Occupancy:
    """Return the waves per SIMD for `workgroup_waves` waves of `vgprs` registers a lane.

    0 if not even one workgroup fits.
    """
    granule = architecture.vgpr_granule
    taken = max(granule, -(-vgprs // granule) * granule)
    by_registers = min(architecture.max_waves_per_simd, architecture.vgprs_per_lane // taken)
    slots = by_registers * architecture.simds_per_unit
    groups = {"registers": slots // workgroup_waves}
    if lds_bytes > architecture.lds_bytes_per_workgroup:
        groups["lds"] = 0
    elif lds_bytes:
        groups["lds"] = architecture.lds_bytes_per_unit // lds_bytes
    if workgroup_waves > 1:
        groups["workgroups"] = architecture.max_workgroups_per_unit
    limit = min(groups, key=lambda name: groups[name])
    held = groups[limit]
    waves = min(by_registers, -(-held * workgroup_waves // architecture.simds_per_unit))
    if waves == architecture.max_waves_per_simd:
        limit = "none"
    return Occupancy(waves_per_simd=waves, workgroups=held, limit=limit)
