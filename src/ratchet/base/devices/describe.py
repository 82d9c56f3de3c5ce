"""One printable record of all facts about a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ratchet.base.devices import catalogue
from ratchet.base.devices.ceilings import Ceilings
from ratchet.base.devices.fingerprint import Origin, fingerprint
from ratchet.base.devices.probe import Device


@dataclass(frozen=True, kw_only=True, slots=True)
class Paper:
    """The catalogue's numbers for a device, each with its source."""

    name: str
    peak_flops_per_s: Mapping[str, float]
    """By unit and dtype, such as matrix_bf16, dense."""
    memory_bytes_per_s: float
    """0 if unknown."""
    sources: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceReport:
    """A device with its measured ceilings and its published peaks."""

    device: Device
    target: str
    fingerprint: Origin
    gemm_flops_per_s: Mapping[str, float]
    copy_bytes_per_s: Mapping[str, float]
    triad_bytes_per_s: Mapping[str, float]
    ridge_flops_per_byte: Mapping[str, float]
    """By dtype: the intensity above which compute binds, at DRAM bandwidth."""
    paper: Paper | None
    """None if the catalogue lacks the device."""
    notes: tuple[str, ...]


def describe(device: Device, ceilings: Ceilings) -> DeviceReport:
    """Combine the probe, the measured ceilings and the catalogue.

    If the catalogue lacks the device, the report says so and guesses nothing.
    """
    paper = paper_of(device)
    notes: tuple[str, ...] = ()
    if paper is None:
        notes = (f"{device.model!r} is not in the catalogue: only measured rates are known",)
    dram = ceilings.bandwidth_bytes_per_s()
    return DeviceReport(
        device=device,
        target=device.target,
        fingerprint=fingerprint(device),
        gemm_flops_per_s=dict(ceilings.gemm_flops_per_s),
        copy_bytes_per_s=dict(ceilings.copy_bytes_per_s),
        triad_bytes_per_s=dict(ceilings.triad_bytes_per_s),
        ridge_flops_per_byte={k: v / dram for k, v in ceilings.gemm_flops_per_s.items()},
        paper=paper,
        notes=notes,
    )


def paper_of(device: Device) -> Paper | None:
    """Return the published peaks of a probed device, or None if the catalogue lacks it."""
    units = device.cores if device.kind == "cuda" else 0
    known = catalogue.load().match(device.model, compute_units=units)
    if known is None:
        return None
    kinds = [field.removeprefix("peak_dense.") for field in known.facts if "peak_dense." in field]
    peaks = {kind: known.peak_flops_per_s(kind) for kind in kinds}
    fields = [*(f"peak_dense.{kind}" for kind in kinds), "memory_bandwidth"]
    return Paper(
        name=known.name,
        peak_flops_per_s={kind: peak for kind, peak in peaks.items() if peak is not None},
        memory_bytes_per_s=known.memory_bytes_per_s() or 0.0,
        sources={field: known.facts[field].source for field in fields if field in known.facts},
    )
