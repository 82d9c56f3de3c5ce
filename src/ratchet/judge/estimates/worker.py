"""The process that compiles a reference for a GPU that is not here and emulates the kernels.

It is trusted, as the reference worker is: it runs the reference, and no candidate. It changes torch
for itself, so it does nothing else.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any, Final

import torch

from ratchet.base.errors import KernelError
from ratchet.base.process import families
from ratchet.base.process.channel import inherited
from ratchet.judge.emulator.build import compiled_machine
from ratchet.judge.emulator.loading import install
from ratchet.judge.estimates.inductor import check_version, pretend, written
from ratchet.judge.estimates.running import CountingDriver, emulated
from ratchet.judge.workers.arm import extend_import_path
from ratchet.judge.workers.candidate.architectures import ARCHITECTURES
from ratchet.judge.workers.serving import Reply, serve
from ratchet.problems.problem import Problem, Reference

SEED: Final = 1
"""Of the values that the kernels compute on; only counts are asked for."""


class CompiledReferenceWorker:
    """Holds one problem and one target."""

    def __init__(self) -> None:
        self._problem: Problem | None = None
        self._reference: Reference | None = None
        self._driver: CountingDriver | None = None

    def answer(self, message: dict[str, Any], _: list[int]) -> Reply:
        """Do what the judge asks; an exception is why there is no estimate."""
        actions = {"open": self._open, "case": self._case}
        return actions[message["do"]](message), []

    def _open(self, message: dict[str, Any]) -> dict[str, Any]:
        check_version()
        if importlib.util.find_spec("triton") is None:
            raise KernelError("triton is not installed: pip install triton==3.7.1")
        target = message["target"]
        self._problem = Problem.from_json(message["problem"])
        self._driver = CountingDriver(target, compiled_machine(target))
        self._reference = self._problem.load_reference()
        pretend(ARCHITECTURES[target], message["units"])
        install(self._driver)
        return {}

    def _case(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self._problem and self._reference and self._driver
        case = self._problem.cases[message["case"]]
        inputs = self._problem.build_inputs(case, SEED)
        program = written(self._reference, inputs, case.scalars)
        return {"emulated": emulated(program, inputs, self._driver)}


def main() -> None:
    """Serve the judge: arguments are the channel and the parent."""
    channel = inherited(int(sys.argv[1]))
    families.die_with_parent(int(sys.argv[2]))
    families.adopt_orphans()
    extend_import_path()
    torch.set_num_threads(1)
    serve(channel, CompiledReferenceWorker().answer)
    os._exit(0)


if __name__ == "__main__":
    main()
