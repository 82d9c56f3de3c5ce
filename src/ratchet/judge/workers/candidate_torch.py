"""The worker of a kernel written in Python with torch: the same sandbox, the same protocol.

The entry is called as the reference is, f(*tensors, scalars), and returns new values of in-place
tensors, then outputs; they are copied to shared memory here, inside the clock.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ratchet.errors import JudgeError, KernelError
from ratchet.judge.channel import inherited
from ratchet.judge.workers.candidate import IN_PLACE, INPUTS, OUTPUTS, Reply, serve
from ratchet.judge.workers.confine import confine
from ratchet.judge.workers.device import Device, Host, open_device
from ratchet.judge.workers.driver_memory import DriverRefusal
from ratchet.kernels.abi import DTYPE_CODES
from ratchet.kernels.kernel import Kernel

Entry = Callable[..., Any]
DTYPES = {code: getattr(torch, name) for name, code in DTYPE_CODES.items() if name != "uint8"}


class Batch:
    """Calls whose tensors point at memory that is not there yet."""

    def __init__(self, layout: dict[str, Any], device: Device) -> None:
        """Reserve the addresses."""
        sizes = zip(layout["region_bytes"], layout["slack_pages"], strict=True)
        self._device = device
        self.device_s: float | None = None
        """Seconds of the calls by the device's own clock, where it has one."""
        self.regions = [device.memory.region(size, slack) for size, slack in sizes]
        self.scalars = tuple(layout["scalars"])
        self.writable_inputs: bool = layout["writable_inputs"]
        count = layout["input_count"]
        self.calls = [self._call(call, count) for call in layout["calls"]]

    def _call(self, call: list[Any], count: int) -> tuple[list[Tensor], list[Tensor]]:
        tensors = [self._view(*slot) for slot in call]
        changed = [t for t, slot in zip(tensors[:count], call, strict=False) if slot[0] == IN_PLACE]
        return tensors[:count], [*changed, *tensors[count:]]

    def _view(
        self, region: int, offset: int, code: int, size: Sequence[int], stride: Sequence[int]
    ) -> Tensor:
        address = self.regions[region].address + offset
        return self._device.memory.tensor(address, DTYPES[code], size, stride)

    def run(self, entry: Entry, descriptors: list[int]) -> list[int]:
        """Reveal the memory, make every call, copy what it returns, and wait for the device."""
        self.reveal(descriptors)
        begin = self._device.mark()
        for inputs, answers in self.calls:
            outputs = entry(*inputs, self.scalars)
            if not isinstance(outputs, tuple) or len(outputs) != len(answers):
                raise KernelError(f"the entry must return a tuple of {len(answers)} tensors")
            for answer, output in zip(answers, outputs, strict=True):
                _copy(answer, output)
        end = self._device.mark()
        self._device.finish()
        self.device_s = self._device.between_s(begin, end)
        return [0] * len(self.calls)

    def reveal(self, descriptors: list[int]) -> None:
        """Map the memory where the arguments point: nothing can be written before the clock."""
        self.regions[INPUTS].reveal(descriptors[0], writable=self.writable_inputs)
        self.regions[IN_PLACE].reveal(descriptors[1], writable=True)
        self.regions[OUTPUTS].reveal(descriptors[2], writable=True)

    def release(self) -> None:
        """Give the addresses back."""
        for region in self.regions:
            region.release()


class Worker:
    """Loads and calls one kernel."""

    def __init__(self) -> None:
        self._entry: Entry | None = None
        self._batch: Batch | None = None
        self._last: Batch | None = None
        self._device: Device = Host()

    def answer(self, message: dict[str, Any], descriptors: list[int]) -> Reply:
        """Do what the judge asks."""
        actions: dict[str, Callable[[dict[str, Any], list[int]], Reply]] = {
            "load": self._load,
            "prepare": self._prepare,
            "go": self._go,
        }
        try:
            with torch.no_grad():
                return actions[message["do"]](message, descriptors)
        except DriverRefusal as error:
            return {"no_device": str(error)}, []

    def _load(self, message: dict[str, Any], _: list[int]) -> Reply:
        kernel = Kernel.from_json(message["kernel"])
        try:
            self._device = open_device(message.get("device"))
            self._device.try_sharing()
        except JudgeError as error:
            return {"no_device": str(error)}, []
        self._entry = _loaded(kernel)
        return {"value": None}, []

    def _prepare(self, message: dict[str, Any], _: list[int]) -> Reply:
        batch = Batch(message["layout"], self._device)
        if self._last is not None:
            self._last.release()
        self._last, self._batch = self._batch, batch
        return {"value": None}, []

    def _go(self, message: dict[str, Any], descriptors: list[int]) -> Reply:
        assert self._batch is not None and self._entry is not None
        if message.get("census"):
            return self._counted(descriptors)
        began = time.process_time()
        codes = self._batch.run(self._entry, descriptors)
        cpu_time_s = time.process_time() - began
        return {"codes": codes, "cpu_time_s": cpu_time_s, "device_s": self._batch.device_s}, []

    def _counted(self, descriptors: list[int]) -> Reply:
        """The same, with a census of what the calls did; nothing is timed then."""
        from ratchet.judge.workers.census import Census
        from ratchet.judge.workers.device_census import DeviceCensus

        assert self._batch is not None and self._entry is not None
        batch = self._batch
        census = Census() if isinstance(self._device, Host) else DeviceCensus(self._device)
        codes = census.take(lambda entry: batch.run(entry, descriptors), self._entry)
        return {"codes": codes, "cpu_time_s": 0.0, "census": census.as_json()}, []


def _loaded(kernel: Kernel) -> Entry:
    """The entry of a source; Triton's is a file, for Triton looks up its kernels' text."""
    if kernel.language == "triton":
        from ratchet.judge.workers.candidate_triton import load_source

        folder = Path(tempfile.mkdtemp(prefix="triton-"))
        return load_source(kernel.source, kernel.entry, folder / "kernel.py")
    namespace: dict[str, Any] = {"__name__": "candidate"}
    exec(compile(kernel.source, "kernel.py", "exec"), namespace)
    entry: Entry | None = namespace.get(kernel.entry)
    if not callable(entry):
        raise KernelError(f"the source defines no function {kernel.entry!r}")
    return entry


def _copy(answer: Tensor, output: Any) -> None:
    if type(output) is not Tensor or output.shape != answer.shape or output.dtype != answer.dtype:
        shown = f"{tuple(output.shape)} {output.dtype}" if isinstance(output, Tensor) else output
        raise KernelError(
            f"an output is {shown!s:.100}, not a plain tensor {tuple(answer.shape)} {answer.dtype}"
        )
    if output.device != answer.device:
        raise KernelError(f"an output lies on {output.device}, and the inputs on {answer.device}")
    answer.copy_(output)


def main() -> None:
    """Confine this process, then serve the judge: arguments are the limits and the channel."""
    channel = inherited(int(sys.argv[2]))
    confine(sys.argv[1])
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    serve(channel, Worker().answer)
    os._exit(0)


if __name__ == "__main__":
    main()
