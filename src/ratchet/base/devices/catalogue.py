"""The hardware catalogue: published facts about devices, each with its source.

`data/hardware.csv` holds one fact per row. Facts without a source are left out, so a device may
lack a field (an architecture name, a clock): `get` then returns None.
"""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Literal

from ratchet.base.errors import DeviceError

Evidence = Literal["primary", "secondary", "derived"]
OTHER_FORMS = frozenset({"pcie", "nvl", "mig"})
"""Words in a name that mean a board other than the SXM one, or a slice of it."""
EVIDENCE = ("primary", "secondary", "derived")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """One published number or word about a device."""

    device: str
    field: str
    value: str
    unit: str
    evidence: Evidence
    """primary: the vendor's page; secondary: another page; derived: computed from other rows."""
    source: str
    note: str

    @property
    def number(self) -> float:
        """Return the value as a number in `unit`; DeviceError if it is a word."""
        try:
            return float(self.value)
        except ValueError:
            raise DeviceError(
                f"{self.device} {self.field} is {self.value!r}, a word: read `value` instead"
            ) from None


@dataclass(frozen=True, kw_only=True, slots=True)
class CatalogueDevice:
    """The facts about one device."""

    name: str
    facts: dict[str, Fact]

    def get(self, field: str) -> Fact | None:
        return self.facts.get(field)

    def number(self, field: str) -> float | None:
        """Return a numeric fact in its own unit, or None if the catalogue lacks it."""
        fact = self.facts.get(field)
        return None if fact is None else fact.number

    @property
    def logical_devices(self) -> int:
        """Number of devices that a program sees: 2 on the dual-die MI250X, 1 elsewhere."""
        return int(self.number("logical_devices") or 1)

    def peak_flops_per_s(self, kind: str) -> float | None:
        """Return a logical device's dense peak in FLOP/s, such as `matrix_bf16` or `vector_fp32`.

        None if it is unknown or the device has no such unit.
        """
        peak = self.number(f"peak_dense.{kind}")
        return peak * 1e12 / self.logical_devices if peak else None

    def memory_bytes(self) -> float | None:
        """Published memory of one logical device, in bytes."""
        fact = self.facts.get("memory")
        if fact is None:
            return None
        return fact.number * (2**30 if fact.unit == "GiB" else 1e9) / self.logical_devices

    def memory_bytes_per_s(self) -> float | None:
        """Published memory bandwidth of one logical device, in bytes/s."""
        bandwidth = self.number("memory_bandwidth")
        return None if bandwidth is None else bandwidth * 1e9 / self.logical_devices

    @property
    def units(self) -> float | None:
        """Compute units or SMs of one logical device."""
        found = self.number("compute_units") or self.number("sms")
        return None if found is None else found / self.logical_devices


@dataclass(frozen=True, kw_only=True, slots=True)
class Catalogue:
    devices: dict[str, CatalogueDevice]

    def __getitem__(self, name: str) -> CatalogueDevice:
        try:
            return self.devices[name]
        except KeyError:
            raise DeviceError(
                f"no device {name!r} in the catalogue: it has {', '.join(self.devices)}"
            ) from None

    def of_target(self, gfx: str) -> list[CatalogueDevice]:
        """Return the devices that run a target's code."""
        found = self.devices.values()
        return [one for one in found if (target := one.get("target")) and target.value == gfx]

    def match(self, model: str, *, compute_units: int = 0) -> CatalogueDevice | None:
        """Return the device of a driver's model name, or None: never a guess.

        If `compute_units` is above 0, it must also match (a partition is not the whole GPU).
        """
        words = set(_words(model))
        fitting = [
            device
            for device in self.devices.values()
            if _names(device.name) <= words
            and not ("sxm" in _words(device.name) and words & OTHER_FORMS)
            and _units_agree(device, compute_units)
        ]
        return max(fitting, key=lambda device: len(_names(device.name)), default=None)


def compute_units(gfx: str) -> int:
    """Return the compute units of a target's largest logical device; 1 if unknown."""
    return max([1, *(int(one.units or 0) for one in load().of_target(gfx))])


@functools.cache
def load() -> Catalogue:
    """Read the shipped catalogue."""
    text = resources.files("ratchet.base.devices").joinpath("data/hardware.csv").read_text("utf-8")
    return parse(csv.DictReader(text.splitlines()))


def parse(rows: Iterable[dict[str, str]]) -> Catalogue:
    """Build a catalogue from rows; DeviceError for a row without a source or a duplicate fact."""
    facts: dict[str, dict[str, Fact]] = {}
    for row in rows:
        if row["evidence"] not in EVIDENCE or not row["source"].strip():
            raise DeviceError(
                f"{row['device']} {row['field']} has evidence {row['evidence']!r} and source "
                f"{row['source']!r}: give a source, and one of {', '.join(EVIDENCE)}"
            )
        fact = Fact(**row)  # type: ignore[arg-type]  # the evidence was checked
        own = facts.setdefault(fact.device, {})
        if fact.field in own:
            raise DeviceError(f"{fact.device} {fact.field} appears twice: keep one row")
        own[fact.field] = fact
    return Catalogue(
        devices={name: CatalogueDevice(name=name, facts=own) for name, own in facts.items()}
    )


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[\s/()\-]+", name.lower()) if word]


def _names(name: str) -> set[str]:
    """Return the words of a catalogue name that a driver also prints: no form factor, no family."""
    return {word for word in _words(re.sub(r"\(.*?\)", "", name)) if word != "sxm"}


def _units_agree(device: CatalogueDevice, compute_units: int) -> bool:
    seen = device.units
    if not compute_units or seen is None:
        return True
    # On RDNA, HIP counts work-group processors of two compute units each.
    arch = device.get("arch")
    paired = arch is not None and arch.value.startswith("RDNA")
    return compute_units in ((seen, seen / 2) if paired else (seen,))
