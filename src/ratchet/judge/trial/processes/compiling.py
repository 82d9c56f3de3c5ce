"""The tools that compile C++ kernels, kept from one verdict or screening to the next.

A library is known by its kernel's build hash (source and options), and its original never leaves
the judge: every verdict and every screened process gets a sealed copy, so that no mark on a file
(its position, its mode, its times) reaches the next.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from typing import Final

from ratchet.base.process.time_limits import Clock
from ratchet.judge.sandbox import view
from ratchet.judge.sandbox.isolation import has_namespaces, shows_own_files
from ratchet.judge.sandbox.zygote import CandidateZygote
from ratchet.judge.stage_result import CandidateFault
from ratchet.judge.trial.processes.candidate import CandidateProcess
from ratchet.judge.workers.memory.mapping import seal
from ratchet.judge.workers.memory.packed_files import SEALS
from ratchet.kernels.kernel import Kernel
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


COMPILE_MEMORY_BYTES = 8 << 30


class Library:
    """The compiled library of a kernel, fetched when it is needed; None for Python's languages."""

    def __init__(
        self,
        kernel: Kernel,
        *,
        threads: int,
        clock: Clock,
        tools: Toolchain,
    ) -> None:
        """Start its compiler, where the language has one and the library was not compiled before:
        a fork of the zygote, or anew.
        """
        self.kernel = kernel
        self._tools = tools
        self._descriptor: int | None = None
        self._process: CandidateProcess | None = None
        if kernel.language == "cpp":
            self._descriptor = tools.kept.copy(kernel.build_hash)
        if kernel.language == "cpp" and self._descriptor is None:
            zygote = tools.compilers()
            headers = tools.headers.folder_for(kernel.source) if shows_own_files() else None
            self._process = CandidateProcess(
                kernel,
                threads=threads,
                memory_bytes=COMPILE_MEMORY_BYTES,
                clock=clock,
                headers=headers,
                zygote=zygote,
            )
            try:
                self._process.start_compiling(kernel)
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> Library:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fetch(self) -> int | None:
        """A descriptor of the sealed library, waiting for the compiler the first time.

        It is kept for later. Raises CandidateFault if it does not compile, or not in time.
        """
        if self._process is not None:
            self._descriptor = self._process.library()
            self._process.close()
            self._process = None
            self._tools.kept.keep(self.kernel.build_hash, self._descriptor)
        return self._descriptor

    @property
    def process(self) -> CandidateProcess | None:
        """The compiler's process, until its library was fetched."""
        return self._process

    def close(self) -> None:
        """End the compiler's process and forget the library."""
        if self._process is not None:
            self._process.close()
            self._process = None
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def run_under(self, clock: Clock) -> None:
        """Let this clock limit the compiler from now on."""
        if self._process is not None:
            self._process.run_under(clock)

    def pause(self) -> None:
        """Stop the compiler. Raises CandidateFault if its process does not obey."""
        if self._process is not None:
            self._process.pause()

    def resume(self) -> None:
        """Let the compiler go on."""
        if self._process is not None:
            self._process.resume()


class Ahead:
    """The library of the kernel that is judged next, where its compiler was started already."""

    def __init__(self, tools: Toolchain) -> None:
        self._library: Library | None = None
        self._tools = tools

    def take(self, kernel: Kernel, then: Kernel | None, *, threads: int, clock: Clock) -> Library:
        """The library of this kernel, which the caller now owns: the one begun, or a new one.

        Beside a new one that of `then` is begun, so that two compilers share the cores and every
        other verdict finds its library ready. A start that fails is left to its own verdict.
        """
        library, self._library = self._library, None
        if library is not None and library.kernel == kernel:
            library.run_under(clock)
            return library
        if library is not None:
            library.close()
        library = Library(kernel, threads=threads, clock=clock, tools=self._tools)
        if then is not None:
            with contextlib.suppress(CandidateFault, OSError):
                self._library = Library(
                    then, threads=threads, clock=clock.anew(), tools=self._tools
                )
        return library

    def pause(self) -> None:
        """Stop the compiler; one that does not stand still is ended, its kernel's turn comes."""
        self._tell("pause")

    def resume(self) -> None:
        """Let the compiler go on."""
        self._tell("resume")

    def close(self) -> None:
        """Give up what was begun."""
        if self._library is not None:
            self._library.close()
            self._library = None

    def _tell(self, what: str) -> None:
        if self._library is not None:
            try:
                getattr(self._library, what)()
            except CandidateFault:
                self.close()
