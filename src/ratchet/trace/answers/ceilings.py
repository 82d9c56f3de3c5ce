"""The ceilings that work is held against: published, measured here, or from a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from ratchet.base import Json
from ratchet.base.devices import catalogue
from ratchet.base.devices.catalogue import CatalogueDevice
from ratchet.base.devices.ceilings import Ceilings, Roofline
from ratchet.base.devices.ceilings import roofline as measured
from ratchet.base.errors import TraceError
from ratchet.base.files import why_not_file
from ratchet.trace.answers.work.call import Product
from ratchet.trace.read.columns import Trace

PEAKS: Final = {
    "fp32": ("matrix_tf32", "matrix_fp32", "vector_fp32"),
    "bf16": ("matrix_bf16",),
    "fp16": ("matrix_fp16",),
    "fp64": ("matrix_fp64", "vector_fp64"),
    "fp8": ("matrix_fp8",),
}
"""The catalogue's peaks that bound a type."""
MEASURED: Final = "measured."


@dataclass(frozen=True, kw_only=True, slots=True)
class Rooflines:
    """A device's rooflines by short type name."""

    of: Mapping[str, Roofline]
    source: str
    sources: Mapping[str, str] = field(default_factory=dict)  # Of a type, if it has its own
    rates: Ceilings | None = None  # Measured rates, which know the caches too
    paper: Mapping[str, Roofline] = field(default_factory=dict)  # The maker's peaks
    products: Mapping[str, Mapping[Product, float]] = field(default_factory=dict)
    """By type, the FLOP/s that were published for products of these sizes."""

    def at(self, dtype: str, size_bytes: int, product: Product | None = None) -> Roofline | None:
        """Return the roofline of a call that touches so much; None if none is known.

        A type without a ceiling of its own (int64) has that of the fastest: it may be too high.
        """
        if not self.of:
            return None
        found = self.of[_held(self.of, dtype)]
        flops, speed = found.flops_per_s, found.bytes_per_s
        if self.rates is not None:
            speed = self.rates.bandwidth_bytes_per_s(size_bytes)
        if product is not None and dtype in self.products:
            flops = _published(self.products[dtype], product) or flops
        return Roofline(flops_per_s=flops, bytes_per_s=speed)

    def paper_at(self, dtype: str) -> Roofline | None:
        """Return the maker's peaks for a type; None if they are not known."""
        return self.paper[_held(self.paper, dtype)] if self.paper else None

    def source_of(self, dtype: str) -> str:
        """Return the source of a type's ceilings, or why there are none."""
        return self.sources[_held(self.of, dtype)] if self.sources else self.source


def _held(rooflines: Mapping[str, Roofline], dtype: str) -> str:
    """Return the type whose roofline a type is held against."""
    return dtype if dtype in rooflines else max(rooflines, key=lambda k: rooflines[k].flops_per_s)


def _published(rates: Mapping[Product, float], product: Product) -> float:
    """Return what was published for a product of m x n x k; 0 if nothing was.

    A product with fewer rows than a published one with the same weight has its rate at most.
    """
    m, n, k = product
    rows = {size[0]: rate for size, rate in rates.items() if size[1:] == (n, k) and size[0] >= m}
    rows |= {size[1]: rate for size, rate in rates.items() if size == (n, m, k)}
    return rows[min(rows)] if rows else 0.0


def trace_ceilings(trace: Trace) -> Rooflines:
    """Return what is published of the trace's device; nothing if it is not in the catalogue."""
    device = next((one for one in trace.devices if one.name), None)
    if device is None:
        return Rooflines(of={}, source="the trace names no device")
    entry = catalogue.load().match(device.name, compute_units=device.compute_units)
    if entry is None:
        return Rooflines(of={}, source=f"{device.name} is not in the catalogue")
    return _published_of(entry)


def named_ceilings(name: str) -> Rooflines:
    """Return what is published of a device by name; TraceError if nothing is."""
    known = catalogue.load()
    found = known.match(name) or known.devices.get(name)
    if found is None or not _paper(found):
        having = ", ".join(one.name for one in known.devices.values() if _paper(one))
        raise TraceError(
            f"--device {name!r} is no file, and no device whose rates are known: give here, a file "
            f"of ceilings, or one of {having}"
        )
    return _published_of(found)


def _published_of(entry: CatalogueDevice) -> Rooflines:
    """Return published measurements where there are some, and the maker's peaks elsewhere."""
    paper = _paper(entry)
    products: dict[str, dict[Product, float]] = {}
    best: dict[str, float] = {}
    for key, fact in entry.facts.items():
        kind, _, sizes = key.removeprefix(MEASURED).partition("@")
        kind = kind.removeprefix("max_achievable.")
        short = next((one for one, peaks in PEAKS.items() if kind in peaks), "")
        if not short or not key.startswith((MEASURED, "max_achievable.")):
            continue
        rate = fact.number * 1e12 / entry.logical_devices
        best[short] = max(rate, best.get(short, 0.0))
        if sizes:
            m, n, k = map(int, sizes.split("x"))
            products.setdefault(short, {})[m, n, k] = rate
    bandwidth = entry.number(f"{MEASURED}memory_bandwidth")
    of, sources = {}, {}
    for short, roof in paper.items():
        of[short] = Roofline(
            flops_per_s=best.get(short, roof.flops_per_s),
            bytes_per_s=bandwidth * 1e9 / entry.logical_devices if bandwidth else roof.bytes_per_s,
        )
        seen = [*(["FLOP/s"] if short in best else []), *(["bandwidth"] if bandwidth else [])]
        sources[short] = f"{entry.name}, " + (
            f"{' and '.join(seen)} as measured and published" if seen else "on paper"
        )
    return Rooflines(
        of=of,
        source=f"{entry.name}, on paper",
        sources=sources,
        paper=paper,
        products=products,
    )


def _paper(entry: CatalogueDevice | None) -> dict[str, Roofline]:
    bandwidth = entry.memory_bytes_per_s() if entry is not None else None
    found = {}
    for short, peaks in PEAKS.items():
        rates = [
            rate for peak in peaks if entry is not None and (rate := entry.peak_flops_per_s(peak))
        ]
        if rates and bandwidth:
            found[short] = Roofline(flops_per_s=max(rates), bytes_per_s=bandwidth)
    return found


def measured_ceilings(rates: Ceilings, device: str) -> Rooflines:
    """Return the rooflines of rates that were measured on the trace's device."""
    return Rooflines(
        of={dtype: measured(rates, dtype=dtype) for dtype in rates.flops_per_s},
        source=f"{device}, measured",
        rates=rates,
        paper=_paper(catalogue.load().match(device)),
    )


class _Device(msgspec.Struct):
    model: str
    caches_bytes: dict[str, int] = {}
    cache_instances: dict[str, int] = {}


class _Told(msgspec.Struct):
    """The part of what `ratchet device --json` writes that is used here."""

    device: _Device
    gemm_flops_per_s: dict[str, float]
    copy_bytes_per_s: dict[str, float]
    triad_bytes_per_s: dict[str, float]
    loop_flops_per_s: dict[str, float] = {}


class _Architecture(msgspec.Struct):
    """A GPU architecture file of TraceLens: GB/s, and TFLOP/s by unit and type."""

    mem_bw_gbps: float
    max_achievable_tflops: dict[str, float]
    name: str = ""


def given_ceilings(name: str) -> Rooflines:
    """Return the ceilings of a file, or of a device by name; an error if there is neither."""
    is_file = name.endswith(".json") or Path(name).is_file()
    return file_ceilings(Path(name)) if is_file else named_ceilings(name)


def file_ceilings(path: Path) -> Rooflines:
    """Return the ceilings of a file: `ratchet device --json`'s, or TraceLens's gpu_arch_json.

    TraceError if it is neither.
    """
    if why := why_not_file(path):
        raise TraceError(f"--device {path} {why}: give a file of ceilings")
    try:
        text = path.read_bytes()
        plain: Json = json.loads(text)
        if isinstance(plain, dict) and "max_achievable_tflops" in plain:
            return _of_architecture(msgspec.json.decode(text, type=_Architecture), path.stem)
        told = msgspec.json.decode(text, type=_Told)
        levels = told.device.caches_bytes.items()
        count = told.device.cache_instances
        rates = msgspec.convert(
            {
                "gemm_flops_per_s": told.gemm_flops_per_s,
                "loop_flops_per_s": told.loop_flops_per_s,
                "copy_bytes_per_s": told.copy_bytes_per_s,
                "triad_bytes_per_s": told.triad_bytes_per_s,
                "level_bytes": {k: v * count.get(k, 1) for k, v in levels if k != "l1d"},
            },
            type=Ceilings,
        )
        return measured_ceilings(rates, told.device.model)
    except (OSError, ValueError, RecursionError) as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TraceError(
            f"--device {path.name} holds no ceilings ({said}): give what `ratchet device --json` "
            "prints, or a GPU architecture file of TraceLens"
        ) from None


def _of_architecture(told: _Architecture, name: str) -> Rooflines:
    """Return the ceilings of TraceLens's file; ValueError if it has none."""
    rates = {
        short: max((told.max_achievable_tflops.get(peak, 0.0) for peak in peaks), default=0.0)
        for short, peaks in PEAKS.items()
    }
    good = {short: rate for short, rate in rates.items() if 0 < rate < 1e9}
    if not good or not 0 < told.mem_bw_gbps < 1e9:
        raise ValueError("mem_bw_gbps or max_achievable_tflops is not above 0")
    speed = told.mem_bw_gbps * 1e9
    return Rooflines(
        of={k: Roofline(flops_per_s=v * 1e12, bytes_per_s=speed) for k, v in good.items()},
        source=f"{told.name or name}, from a file",
        paper=_paper(catalogue.load().match(told.name or name)),
    )
