"""Devices: their description, measured ceilings and roofline.

Functions that share their module's name (`probe`, `fingerprint`, `roofline`) are imported from it:
`from ratchet.base.devices.probe import probe`.
"""

from __future__ import annotations

from ratchet.base.devices.catalogue import Catalogue, CatalogueDevice
from ratchet.base.devices.ceilings import Ceilings, measure
from ratchet.base.devices.describe import DeviceReport, Paper, describe
from ratchet.base.devices.fingerprint import Origin, Software, software, software_fingerprint
from ratchet.base.devices.probe import Device, Isa, best_isa
from ratchet.base.devices.roofline import Roofline, mfu

__all__ = [
    "Catalogue",
    "CatalogueDevice",
    "Ceilings",
    "Device",
    "DeviceReport",
    "Isa",
    "Origin",
    "Paper",
    "Roofline",
    "Software",
    "best_isa",
    "describe",
    "measure",
    "mfu",
    "software",
    "software_fingerprint",
]
