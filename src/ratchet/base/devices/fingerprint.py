"""Short hashes of the device and the software behind a result."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratchet.base.devices.probe import Device

COMPILERS = ("g++", "clang++", "c++")


@dataclass(frozen=True, kw_only=True, slots=True)
class Software:
    """The versions that can change a result; empty for a package that is not installed."""

    torch: str
    triton: str
    python: str
    compiler: str

    @property
    def fingerprint(self) -> str:
        return short_hash(asdict(self))


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """The origin of a result, which may be reused if `device` and `software` are equal."""

    device: str
    software: str
    device_model: str
    versions: Software


def fingerprint(device: Device) -> Origin:
    """Return the fingerprint of this device and of the software in this process."""
    versions = software()
    return Origin(
        device=device.fingerprint,
        software=versions.fingerprint,
        device_model=device.model,
        versions=versions,
    )


def software_fingerprint() -> str:
    """A short hash of the versions of torch, triton, Python and the C++ compiler."""
    return software().fingerprint


@functools.cache
def software() -> Software:
    """Return the installed versions, read without importing the packages."""
    return Software(
        torch=_version("torch"),
        triton=_version("triton") or _version("pytorch-triton-rocm"),
        python=platform.python_version(),
        compiler=compiler_version(),
    )


@functools.cache
def compiler_version() -> str:
    """Return the first line of the C++ compiler's --version; empty without a compiler."""
    for name in (os.environ.get("RATCHET_CXX"), os.environ.get("CXX"), *COMPILERS):
        path = shutil.which(name) if name else None
        if path is not None:
            return _first_line(path)
    return ""


def _first_line(compiler: str) -> str:
    try:
        done = subprocess.run(
            [compiler, "--version"], capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.partition("\n")[0].strip()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def short_hash(content: Mapping[str, object]) -> str:
    """Return the first 16 hex digits of the SHA-256 of the content's JSON."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
