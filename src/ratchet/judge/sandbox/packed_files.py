"""Files packed into one descriptor, to go from one process to another.

So go the files that a candidate's first process built, to those after it, and the files that the
reference worker compiled, to a candidate. Times of change are kept, since ninja compares them.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ratchet.judge.sandbox.mapping import seal

LOCK: Final = "lock"
"""torch's lock of a build in progress."""
CHUNK_BYTES: Final = 1 << 20
SEALS: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedFiles:
    """The files of a folder, in sealed memory."""

    files: Sequence[tuple[str, int, int]]
    """Name, time of change (ns) and bytes of each."""
    descriptor: int
    """Their contents, one after another."""

    @staticmethod
    def of(folder: Path) -> PackedFiles:
        descriptor = os.memfd_create("files", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        told = []
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.name != LOCK:
                content = path.read_bytes()
                with open(descriptor, "ab", closefd=False) as file:
                    file.write(content)
                name = path.relative_to(folder).as_posix()
                told.append((name, path.stat().st_mtime_ns, len(content)))
        seal(descriptor, SEALS)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return PackedFiles(files=told, descriptor=descriptor)

    def unpack(self, folder: Path) -> None:
        """Write the files below a folder."""
        offset = 0
        for name, changed_ns, size in self.files:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as file:
                while size > 0:
                    chunk = os.pread(self.descriptor, min(size, CHUNK_BYTES), offset)
                    if not chunk:
                        raise OSError("there is less than was announced")
                    file.write(chunk)
                    offset, size = offset + len(chunk), size - len(chunk)
            os.utime(path, ns=(changed_ns, changed_ns))

    def close(self) -> None:
        os.close(self.descriptor)
