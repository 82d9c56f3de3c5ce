"""The processes of one candidate over a verdict: the one that is checked, and others to be timed.

A fork of a zygote starts when its turn comes and ends after it, as the reference's do. So does a
process on a GPU, and one that gets extensions from the first. New processes start together, because
starting one later would disturb a clock; a compiled kernel's start while its compiler works. Each
is stopped once it has loaded the kernel, and all last until the verdict. If more are needed, as
many again start together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from ratchet.base import scratch
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.sandbox.accelerator import Accelerator
from ratchet.judge.sandbox.isolation import has_namespaces, private_folder
from ratchet.judge.sandbox.shared_memory import PackedFiles
from ratchet.judge.trial.candidate import CandidateProcess
from ratchet.judge.trial.open_problem import OpenProblem, Record
from ratchet.judge.trial.reference import ReferenceFault
from ratchet.judge.trial.sources import is_compiled_reference, uses_extensions
from ratchet.judge.verdict import CandidateFault, Decided


class Launches:
    """Sandboxed processes of one kernel, by number; the first is checked."""

    def __init__(
        self,
        kernel: Kernel,
        start: Callable[..., CandidateProcess],
        *,
        timed: int,
        forks: bool,
        accelerator: Accelerator | None = None,
        compilations: PackedFiles | None = None,
    ) -> None:
        """Start the first, and with it the `timed` ones of a look if they start together.

        `start` is CandidateProcess with all but its kernel and files; it `forks` if it can.
        """
        self._kernel = kernel
        self._start_process = start
        self._accelerator = accelerator
        self._given = {} if compilations is None else {"compilations": compilations}
        self.built: PackedFiles | None = None
        """Extensions that the first process built (`load_inline`), for those after it."""
        self._ending: list[CandidateProcess] = []
        """The process of the last launch: it ends while the next one starts."""
        self._builds = uses_extensions(kernel) and accelerator is None and has_namespaces()
        self._library: int | None = None
        self._standing: list[CandidateProcess] = []
        self._counting: CandidateProcess | None = None
        """The process in which a kernel's work on a GPU will be counted."""
        self._spare: list[CandidateProcess] = []
        """Processes for a GPU that import torch during other work, and have read no kernel."""
        in_turn = accelerator is not None or self._builds or forks
        self._together = 0 if in_turn else timed
        try:
            self._start_together(1 + self._together)
            if accelerator is not None:
                self._counting = self._start()
                self._counting.start_warming()
                self._spare = [self._start() for _ in range(timed)]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill all processes and remove what they left."""
        if self._counting is not None:
            self._counting.close()
            self._counting = None
        for processes in (self._standing, self._spare, self._ending):
            while processes:
                processes.pop().close()
        for what in ("extensions", "triton"):
            if what in self._given:
                self._given.pop(what).close()
        self.built = None

    def load(self, library: int | None) -> CandidateProcess:
        """Load the kernel into every started process, and stop each."""
        self._library = library
        for process in self._standing:
            self._load(process)
        return self._standing[0]

    def renew(self) -> CandidateProcess:
        """Start the first process anew, whose end was no fault of the kernel; it is stopped."""
        before = self._standing[0]
        before.close()
        self._standing[0] = self._start()
        self._load(self._standing[0])
        self._standing[0].censuses = before.censuses
        return self._standing[0]

    def rest(self) -> None:
        """Raise CandidateFault if a stopped process has run: it disturbed the others."""
        for process in self._standing:
            process.pause()

    @contextlib.contextmanager
    def launch(self, index: int) -> Iterator[CandidateProcess]:
        if index >= len(self._standing) and self._together:
            with _in_time():
                for process in self._start_together(self._together):
                    self._load(process)
        if index < len(self._standing):
            yield self._standing[index]
            return
        process = self._spare.pop() if self._spare else self._start()
        try:
            with _in_time():
                self._load(process)
            while self._ending:
                self._ending.pop().close()
            yield process
        finally:
            process.begin_close()
            self._ending.append(process)

    def share_compiled(self, process: CandidateProcess) -> None:
        """Give those after the process that was checked what Triton compiled in it.

        Only this candidate's own processes get it. One that hands out none, or something else, is
        as slow to start as before.
        """
        if self._accelerator is None or self._kernel.language != "triton":
            return
        process.resume()
        with contextlib.suppress(CandidateFault):
            compiled = process.built("triton")
            if compiled is not None:
                self._given["triton"] = compiled

    @contextlib.contextmanager
    def counting(self) -> Iterator[CandidateProcess]:
        """Yield the process that is ready to count a GPU's work, with the kernel loaded."""
        process, self._counting = self._counting, None
        assert process is not None
        try:
            process.await_warm()
            self._load(process)
            yield process
        finally:
            process.close()

    @contextlib.contextmanager
    def other(self, kernel: Kernel) -> Iterator[CandidateProcess]:
        """Yield a process of another text of the kernel, stopped."""
        process = self._start(kernel)
        try:
            process.load(kernel, None)
            process.pause()
            yield process
        finally:
            process.close()

    def launch_new(self, index: int) -> contextlib.AbstractContextManager[CandidateProcess]:
        """Yield the process of that number among those after the first, which was checked."""
        return self.launch(1 + index)

    def _start_together(self, count: int) -> list[CandidateProcess]:
        """Start this many processes; they last until the verdict."""
        before = len(self._standing)
        for _ in range(count):
            self._standing.append(self._start())
        return self._standing[before:]

    def _start(self, kernel: Kernel | None = None) -> CandidateProcess:
        return self._start_process(kernel or self._kernel, given=self._given)

    def _load(self, process: CandidateProcess) -> None:
        process.load(self._kernel, self._library)
        if self._builds and self.built is None:
            self.built = process.built("extensions")
            if self.built is not None:
                self._given["extensions"] = self.built
        process.pause()


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    """Call a kernel right but not timed if it loaded before and now takes too long to."""
    try:
        yield
    except CandidateFault as fault:
        if fault.decided.status != "timed_out":
            raise
        why = (
            f"it loaded once and then not again ({fault.decided.reason}), and one process is too "
            "few to time"
        )
        raise CandidateFault(Decided.untimed(why)) from fault


# torch.compile as a candidate: the reference worker compiles once, for all of its processes.
#
# A candidate has up to six processes, and each would probe the compiler and compile the same
# graphs (a softmax's first call takes 16.6 s, and 3.2 s with the graphs at hand). The reference
# worker is trusted, and compiling the reference gives the same graphs. The candidate's worker gets
# a copy of them in its private /tmp.


class SharedCompilations:
    """Compiled graphs of one problem, in a folder that only the reference worker fills."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._packed: PackedFiles | None = None
        self._problem = ""

    def close(self) -> None:
        if self._packed is not None:
            self._packed.close()
            self._packed = None
        if self._folder is not None:
            scratch.remove(self._folder)
            self._folder = None

    def of(self, kernel: Kernel, opened: OpenProblem, record: Record) -> PackedFiles | None:
        """Return the reference's graphs if the kernel is torch.compile of the reference.

        None for other kernels, and if candidates have no private /tmp.
        """
        if opened.accelerator is not None or not has_namespaces():
            return None
        if not is_compiled_reference(kernel, opened.problem):
            return None
        if self._folder is None or self._problem != opened.problem.hash:
            self.close()  # a candidate gets a copy of it all
            self._folder, self._problem = private_folder(None), opened.problem.hash
        if self._packed is not None:
            self._packed.close()
        try:
            opened.ask(
                do="compile into",
                folder=str(self._folder),
                compile_limit_s=opened.compile_limit_s,
            )
        except ReferenceFault as error:
            detail = f"each process compiles alone: {error}"
        else:
            detail = "once, by the reference worker; each process has a copy of its graphs"
        self._packed = PackedFiles.of(self._folder)
        record.note("compiled ahead", detail)
        return self._packed
