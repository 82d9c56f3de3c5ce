"""The revision of the judge: a verdict is void once what decided it has changed."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from typing import Final

from ratchet.base import FOLDER

MEASURED: Final = (
    "base/devices/**/*",
    "base/measure/*.py",
    "base/process/*.py",
    "judge/*.py",
    "judge/integrity/*.py",
    "judge/kernels/*.py",
    "judge/kernels/languages/*",
    "judge/problems/*.py",
    "judge/problems/suites/forms.py",
    "judge/sandbox/*.py",
    "judge/steps/*.py",
    "judge/trial/**/*.py",
    "judge/workers/**/*.py",
)
"""The files that decide a measured verdict; kernel and problem have hashes of their own."""
CODE: Final = (".py", ".h", ".hpp", ".cpp", ".csv")


@functools.cache
def revision(target: str | None = None) -> str:
    """Return the first 16 hex digits of the SHA-256 of the code that decides a verdict.

    A verdict for a GPU that is not here also depends on what compiles for it and emulates it.
    """
    if target is None:
        return hash_of(MEASURED)
    from ratchet.judge.targets import targets

    return hash_of((*MEASURED, *targets().DECIDING))


def hash_of(parts: Iterable[str]) -> str:
    """Hash the files of the package that some patterns name."""
    digest = hashlib.sha256()
    for path in sorted({path for part in parts for path in FOLDER.glob(part)}):
        if path.suffix in CODE:
            name = path.relative_to(FOLDER).as_posix().encode()
            digest.update(b"%s\0%s\0" % (name, hashlib.sha256(path.read_bytes()).digest()))
    return digest.hexdigest()[:16]
