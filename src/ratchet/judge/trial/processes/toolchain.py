"""The tools that compile C++ kernels, kept from one verdict or screening to the next.

A library is known by its kernel's build hash (source and options), and its original never leaves
the judge: every verdict and every screened process gets a sealed copy, so that no mark on a file
(its position, its mode, its times) reaches the next.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Final

from ratchet.judge.sandbox import isolation
from ratchet.judge.sandbox.zygote import CandidateZygote
from ratchet.judge.workers.memory.mapping import seal
from ratchet.judge.workers.memory.packed_files import SEALS
from ratchet.kernels.languages.precompiled_headers import PrecompiledHeaders

KEPT_BYTES: Final = 256 << 20
"""Libraries beyond this are forgotten, the oldest first."""


class KeptLibraries:
    """Compiled libraries in sealed memory, by build hash."""

    def __init__(self) -> None:
        self._found: OrderedDict[str, int] = OrderedDict()

    def __contains__(self, build_hash: str) -> bool:
        return build_hash in self._found

    def copy(self, build_hash: str) -> int | None:
        """Return a sealed copy for the caller, or None; the library is now the youngest."""
        if build_hash not in self._found:
            return None
        self._found.move_to_end(build_hash)
        return sealed_copy(self._found[build_hash])

    def keep(self, build_hash: str, library: int) -> None:
        """Keep a copy of a library, and forget the oldest beyond KEPT_BYTES."""
        if build_hash not in self._found:
            self._found[build_hash] = sealed_copy(library)
        sizes = {name: os.fstat(one).st_size for name, one in self._found.items()}
        total = sum(sizes.values())
        while total > KEPT_BYTES and len(self._found) > 1:
            name, descriptor = self._found.popitem(last=False)
            os.close(descriptor)
            total -= sizes[name]

    def close(self) -> None:
        """Forget all of them."""
        while self._found:
            os.close(self._found.popitem()[1])


class Toolchain:
    """A zygote that compilers and compiled kernels are forked from, headers, and libraries."""

    def __init__(self, *, threads: int) -> None:
        self._threads = threads
        self._zygote: CandidateZygote | None = None
        self.kept = KeptLibraries()
        self.headers = PrecompiledHeaders()

    def zygote(self) -> CandidateZygote | None:
        """Return what compilers and compiled kernels are forked from; None if each starts anew."""
        if isolation.bubblewrap() is None:
            return None
        if self._zygote is not None and self._zygote.has_ended and self._zygote.able:
            self._zygote.close()
            self._zygote = None
        if self._zygote is None:
            shared = PrecompiledHeaders.shared_folder()
            self.headers = PrecompiledHeaders(shared)
            folders = [*isolation.compiler_folders(), *([] if shared is None else [str(shared)])]
            self._zygote = CandidateZygote(threads=self._threads, with_torch=False, folders=folders)
        return self._zygote

    def close(self) -> None:
        """End the zygote and forget the libraries."""
        self.kept.close()
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None


def sealed_copy(library: int) -> int:
    """Copy a sealed library into sealed memory of its own."""
    copy = os.memfd_create("ratchet-kernel", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        offset, size = 0, os.fstat(library).st_size
        while offset < size:
            offset += os.sendfile(copy, library, offset, size - offset)
        seal(copy, SEALS)
    except BaseException:
        os.close(copy)
        raise
    return copy
