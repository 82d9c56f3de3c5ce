"""The revision of the judge: a verdict is void once its judge has changed."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Final

PARTS: Final = (
    "judge/**/*.py",
    "judge/**/*.h",
    "judge/**/*.hpp",
    "judge/**/*.cpp",
    "sandbox/*.py",
    "targets/*.py",
    "cross_compile/**/*.py",
    "cross_compile/**/*.h",
    "cross_compile/**/*.hpp",
    "cross_compile/**/*.cpp",
    "base/process/*.py",
    "measure/*.py",
    "problems/*.py",
    "kernels/*.py",
    "kernels/languages/*.py",
)
"""The code that a verdict depends on; kernel and problem have hashes of their own."""


@functools.cache
def revision() -> str:
    """Return the first 16 hex digits of the SHA-256 of the judge's code."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted({path for part in PARTS for path in package.glob(part)}):
        name = path.relative_to(package).as_posix().encode()
        digest.update(b"%s\0%s\0" % (name, hashlib.sha256(path.read_bytes()).digest()))
    return digest.hexdigest()[:16]
