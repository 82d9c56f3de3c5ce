"""Compile the sources of many kernels, several at once, each in a sandbox of its own.

Every compiler reads one source, as for a verdict, with the same options. A library is known by its
kernel's build hash, and is kept for what is judged next (`compiling`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from ratchet.base.errors import JudgeError
from ratchet.base.process import Clock, WorkLimit, families
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.sandbox.headroom import Headroom
from ratchet.judge.trial.processes.candidate import CandidateProcess
from ratchet.judge.trial.processes.compiling import Library, Toolchain
from ratchet.judge.verdict import CandidateFault, Decided

COMPILE_S: Final = 30.0
"""Seconds of work that one compiler may take; a verdict allows more."""
LOOK_S: Final = 0.002


@dataclass(slots=True)
class _Running:
    """One compiler at work."""

    kernel: Kernel
    library: Library
    limit: WorkLimit

    @property
    def has_answered(self) -> bool:
        return self.library.process is None or self.library.process.has_answered


class CompilePool:
    """The compilers of one screening. They are stopped while anything is timed."""

    def __init__(
        self,
        kernels: Sequence[Kernel],
        *,
        tools: Toolchain,
        threads: int,
    ) -> None:
        """Begin with the first of the kernels; `threads` compilers run at once.

        Raises CompilerMissing, OSError.
        """
        self._tools = tools
        self._threads = threads
        distinct = {one.build_hash: one for one in kernels if one.build_hash not in tools.kept}
        self._waiting = deque(distinct.values())
        self._running: list[_Running] = []
        self._faults: dict[str, Decided] = {}
        self._headroom = Headroom()
        self._paused = False
        self._fill()

    def __enter__(self) -> CompilePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
                has_answered = one.has_answered
            except CandidateFault as error:  # it never started
                self._end(one, error.decided)
                continue
            if has_answered:
                self._take(one)
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
                one.library.pause()
            except CandidateFault as error:
                self._end(one, error.decided)

    def resume(self) -> None:
        self._paused = False
        for one in tuple(self._running):
            assert one.library.process is not None
            one.limit = _limit(one.library.process, COMPILE_S - one.limit.spent_s)
            try:
                one.library.resume()
            except CandidateFault as error:
                self._end(one, error.decided)

    def close(self) -> None:
        while self._running:
            self._running.pop().library.close()

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self._threads:
            kernel = self._waiting.popleft()
            try:
                library = Library(
                    kernel,
                    threads=1,
                    clock=Clock.of(COMPILE_S),
                    tools=self._tools,
                )
            except CandidateFault as error:
                self._faults[kernel.build_hash] = error.decided
                continue
            assert library.process is not None
            self._running.append(_Running(kernel, library, _limit(library.process, COMPILE_S)))

    def _take(self, one: _Running) -> None:
        self._running.remove(one)
        try:
            one.library.fetch()  # which keeps it
        except CandidateFault as error:
            self._faults[one.kernel.build_hash] = error.decided
        finally:
            one.library.close()

    def _end(self, one: _Running, decided: Decided) -> None:
        self._running.remove(one)
        one.library.close()
        self._faults[one.kernel.build_hash] = decided


def _limit(process: CandidateProcess, limit_s: float) -> WorkLimit:
    family = partial(families.family, process.pid, enclosed=True)
    return WorkLimit(limit_s, family)
