"""Compile C++ kernels, each in a sandbox of its own, for this verdict or ahead of the next one.

A library is known by its kernel's build hash (source and options), and its original never leaves
the judge. Every verdict and every screened process gets a sealed copy, so no mark on a file (its
position, mode or times) reaches the next. The compiler never runs while anything is timed.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from ratchet.base.errors import JudgeError
from ratchet.base.process import Clock, WorkLimit, families
from ratchet.judge.kernels.kernel import WITH_TORCH, Kernel, Language
from ratchet.judge.kernels.languages.cpp import PrecompiledHeaders
from ratchet.judge.sandbox import view
from ratchet.judge.sandbox.accelerator import OF_GPU, Accelerator
from ratchet.judge.sandbox.isolation import Headroom, has_namespaces, shows_own_files
from ratchet.judge.sandbox.zygote import CandidateZygote
from ratchet.judge.trial.candidate import CandidateProcess, sealed_copy
from ratchet.judge.verdict import CandidateFault, Decided

KEPT_BYTES: Final = 256 << 20  # Libraries beyond this are forgotten, the oldest first
COMPILE_MEMORY_BYTES: Final = 8 << 30


class KeptLibraries:
    """Compiled libraries in sealed memory, by build hash."""

    def __init__(self) -> None:
        self._found: OrderedDict[str, int] = OrderedDict()

    def __contains__(self, build_hash: str) -> bool:
        return build_hash in self._found

    def copy(self, build_hash: str) -> int | None:
        """Return a sealed copy for the caller, or None; the library becomes the youngest."""
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
        while self._found:
            os.close(self._found.popitem()[1])


class Toolchain:
    """The things that a judge keeps between verdicts: zygotes, precompiled headers, libraries.

    Compilers and compiled kernels have a zygote each: a compiler sees the precompiled headers in
    the user's cache, a kernel does not.
    """

    def __init__(self, *, threads: int) -> None:
        self._threads = threads
        self.zygotes: dict[str, CandidateZygote] = {}
        self.kept = KeptLibraries()
        self.headers = PrecompiledHeaders()

    def compilers(self) -> CandidateZygote | None:
        """Return the zygote of compilers; None if each starts anew."""
        return self._zygote("compilers", lambda: self._start(with_headers=True))

    def kernels(
        self, language: Language, accelerator: Accelerator | None = None
    ) -> CandidateZygote | None:
        """Return the zygote of candidates in a language, or of a GPU's; None if each starts anew.

        A judge keeps the zygote of one GPU.
        """
        if language == "cpp":
            return self._zygote("cpp", lambda: self._start(with_headers=False))
        if language not in WITH_TORCH:
            return None
        if accelerator is not None:
            for name in [one for one in self.zygotes if one.startswith(OF_GPU)]:
                if name != accelerator.key:
                    self.zygotes.pop(name).close()
        return self._zygote(
            "torch" if accelerator is None else accelerator.key,
            lambda: CandidateZygote(threads=self._threads, accelerator=accelerator),
        )

    def close(self) -> None:
        """End the zygotes and forget the libraries."""
        self.kept.close()
        while self.zygotes:
            self.zygotes.popitem()[1].close()

    def _zygote(self, name: str, start: Callable[[], CandidateZygote]) -> CandidateZygote | None:
        """Start a zygote anew if it died; one that was never able to fork is kept as it is."""
        if not has_namespaces():
            return None
        found = self.zygotes.get(name)
        if found is not None and found.has_ended and found.able:
            found.close()
            found = None
        if found is None:
            found = self.zygotes[name] = start()
        return found

    def _start(self, *, with_headers: bool) -> CandidateZygote:
        folders = view.compiler_folders()
        if with_headers:
            shared = PrecompiledHeaders.shared_folder()
            self.headers = PrecompiledHeaders(shared)
            folders += [] if shared is None else [str(shared)]
        return CandidateZygote(threads=self._threads, with_torch=False, folders=folders)


class Library:
    """The compiled library of a kernel, fetched on demand; None for kernels in Python."""

    def __init__(
        self,
        kernel: Kernel,
        *,
        threads: int,
        clock: Clock,
        tools: Toolchain,
    ) -> None:
        """Start its compiler, if the language has one and the library is not kept."""
        self.kernel = kernel
        self._tools = tools
        self._descriptor: int | None = None
        self.process: CandidateProcess | None = None
        """The compiler's process, until its library is fetched."""
        if kernel.language == "cpp":
            self._descriptor = tools.kept.copy(kernel.build_hash)
        if kernel.language == "cpp" and self._descriptor is None:
            zygote = tools.compilers()  # which may find other headers
            headers = tools.headers.folder_for(kernel.source) if shows_own_files() else None
            self.process = CandidateProcess(
                kernel,
                threads=threads,
                memory_bytes=COMPILE_MEMORY_BYTES,
                clock=clock,
                headers=headers,
                zygote=zygote,
            )
            try:
                self.process.start_compiling(kernel)
            except BaseException:
                self.close()
                raise

    def fetch(self) -> int | None:
        """Return a descriptor of the sealed library; wait for the compiler the first time.

        The library is kept for later. Raises CandidateFault if it does not compile in time.
        """
        if self.process is not None:
            self._descriptor = self.process.library()
            self.process.close()
            self.process = None
            self._tools.kept.keep(self.kernel.build_hash, self._descriptor)
        return self._descriptor

    def close(self) -> None:
        """End the compiler's process and forget the library."""
        if self.process is not None:
            self.process.close()
            self.process = None
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class NextLibrary:
    """The library of the kernel that is judged next, if its compiler was started already."""

    def __init__(self, tools: Toolchain) -> None:
        self._library: Library | None = None
        self._tools = tools

    def take(self, kernel: Kernel, then: Kernel | None, *, threads: int, clock: Clock) -> Library:
        """Return this kernel's library for the caller: the one begun, or a new one.

        With a new one, that of `then` is begun too: two compilers share the cores, and every other
        verdict finds its library ready. A start that fails is left to its own verdict.
        """
        library, self._library = self._library, None
        if library is not None and library.kernel == kernel:
            if library.process is not None:
                library.process.run_under(clock)
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
        """Stop the compiler; end one that does not stop, since its kernel's turn comes."""
        with self._ending():
            if self._library is not None and self._library.process is not None:
                self._library.process.pause()

    def resume(self) -> None:
        with self._ending():
            if self._library is not None and self._library.process is not None:
                self._library.process.resume()

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        try:
            yield
        except CandidateFault:
            self.close()

    def close(self) -> None:
        if self._library is not None:
            self._library.close()
            self._library = None


# Compile the sources of many kernels, several at once, each in a sandbox of its own.
#
# Every compiler reads one source, as for a verdict, with the same options. A library is known by
# its kernel's build hash, and is kept for what is judged next.

COMPILE_S: Final = 30.0  # Seconds of work that one compiler may take; a verdict allows more
LOOK_S: Final = 0.002


@dataclass(slots=True)
class _Running:
    library: Library
    process: CandidateProcess
    limit: WorkLimit


class CompilePool:
    """The compilers of one screening. They are stopped while anything is timed."""

    def __init__(
        self,
        kernels: Sequence[Kernel],
        *,
        tools: Toolchain,
        threads: int,
    ) -> None:
        """Begin with the first of the kernels; `threads` compilers run at once."""
        self._tools = tools
        self._threads = threads
        distinct = {one.build_hash: one for one in kernels if one.build_hash not in tools.kept}
        self._waiting = deque(distinct.values())
        self._running: list[_Running] = []
        self._faults: dict[str, Decided] = {}
        self._headroom = Headroom()
        self._paused = False
        self._fill()

    def fetch(self, kernel: Kernel) -> int:
        """Wait for a kernel's library; return a copy. Raises CandidateFault without one."""
        while True:
            self.look()
            if kernel.build_hash in self._faults:
                raise CandidateFault(self._faults[kernel.build_hash])
            found = self._tools.kept.copy(kernel.build_hash)
            if found is not None:
                return found
            if not self._running and not self._waiting:
                raise JudgeError(f"nobody compiles kernel {kernel.name!r}")
            time.sleep(LOOK_S)

    def look(self) -> None:
        """Take finished libraries, end slow compilers, and begin waiting ones."""
        if self._paused:
            return
        shortage = self._headroom.shortage() if self._running else None
        for one in tuple(self._running):
            try:
                has_answered = one.process.has_answered
            except CandidateFault as error:  # it never started
                self._end(one, error.decided)
                continue
            if has_answered:
                self._end(one)
            elif one.limit.left_s() <= 0:
                self._end(one, Decided("timed_out", f"its compiler worked for {COMPILE_S:.0f} s"))
            elif shortage is not None:
                self._end(one, Decided("crashed", f"its compiler was ended: {shortage.words}"))
        self._fill()

    def pause(self) -> None:
        """Stop every compiler; end one that does not stop."""
        self._paused = True
        for one in tuple(self._running):
            try:
                one.process.pause()
            except CandidateFault as error:
                self._end(one, error.decided)

    def resume(self) -> None:
        self._paused = False
        for one in tuple(self._running):
            one.limit = _limit(one.process, COMPILE_S - one.limit.spent_s)
            try:
                one.process.resume()
            except CandidateFault as error:
                self._end(one, error.decided)

    def close(self) -> None:
        while self._running:
            self._running.pop().library.close()

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self._threads:
            kernel = self._waiting.popleft()
            try:
                clock = Clock.of(COMPILE_S)
                library = Library(kernel, threads=1, clock=clock, tools=self._tools)
            except CandidateFault as error:
                self._faults[kernel.build_hash] = error.decided
                continue
            assert library.process is not None
            limit = _limit(library.process, COMPILE_S)
            self._running.append(_Running(library, library.process, limit))

    def _end(self, one: _Running, decided: Decided | None = None) -> None:
        """End a compiler: with this answer, or else with its library, which is kept."""
        self._running.remove(one)
        try:
            if decided is None:
                one.library.fetch()
        except CandidateFault as error:
            decided = error.decided
        finally:
            one.library.close()
        if decided is not None:
            self._faults[one.library.kernel.build_hash] = decided


def _limit(process: CandidateProcess, limit_s: float) -> WorkLimit:
    family = partial(families.family, process.pid, enclosed=True)
    return WorkLimit(limit_s, family)
