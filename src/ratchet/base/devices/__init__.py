"""Devices: their description, measured ceilings and roofline.

`describe` puts all facts about one device into a `DeviceReport`, and `device_report` shows it. The
function `probe` shares its module's name: `from ratchet.base.devices.probe import probe`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ratchet.base.devices import catalogue
from ratchet.base.devices.ceilings import RATES, Ceilings
from ratchet.base.devices.probe import Device, Origin, fingerprint
from ratchet.base.show import model as m
from ratchet.base.show.words import ABSENT, counted, show_bandwidth, show_bytes, show_flops


@dataclass(frozen=True, kw_only=True, slots=True)
class Paper:
    """The catalogue's numbers for a device, each with its source."""

    name: str
    peak_flops_per_s: Mapping[str, float]  # By unit and dtype, such as matrix_bf16, dense
    memory_bytes_per_s: float  # 0 if unknown
    sources: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceReport:
    """A device with its measured ceilings and its published peaks."""

    device: Device
    target: str
    fingerprint: Origin
    gemm_flops_per_s: Mapping[str, float]
    loop_flops_per_s: Mapping[str, float]
    copy_bytes_per_s: Mapping[str, float]
    triad_bytes_per_s: Mapping[str, float]
    ridge_flops_per_byte: Mapping[str, float]
    """By dtype: the intensity above which compute binds, at DRAM bandwidth."""
    busy: float | None
    """Share of the device's time that others took while it was measured; None if unknown."""
    provisional: bool  # True until the device was once quiet
    paper: Paper | None  # None if the catalogue lacks the device
    notes: tuple[str, ...]


def describe(device: Device, ceilings: Ceilings) -> DeviceReport:
    """Combine the probe, the measured ceilings and the catalogue.

    If the catalogue lacks the device, the report says so and guesses nothing.
    """
    paper = paper_of(device)
    notes: list[str] = []
    if paper is None:
        notes.append(f"{device.model!r} is not in the catalogue: only measured rates are known")
    if ceilings.provisional:
        notes.append(
            f"{ceilings.provisional}: the rates are provisional; run it again on a quiet machine"
        )
    dram = ceilings.bandwidth_bytes_per_s()
    return DeviceReport(
        device=device,
        target=device.target,
        fingerprint=fingerprint(device),
        **{name: dict(getattr(ceilings, name)) for name in RATES},
        ridge_flops_per_byte={k: v / dram for k, v in ceilings.flops_per_s.items()},
        busy=ceilings.busy,
        provisional=bool(ceilings.provisional),
        paper=paper,
        notes=tuple(notes),
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


def device_report(report: DeviceReport) -> m.ResultReport:
    """Describe the result of `ratchet device`: the device, and the ceilings measured on it."""
    device, paper = report.device, report.paper
    caches = (f"{level} {show_bytes(size)}" for level, size in device.caches_bytes.items())
    facts = {
        "device": device.model,
        "kind": f"{device.kind}, {device.vendor} {device.runtime}".strip(),
        "cores": f"{counted(device.cores, 'core')}, {counted(device.threads, 'thread')}",
        "instructions": ", ".join(device.isa) or ABSENT,
        "kernels for": report.target,
        "caches": ", ".join(caches) or ABSENT,
        "memory": show_bytes(device.memory_bytes),
    }
    rates = [
        (f"matrix product, {kind}", show_flops(rate))
        for kind, rate in report.gemm_flops_per_s.items()
    ]
    rates += [
        (f"multiply-adds in registers, {kind}", show_flops(rate))
        for kind, rate in report.loop_flops_per_s.items()
    ]
    for test, of in (("copy", report.copy_bytes_per_s), ("triad", report.triad_bytes_per_s)):
        rates += [(f"{test}, {level}", show_bandwidth(rate)) for level, rate in of.items()]
    ceilings = m.section("Measured ceilings", m.grid(("", "rate"), rates))
    said = (f"note: {one}" for one in report.notes)
    vendor = None
    if paper:
        peaks = [(kind, show_flops(rate)) for kind, rate in paper.peak_flops_per_s.items()]
        if paper.memory_bytes_per_s:
            peaks.append(("memory", show_bandwidth(paper.memory_bytes_per_s)))
        vendor = m.section(f"Vendor's figures: {paper.name}", m.grid(("", "peak"), peaks))
    sections = m.blocks(ceilings, vendor, *said)
    return m.ResultReport(header=(m.Facts(list(facts.items())),), sections=sections)
