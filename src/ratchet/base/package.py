"""This package itself: its version, its folder, and the files and functions in it by name.

Nothing below `ratchet` imports `ratchet`, whose public names would tie every file to every other.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

NAME: Final = __name__.partition(".")[0]
VERSION: Final = "0.1.0"
FOLDER: Final = Path(__file__).parents[1]


def file_of(module: str) -> Path | None:
    """Return the file of one of this package's modules without running it; None if it has none."""
    if module != NAME and not module.startswith(f"{NAME}."):
        return None
    path = FOLDER.joinpath(*module.split(".")[1:])
    found = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return found if found.is_file() else None


def address(function: Callable[..., object]) -> str:
    """Return `module:function`, by which another process finds a function."""
    return f"{function.__module__}:{function.__qualname__}"
