"""Devices: their description, measured ceilings and roofline.

Functions that share their module's name (`probe`, `fingerprint`, `roofline`) are imported from it:
`from ratchet.devices.probe import probe`.
"""

from __future__ import annotations

from ratchet.devices.catalogue import Catalogue, CatalogueDevice
from ratchet.devices.ceilings import Ceilings, measure
from ratchet.devices.describe import DeviceReport, Paper, describe
from ratchet.devices.fingerprint import Origin, Software, software, software_fingerprint
from ratchet.devices.probe import Device, Isa, best_isa
from ratchet.devices.roofline import Roofline, mfu

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
