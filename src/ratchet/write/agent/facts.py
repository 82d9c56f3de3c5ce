"""The facts of a device that a prompt shows: this machine's, or a GPU's from the catalogue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ratchet.amd.architectures import ARCHITECTURES
from ratchet.base.devices import catalogue
from ratchet.base.devices.probe import Device

SHOWN: Final[Mapping[str, str]] = {
    "compute_units": "compute units",
    "sms": "SMs",
    "wavefront_size": "lanes in a wave",
    "simds_per_cu": "SIMDs in a compute unit",
    "xcds": "dies",
    "lds_per_cu": "LDS of a compute unit",
    "l1_vector": "vector L1",
    "l2_total": "L2",
    "infinity_cache": "Infinity Cache",
    "memory": "memory",
    "memory_bandwidth": "memory bandwidth",
    "max_engine_clock": "clock",
    "peak_dense.vector_fp32": "vector fp32 peak",
    "peak_dense.matrix_bf16": "matrix bf16 peak",
    "peak_dense.matrix_fp16": "matrix fp16 peak",
    "peak_dense.matrix_fp8": "matrix fp8 peak",
    "fp8_encoding": "fp8",
}


def device_facts(device: Device) -> list[str]:
    """Return the lines about a device of this machine."""
    vendor = "" if device.model.startswith(device.vendor) else f"{device.vendor} "
    lines = [f"{vendor}{device.model}, target {device.target}"]
    if device.kind == "cpu":
        lines.append(f"{device.cores} cores, {device.threads} threads may be used")
        lines.append(f"instruction sets: {', '.join(device.isa) or 'unknown'}")
        for name, size in sorted(device.caches_bytes.items()):
            count = device.cache_instances.get(name, 1)
            lines.append(f"{name}: {size >> 10} KiB, {count} of them")
    known = catalogue.load().match(
        device.model, compute_units=device.cores if device.kind == "cuda" else 0
    )
    return [*lines, *(_published(known) if known else ())]


def target_facts(target: str) -> list[str]:
    """Return the lines about a GPU that is not here: its target's limits, and a device's facts."""
    lines = [f"target {target}, not on this machine: kernels are compiled for it, not timed"]
    limits = ARCHITECTURES.get(target)
    if limits is not None:
        lines += [
            f"{limits.wavefront_size} lanes in a wave, at most {limits.max_waves_per_simd} waves "
            "on a SIMD",
            f"{limits.vgprs_per_lane} vector registers a lane, shared by the waves of a SIMD",
            f"{limits.lds_bytes_per_workgroup >> 10} KiB of LDS for a workgroup",
        ]
    devices = catalogue.load().devices.values()
    having = [one for one in devices if (fact := one.get("target")) and fact.value == target]
    best = max(having, key=lambda one: len(one.facts), default=None)
    return [*lines, *(_published(best) if best else ())]


def _published(device: catalogue.CatalogueDevice) -> Iterator[str]:
    yield f"published for {device.name}:"
    for field, words in SHOWN.items():
        fact = device.get(field)
        if fact is not None and fact.value not in ("", "0"):
            yield f"- {words}: {fact.value} {fact.unit}".rstrip()
