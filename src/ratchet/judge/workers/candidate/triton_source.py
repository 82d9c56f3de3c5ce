"""Load a Triton source inside the sandbox: from a file, or for the interpreter."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ratchet.kernels.languages.triton import load

PRETENDED = "gfx942"
"""What a kernel is told it runs on when it asks in the interpreter."""


def load_source(source: str, entry: str, path: Path) -> Callable[..., Any]:
    """The entry of a Python source, through a file: Triton looks its kernels' text up there.

    Raises KernelError where the source defines no such function, and what the source raises.
    """
    path.write_text(source)
    return load(path, entry)


def load_interpreted(source: str, entry: str) -> Callable[..., Any]:
    """The entry of a Triton source whose kernels will run in Triton's interpreter, on the CPU."""
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is decorated
    import triton
    import triton.testing

    from ratchet.judge.workers.candidate import interpreter_repairs

    interpreter_repairs.install()
    driver = _interpreter_driver()
    triton.runtime.driver.set_active(driver)
    triton.testing.do_bench = driver.benchmark
    folder = Path(tempfile.mkdtemp(prefix="triton-"))
    return load_source(source, entry, folder / "kernel.py")


def _interpreter_driver() -> Any:
    import torch

    from ratchet.judge.workers.candidate.architectures import ARCHITECTURES
    from ratchet.judge.workers.candidate.fake_driver import CompiledTexts, FakeDriver

    class InterpreterDriver(FakeDriver):
        """Answers what kernels ask of a driver; autotuners keep their first configuration."""

        def benchmark(
            self, call: Callable[[], Any], *_: Any, quantiles: Any = None, **__: Any
        ) -> float | list[float]:
            """Return the same for every configuration, none of which is run."""
            return 1.0 if quantiles is None else [1.0] * len(quantiles)

        def get_active_torch_device(self) -> Any:
            """Return the device on which the tensors really lie."""
            return torch.device("cpu")

    return InterpreterDriver(ARCHITECTURES[PRETENDED], units=1, compiled=CompiledTexts())
