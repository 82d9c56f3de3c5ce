"""The environment that a finding was made in, for a report to upstream."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata
from typing import Any

from ratchet import __version__
from ratchet.devices.fingerprint import software
from ratchet.devices.probe import Device, describe_device

PACKAGES = ("torch", "triton", "pytorch-triton-rocm", "transformers", "numpy", "torch-ratchet")
VARIABLES = ("OMP_", "MKL_", "TORCH", "PYTORCH_", "HIP_", "HSA_", "ROCR_", "CUDA_", "NCCL_", "KMP_")
"""Beginnings of the variables that may change a result; others may hold secrets."""


def environment_report(device: Device, variables: Mapping[str, str] | None = None
                       ) -> dict[str, Any]:  # fmt: skip
    """Describe the machine, the versions, and the variables that may change a result."""
    own = os.environ if variables is None else variables
    return {
        "ratchet": __version__,
        "platform": platform.platform(),
        "device": describe_device(device),
        "software": asdict(software()),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "variables": {name: own[name] for name in sorted(own) if name.startswith(VARIABLES)},
    }


def environment_lines(report: Mapping[str, Any]) -> list[str]:
    """Return the report as lines of Markdown."""
    device = report["device"]
    lines = [
        f"- device: {device['model']} ({device['threads']} threads, {device['target']})",
        f"- platform: {report['platform']}",
        f"- Python {report['software']['python']}, compiler: {report['software']['compiler']}",
    ]
    lines += [f"- {name} {version}" for name, version in report["packages"].items()]
    return lines + [f"- `{name}={value}`" for name, value in report["variables"].items()]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
