"""Changes of files as a diff that `git apply` and `patch` take."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping


def diff_of(old: Mapping[str, bytes], new: Mapping[str, bytes]) -> bytes:
    """Return the changes as a diff that `git apply` takes, in the order of the files' names."""
    return b"".join(_diff(name, old[name], new[name]) for name in sorted(new))


def _diff(name: str, old: bytes, new: bytes) -> bytes:
    lines = difflib.diff_bytes(
        difflib.unified_diff, _lines(old), _lines(new), f"a/{name}".encode(), f"b/{name}".encode()
    )
    return b"".join(_ended(line) for line in lines)


def _lines(text: bytes) -> list[bytes]:
    """Split at line feeds alone: git keeps a carriage return as part of its line."""
    return re.findall(rb"[^\n]*\n|[^\n]+", text)


def _ended(line: bytes) -> bytes:
    return line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"
