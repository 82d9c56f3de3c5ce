"""The worker of the static profile: it runs a candidate without launches, and compiles for GPUs.

It runs inside the sandbox, where the candidate can deceive or kill it. So the judge takes its
answers as a description, never as evidence that a kernel is right or fast.
"""

from __future__ import annotations

import base64
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ratchet.amd.architectures import ARCHITECTURES, Architecture
from ratchet.amd.compile import assembly, tools
from ratchet.amd.compile.device_check import DeviceTexts, check_device
from ratchet.amd.compile.fake_driver import FakeDriver
from ratchet.amd.compile.hip_compiler import HipSources, compile_device, compile_sources
from ratchet.base.process.channel import Message, inherited
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.source_files import split_files
from ratchet.judge.problems.case import Case, ModelForm
from ratchet.judge.sandbox.confine import confine
from ratchet.judge.sandbox.serving import Reply, describe_error, serve

if TYPE_CHECKING:
    from torch import Tensor

ENVIRONMENT = {
    "TRITON_DISABLE_LINE_INFO": "1",  # line tables double the text and are not used
    "TRITON_ALWAYS_COMPILE": "0",
}
MAX_ELEMENTS_WITH_VALUES = 1 << 26
"""Inputs up to this size are drawn for an entry that reads values on the host."""


class ProfileWorker:
    """Profiles one kernel for one target at a time."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="profile-"))
        os.environ.update(ENVIRONMENT, TRITON_CACHE_DIR=str(self._folder / "triton"))

    def answer(self, message: Message, _: list[int]) -> Reply:
        actions: dict[str, Callable[[Message], Message]] = {
            "python": self._python,
            "hip": self._hip,
            "build": self._build,
            "check": self._check,
        }
        return actions[message["do"]](message), []

    def _python(self, message: Message) -> Message:
        """Call the entry on one case, with a driver that records the launches.

        Its inputs have no values, unless it fails without them.
        """
        architecture = ARCHITECTURES[message["target"]]
        for values in (False, True):
            driver = FakeDriver(architecture, units=message["units"])
            driver.install()
            error: BaseException | None = None
            try:
                self._call(message, architecture, values=values)
            except (Exception, SystemExit) as raised:
                error = raised
            if error is None or message["elements"] > MAX_ELEMENTS_WITH_VALUES:
                break
        for kernel in driver.kernels.values():
            self._read_on(architecture, kernel)
        return {
            "kernels": driver.kernels,
            "launches": driver.launches,
            "skipped_configs": driver.skipped_configs,
            "error": None if error is None else describe_error(error),
        }

    def _call(self, message: Message, architecture: Architecture, *, values: bool) -> None:
        from ratchet.amd.compile import torch_cuda

        case = msgspec.convert(message["case"], Case)
        form = msgspec.convert(message["model"], ModelForm | None)
        drawn = inputs_of(case, form, message["text"], values=values)
        with torch_cuda.pretended_device(architecture, message["units"], values=values):
            inputs = torch_cuda.moved(drawn, values=values)
            entry = _load(Kernel.from_json(message["kernel"]), is_model=form is not None)
            entry(*inputs, case.scalars)

    def _build(self, message: Message) -> Message:
        sources = msgspec.convert(message["sources"], HipSources)
        made = compile_sources(sources, Path(tempfile.mkdtemp(prefix="build-")))
        return {"assemblies": made.assemblies, "host": base64.b64encode(made.host).decode()}

    def _check(self, message: Message) -> Message:
        texts = msgspec.convert(message["texts"], DeviceTexts)
        made = check_device(texts, Path(tempfile.mkdtemp(prefix="check-")))
        return {"builds": msgspec.to_builtins(made)}

    def _hip(self, message: Message) -> Message:
        architecture = ARCHITECTURES[message["target"]]
        kernel = Kernel.from_json(message["kernel"])
        text, carried = split_files(kernel.source)
        folder = carried.write(self._folder)
        source = folder / f"kernel_{architecture.name}.hip"
        source.write_text(text)
        (folder / "ratchet_abi.h").write_text(message["interface"])
        macros = [f"-D{key}={value}" for key, value in kernel.schedule]
        texts = {"amdgcn": compile_device(source, architecture, macros)}
        found: dict[str, Message] = {}
        for code in assembly.parse(texts["amdgcn"]):
            found[code.name] = {"name": code.name, "texts": texts}
            self._read_on(architecture, found[code.name])
        return {"kernels": found, "launches": [], "skipped_configs": 0, "error": None}

    def _read_on(self, architecture: Architecture, kernel: Message) -> None:
        """Add the reports of other programs on a compiled kernel."""
        texts = kernel["texts"]
        codes = assembly.parse(texts.get("amdgcn", ""))
        body = next((code for code in codes if code.name == kernel["name"]), None)
        if body is not None:
            kernel["mca"] = tools.run_mca(architecture, body.hot_loop(), self._folder)
        if "ptx" in texts:
            texts["ptxas"] = tools.run_ptxas(texts["ptx"], self._folder)


def _load(kernel: Kernel, *, is_model: bool) -> Callable[..., object]:
    """Load the entry as f(*tensors, scalars), for each target anew: an autotuner remembers."""
    import torch

    namespace: dict[str, Any] = {"__name__": "candidate"}
    # A model's parameters must be on the device of the state that replaces them.
    with torch.device("cuda") if is_model else contextlib.nullcontext():
        exec(compile(kernel.source, "candidate.py", "exec"), namespace)
    entry: Callable[..., object] = namespace[kernel.entry]
    return entry


def inputs_of(case: Case, form: ModelForm | None, text: str, *, values: bool) -> list[Tensor]:
    """Return the inputs of a case; without values they take no memory.

    `text` is the file of a model, which draws its inputs.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from ratchet.judge.problems.inputs import build

    if form is not None and values:
        from ratchet.judge.problems.model_file import model_of

        return model_of(text, form).draw(case, seed=0)
    if values:
        return build(case.inputs, seed=0)
    if form is not None:
        return [
            torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device="meta")
            for spec in case.inputs
        ]
    with FakeTensorMode():
        return build(case.inputs, seed=0)


def main() -> None:
    """Confine this process, then serve the judge; argv holds the limits and the channel."""
    channel = inherited(int(sys.argv[2]))
    confine(sys.argv[1])
    serve(channel, ProfileWorker().answer)
    os._exit(0)


if __name__ == "__main__":
    main()
