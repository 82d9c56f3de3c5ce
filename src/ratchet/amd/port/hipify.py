"""torch's own hipify for the bytes of a file: names of CUDA's API become HIP's."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from ratchet.amd.emulator import extension_build
from ratchet.base.errors import PortError


@cache
def hip_names() -> Mapping[str, str]:
    """Return torch's map of names, read from its files: importing torch takes seconds.

    Raises:
        PortError: torch has no such files.
    """
    try:
        made = extension_build.hipify_module()
    except ImportError as error:
        raise PortError("torch.utils.hipify is missing: install torch") from error
    return {name: str(instead) for name, instead in made.PYTORCH_MAP.items()}


def hipified(text: bytes, name: str) -> bytes:
    """Return a text as torch.utils.hipify rewrites it; `name` decides by its suffix.

    Raises:
        PortError: the text is not UTF-8.
    """
    try:
        words = text.decode()
    except UnicodeDecodeError as error:
        raise PortError(f"{name} is not UTF-8: hipify cannot read it") from error
    return extension_build.hipified(words, Path(name).suffix).encode()
