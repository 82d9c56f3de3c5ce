"""torch.compile as a candidate: the reference worker compiles first, for all of its processes.

A candidate has up to six processes, and each would try the compiler and compile the same graphs (a
softmax's first call: 16.6 s, and 3.2 s with the graphs at hand). The reference worker is trusted,
and compiles the reference itself, which gives the same graphs; `workers.compilations` says what the
candidate gets of that.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from ratchet.judge.candidate_process import ReferenceFault
from ratchet.judge.isolation import bubblewrap, private_folder
from ratchet.judge.kernel_checks import OpenProblem
from ratchet.judge.model_answer import is_compiled_reference
from ratchet.judge.verdict import Evidence
from ratchet.kernels.kernel import Kernel


class SharedCompilations:
    """A folder of compiled graphs that only the reference worker fills, for one problem."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._problem = ""

    def close(self) -> None:
        """Remove the folder."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def of(self, kernel: Kernel, opened: OpenProblem, evidence: list[Evidence]) -> Path | None:
        """The folder with the reference's graphs, where the kernel is the reference compiled.

        None for other kernels, and where no sandbox keeps the folder from being written to.
        """
        if opened.accelerator is not None or bubblewrap() is None:
            return None
        if not is_compiled_reference(kernel, opened.problem):
            return None
        if self._folder is None or self._problem != opened.problem.hash:
            self.close()  # a candidate gets a copy of it all
            self._folder, self._problem = private_folder(None), opened.problem.hash
            self._folder.chmod(0o755)
        try:
            opened.compile_into(self._folder)
        except ReferenceFault as error:
            detail = f"each process compiles alone: {error}"
        else:
            detail = "once, by the reference worker; each process has a copy of its graphs"
        evidence.append(Evidence(check="compiled ahead", passed=True, detail=detail))
        return self._folder
