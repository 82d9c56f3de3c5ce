"""torch.compile as a candidate: the reference worker compiles once, for all of its processes.

A candidate has up to six processes, and each would probe the compiler and compile the same graphs
(a softmax's first call takes 16.6 s, and 3.2 s with the graphs at hand). The reference worker is
trusted, and compiling the reference gives the same graphs. The candidate's worker gets a copy of
them in its private /tmp.
"""

from __future__ import annotations

from pathlib import Path

from ratchet.base import scratch
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.sandbox.isolation import has_namespaces, private_folder
from ratchet.judge.sandbox.packed_files import PackedFiles
from ratchet.judge.trial.kernel_checks import OpenProblem
from ratchet.judge.trial.processes.reference import ReferenceFault
from ratchet.judge.verdict import Evidence
from ratchet.judge.workers.candidate.model_answer import is_compiled_reference


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

    def of(self, kernel: Kernel, opened: OpenProblem) -> PackedFiles | None:
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
            opened.compile_into(self._folder)
        except ReferenceFault as error:
            detail = f"each process compiles alone: {error}"
        else:
            detail = "once, by the reference worker; each process has a copy of its graphs"
        self._packed = PackedFiles.of(self._folder)
        opened.evidence.append(Evidence(check="compiled ahead", passed=True, detail=detail))
        return self._packed
