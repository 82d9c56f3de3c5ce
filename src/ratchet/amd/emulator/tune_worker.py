"""The worker of sampled calls: it lists a file's configurations, and emulates some workgroups.

It runs inside the sandbox, as the worker of the static profile does.
"""

from __future__ import annotations

import base64
import inspect
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import torch

from ratchet.amd.architectures import PretendedDevice
from ratchet.amd.compile.fake_driver import assembly_number
from ratchet.amd.compile.worker import inputs_of
from ratchet.amd.emulator.loading import EmulatedLaunch, EmulatorDriver, poison_new_memory
from ratchet.amd.emulator.pretending import EmulatedGpu
from ratchet.base.errors import KernelError
from ratchet.base.process.channel import Message, inherited
from ratchet.judge.kernels.source_files import load_source, split_files
from ratchet.judge.problems.case import Case, ModelForm
from ratchet.judge.sandbox.confine import confine
from ratchet.judge.sandbox.serving import Reply, serve
from ratchet.judge.workers.candidate.census import add_launch

SCALED: Final = ("lanes", "bytes", "lines_64", "lds_bytes", "lds_conflicts")
LAYERS: Final = 4  # most decorators around a kernel's function
MOST_LAUNCHES: Final = 64  # of one call


class SampledDriver(EmulatorDriver):
    """Executes a sample of each launch's workgroups, and scales the counts up to all of them."""

    def __init__(self, message: Message, library: Path) -> None:
        device = PretendedDevice.of(message["target"], message["device"])
        super().__init__(device, library, lambda _: True, predicts=True)
        self.done: list[Message] = []

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        text = self.texts_of(metadata.hash).get("amdgcn", "")
        spills = sum(assembly_number(text, f"{kind}_spill_count") for kind in ("vgpr", "sgpr"))
        if spills:
            raise KernelError(f"spills {spills} registers")
        return super().launcher_cls(source, metadata)

    def add(self, launch: EmulatedLaunch) -> None:
        """Keep the counts of a launch, as of all its workgroups."""
        if len(self.done) >= MOST_LAUNCHES:
            raise KernelError(f"launches more than {MOST_LAUNCHES} kernels in one call")
        told: dict[str, Message] = {}
        add_launch(told, launch, shown=False)
        ran = -(-launch.programs // launch.step)
        factor = launch.programs / ran
        for one in told.values():
            mixed = one["by_mnemonic"]
            one["by_mnemonic"] = {name: round(count * factor) for name, count in mixed.items()}
            one |= {name: round(one[name] * factor) for name in SCALED}
            touched = round(one["touched_bytes"] * factor)
            # Workgroups share lines, but touch no more than all that the launch was given.
            one["touched_bytes"] = min(touched, max(launch.memory_bytes, one["touched_bytes"]))
            one["by_place"] = {}
        self.done.append(
            {
                "told": told,
                "ran": ran,
                "vgprs": launch.kernel.vgprs,
                "workgroup_waves": launch.workgroup_waves,
                "lds_bytes": launch.lds_bytes,
            }
        )


class TuneWorker:
    """Loads one file's variants one after another, on one pretended GPU."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tune-"))
        os.environ["TRITON_CACHE_DIR"] = str(self._folder / "triton")
        self._driver: SampledDriver | None = None
        self._gpu: EmulatedGpu | None = None
        self._count = 0

    def answer(self, message: Message, _: list[int]) -> Reply:
        driver, gpu = self._begun(message)
        self._count += 1
        source, carried = split_files(message["source"])
        folder = carried.write(self._folder / str(self._count))
        path = folder / f"kernel_{self._count}.py"
        if message["do"] == "list":
            with gpu.entered(), torch.no_grad():
                load_source(source, message["entry"], path)
            return {"kernels": list(_kernels(vars(sys.modules[path.stem])))}, []
        case = msgspec.convert(message["case"], Case)
        form = msgspec.convert(message["model"], ModelForm | None)
        inputs = inputs_of(case, form, message["text"], values=True)
        driver.done, driver.limit, driver.sample = [], message["limit"], message["sample"]
        with gpu.entered(), torch.no_grad():
            load_source(source, message["entry"], path)(*inputs, case.scalars)
        return {"launches": driver.done}, []

    def _begun(self, message: Message) -> tuple[SampledDriver, EmulatedGpu]:
        """Install the driver once: what it changes holds for the whole process."""
        if self._driver is None or self._gpu is None:
            library = self._folder / "machine.so"
            library.write_bytes(base64.b64decode(message["machine"]))
            self._driver = SampledDriver(message, library)
            self._gpu = EmulatedGpu(PretendedDevice.of(message["target"], message["device"]))
            poison_new_memory()
            self._driver.install()
        return self._driver, self._gpu


def _kernels(namespace: Mapping[str, Any]) -> Iterator[Message]:
    """Yield a module's own Triton kernels, with their configurations if they are autotuned."""
    for name, found in namespace.items():
        layer, tuner, tuner_layer = found, None, 0
        for depth in range(LAYERS):
            if tuner is None and isinstance(getattr(layer, "configs", None), list):
                tuner, tuner_layer = layer, depth
            inner = getattr(layer, "fn", None)
            if inner is None or inspect.isfunction(inner):
                break
            layer = inner
        if not hasattr(layer, "arg_names"):
            continue
        params = getattr(layer, "params", ())
        yield {
            "name": name,
            "tuner": None if tuner is None else ".fn" * tuner_layer,
            "arguments": [str(one) for one in layer.arg_names],
            "constants": [one.name for one in params if one.is_constexpr],
            "configs": [_described(one) for one in getattr(tuner, "configs", ())],
        }


def _described(config: Any) -> Message:
    values = {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}
    plain = (bool, int, float, str, type(None))
    return {
        str(name): value if isinstance(value, plain) else str(value)[:200]
        for name, value in values.items()
    }


def main() -> None:
    """Confine this process, then serve; argv holds the limits and the channel."""
    channel = inherited(int(sys.argv[2]))
    confine(sys.argv[1])
    answer: Callable[[Message, list[int]], Reply] = TuneWorker().answer
    serve(channel, answer)
    os._exit(0)


if __name__ == "__main__":
    main()
