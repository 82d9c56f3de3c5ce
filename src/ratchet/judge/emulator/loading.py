"""Load a Triton source in the sandbox so that its launches are emulated, on tensors in memory."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ratchet.errors import KernelError
from ratchet.judge.emulator.decode import DecodedKernel, decode
from ratchet.judge.emulator.launch import Emulator, LaunchCounts, Memory, Value
from ratchet.judge.workers.candidate.architectures import ARCHITECTURES
from ratchet.judge.workers.candidate.fake_driver import CompiledTexts, FakeDriver
from ratchet.judge.workers.candidate.triton_source import load_source


class EmulatorDriver(FakeDriver):
    """Triton compiles through it for a GPU that is not here, and each launch is emulated."""

    def __init__(self, target: str, library: Path) -> None:
        super().__init__(ARCHITECTURES[target], units=1, compiled=CompiledTexts())
        self.emulator = Emulator(library)
        self.counts: list[tuple[str, LaunchCounts]] = []
        """Of the launches since they were last taken."""

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        """Return what Triton makes once for each compiled kernel."""
        return _EmulatedLauncher(self, source, metadata)

    def benchmark(
        self, call: Callable[[], Any], *_: Any, quantiles: Any = None, **__: Any
    ) -> float | list[float]:
        """Return the same for every configuration, none of which is run."""
        return 1.0 if quantiles is None else [1.0] * len(quantiles)

    def get_active_torch_device(self) -> Any:
        """Return the device on which the tensors really lie."""
        import torch

        return torch.device("cpu")


class _EmulatedLauncher:
    """Called in place of a launch."""

    def __init__(self, driver: EmulatorDriver, source: Any, metadata: Any) -> None:
        self._driver = driver
        self._kinds = [str(kind) for kind in source.signature.values()]
        self._threads = int(metadata.num_warps) * driver.architecture.wavefront_size
        self._shared = int(metadata.shared)
        text = driver.compiled.of(metadata.hash).get("amdgcn", "")
        self._kernel = functools.cache(lambda: decode(text))
        if int(getattr(metadata, "global_scratch_size", 0) or 0):
            raise KernelError("a kernel with scratch memory of Triton's own is not emulated")

    def __call__(self, *given: Any) -> None:
        """grid x, y, z, stream, function, packed metadata, launch metadata, two hooks, arguments"""
        kernel: DecodedKernel = self._kernel()
        values, memories = [], []
        for value, kind in zip(given[9:], self._kinds, strict=False):
            if kind == "constexpr":
                continue
            if hasattr(value, "untyped_storage"):
                storage = value.untyped_storage()
                memories.append(Memory(storage.data_ptr(), storage.nbytes()))
                values.append(Value(kind, value.data_ptr()))
            elif isinstance(value, (bool, int, float)):
                values.append(Value(kind, value))
            elif value is None:
                values.append(Value(kind, 0))
            else:
                raise KernelError(f"an argument of type {type(value).__name__} is not emulated")
        counts = self._driver.emulator.run(
            kernel,
            grid=[int(size) for size in given[:3]],
            threads=self._threads,
            shared_bytes=self._shared,
            values=values,
            memories=memories,
        )
        self._driver.counts.append((kernel.name, counts))


def load_emulated(source: str, entry: str, target: str, library: str) -> Callable[..., Any]:
    """The entry of a Triton source whose kernels will run as `target`'s machine code."""
    import triton
    import triton.testing

    os.environ["TRITON_DISABLE_LINE_INFO"] = "0"  # a fault names its line
    driver = EmulatorDriver(target, Path(library))
    triton.knobs.compilation.listener = driver.compiled
    triton.runtime.driver.set_active(driver)
    triton.testing.do_bench = driver.benchmark
    triton.compiler.compiler.max_shared_mem.cache_clear()
    folder = Path(tempfile.mkdtemp(prefix="triton-"))
    return load_source(source, entry, folder / "kernel.py")
