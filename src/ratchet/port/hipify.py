"""torch's own hipify for the bytes of a file: names of CUDA's API become HIP's."""

from __future__ import annotations

from pathlib import Path

from ratchet.base.errors import PortError
from ratchet.judge.emulator import extension_build


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
