"""The tools that compile C++ kernels, kept from one verdict or screening to the next.

A library is known by its kernel's build hash (source and options), and its original never leaves
the judge: every verdict and every screened process gets a sealed copy, so that no mark on a file
(its position, its mode, its times) reaches the next.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Final

from ratchet.judge.sandbox import view
from ratchet.judge.sandbox.mechanism import has_namespaces
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
    """Zygotes that compilers and compiled kernels are forked from, headers, and libraries.

    There are two: a compiler sees the precompiled headers in the user's cache, a kernel does not.
    """

    def __init__(self, *, threads: int) -> None:
        self._threads = threads
        self._compilers: CandidateZygote | None = None
        self._kernels: CandidateZygote | None = None
        self.kept = KeptLibraries()
        self.headers = PrecompiledHeaders()

    def compilers(self) -> CandidateZygote | None:
        """Return what compilers are forked from; None if each starts anew."""
        if not has_namespaces():
            return None
        if self._compilers is None or _has_ended(self._compilers):
            shared = PrecompiledHeaders.shared_folder()
            self.headers = PrecompiledHeaders(shared)
            self._compilers = self._started([] if shared is None else [str(shared)])
        return self._compilers

    def kernels(self) -> CandidateZygote | None:
        """Return what compiled kernels are forked from; None if each starts anew."""
        if not has_namespaces():
            return None
        if self._kernels is None or _has_ended(self._kernels):
            self._kernels = self._started([])
        return self._kernels

    def close(self) -> None:
        """End the zygotes and forget the libraries."""
        self.kept.close()
        for zygote in (self._compilers, self._kernels):
            if zygote is not None:
                zygote.close()
        self._compilers = self._kernels = None

    def _started(self, more: list[str]) -> CandidateZygote:
        folders = [*view.compiler_folders(), *more]
        return CandidateZygote(threads=self._threads, with_torch=False, folders=folders)


def _has_ended(zygote: CandidateZygote) -> bool:
    """True if it died, and is closed now; one that was never able to fork stays as it is."""
    if zygote.has_ended and zygote.able:
        zygote.close()
        return True
    return False


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
