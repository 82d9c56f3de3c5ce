"""A kernel's library: compiled in a sandbox of its own, for this verdict or ahead of the next one.

The compiler never runs while anything is timed: what is compiled ahead is stopped then.
"""

from __future__ import annotations

import contextlib
import os

from ratchet.base.process.time_limits import Clock
from ratchet.judge.decided import CandidateFault
from ratchet.judge.sandbox.mechanism import shows_own_files
from ratchet.judge.trial.processes.candidate import CandidateProcess
from ratchet.judge.trial.processes.toolchain import Toolchain
from ratchet.kernels.kernel import Kernel

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
