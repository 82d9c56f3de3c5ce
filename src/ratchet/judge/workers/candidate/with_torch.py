"""The worker of a kernel written in Python with torch: the same sandbox, the same protocol.

The entry is called as the reference is, f(*tensors, scalars), and returns new values of in-place
tensors, then outputs. They stay where they are until the next batch, and the judge reads them
there. If it cannot, the worker copies them to shared memory, inside the clock.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import gc
import io
import logging
import math
import operator
import os
import random
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, MethodDescriptorType

import torch
from torch import Tensor

from ratchet.base.errors import JudgeError
from ratchet.base.process.channel import Message, close_descriptors, inherited
from ratchet.judge.abi import DTYPE_CODES
from ratchet.judge.kernels.kernel import Kernel
from ratchet.judge.kernels.source_files import load
from ratchet.judge.sandbox.confine import EXTENSIONS, confine
from ratchet.judge.sandbox.serving import (
    CHANGED,
    UNPLACED,
    Answer,
    Reply,
    State,
    changes,
    process_state,
    serve_candidate,
)
from ratchet.judge.sandbox.shared_memory import (
    IN_PLACE,
    INPUTS,
    OUTPUTS,
    BatchLayout,
    Handing,
    LastBatches,
    PackedFiles,
    Slot,
    shift_heap,
)
from ratchet.judge.workers.candidate.results import (
    WANTS_FORMS,
    DeclinedCase,
    Kept,
    ResultForm,
    as_results,
    places,
)
from ratchet.judge.workers.candidate.standing import Standing
from ratchet.judge.workers.device import Gpu, WorkerDevice, open_device
from ratchet.judge.workers.driver_memory import DriverRefusal
from ratchet.judge.workers.first_calls import make_first_calls

Entry = Callable[..., object]
OWN_COMPILATIONS = "/tmp/compilations"
"""A candidate's own copy of the reference's graphs. They hold code and shapes, but no values, seeds
or answers."""
COMPILATION_CACHE = "TORCHINDUCTOR_CACHE_DIR"
COMPILED = {
    COMPILATION_CACHE: OWN_COMPILATIONS,
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
}
"""The environment of a worker that gets such a copy. Making a precompiled header (100 MB) takes
longer than it saves once the code exists, and its place is part of a graph's key."""
BUILT_IN = {"extensions": EXTENSIONS, "triton": "TRITON_CACHE_DIR"}
"""The variable that names the folder of what a candidate builds itself."""
EMULATOR = "RATCHET_EMULATOR"  # The variable that names the emulator's library to a kernel's source
SEED = "torch's seed"
SEEDS = ("Python's seed", "numpy's seed")
NUMPY_ERRORS = "warn, warn, ignore, warn"  # Division, overflow, underflow, what is invalid
DEPTH = sys.getrecursionlimit()
OF_STEPS = {
    torch.Tensor: ("backward",),
    torch.nn.Module: ("__call__", "train", "zero_grad", "state_dict"),
    torch.autograd: ("backward", "grad"),
}
"""Functions in Python that training steps call; torch.compile replaces some of the others."""
FUNCTIONS = [
    (
        vars(owner),
        {
            name: function
            for name, function in vars(owner).items()
            if (isinstance(function, BuiltinFunctionType | MethodDescriptorType) and named is None)
            or (owner is torch.nn.functional and callable(function))
            or name in (named or ())
        },
    )
    for owner, named in (
        *((one, None) for one in (torch, torch.Tensor, torch.nn.functional)),
        *((one, None) for one in (builtins, math, time)),
        *OF_STEPS.items(),
    )
]
"""Functions that code after a call expects; torch itself replaces none of them."""
METHODS = [
    (one, name, vars(one)[name])
    for owner, name in ((torch.nn, "forward"), (torch.optim, "step"))
    for one in vars(owner).values()
    if isinstance(one, type) and name in vars(one)
]
"""Methods of layers and optimizers; torch itself wraps some of them."""
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1, signal.SIGCHLD)
OF_OPTIMIZERS = vars(sys.modules["torch.optim.optimizer"])
HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_parameter_registration_hooks",
)
HOOKS_OF_STEPS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
DTYPES = {code: getattr(torch, name) for name, code in DTYPE_CODES.items()}


class TorchBatch:
    """Calls whose tensors point at memory that is not there yet."""

    def __init__(
        self, layout: BatchLayout, device: WorkerDevice, outputs: str, standing: Standing
    ) -> None:
        """Reserve the addresses. `standing` holds the tensors that stay from batch to batch.

        `outputs` says what becomes of the results. `kept`: they stay until the next batch.
        `copied`: they are copied to the shared memory. `mapped`: that memory is mapped and they are
        kept; so the reference runs beside a compiled kernel, which writes its outputs there.
        """
        self._copy_out = outputs == "copied"
        self._map_out = outputs != "kept"
        self._device, self._standing = device, standing
        self._handing = layout.handing or [Handing.OWN] * len(layout.calls)
        self.device_s: float | None = None
        """Seconds of the calls by the device's own clock, if it has one."""
        self.kept: Kept = []  # The results of each call
        self.regions = [device.memory.region(*place) for place in layout.places()]
        self.scalars = tuple(layout.scalars)
        self.writable_inputs, self._views = layout.writable_inputs, layout.views
        inputs = layout.calls[0][: layout.input_count]
        self.in_place = [place for place, slot in enumerate(inputs) if slot.region == IN_PLACE]
        self.calls = [self._call(layout, call) for call in range(len(layout.calls))]

    def _call(
        self, layout: BatchLayout, call: int
    ) -> tuple[list[Tensor], list[ResultForm], list[Tensor]]:
        """Return inputs, forms of the results, and where these are copied, if they are."""
        inputs = [self._view(slot) for slot in layout.calls[call][: layout.input_count]]
        slots, device = layout.answers(call), self._device.memory.device
        forms = [
            ResultForm(shape=tuple(one.size), dtype=DTYPES[one.dtype], device=device)
            for one in slots
        ]
        return inputs, forms, [self._view(slot) for slot in slots] if self._copy_out else []

    def _view(self, slot: Slot) -> Tensor:
        address = self.regions[slot.region].address + slot.offset
        return self._device.memory.tensor(address, DTYPES[slot.dtype], slot.size, slot.stride)

    def run(self, entry: Entry, descriptors: list[int]) -> list[int]:
        """Reveal the memory, make every call, keep or copy the results, wait for the device."""
        self.reveal(descriptors)
        if self._device.memory.seals:  # the kernel needs the memory, not its files
            close_descriptors(descriptors)
            descriptors.clear()
        begin = self._device.mark()
        wants_forms = getattr(entry, WANTS_FORMS, False)
        codes = [0] * len(self.calls)
        for call, (inputs, forms, _) in enumerate(self.calls):
            more = (forms, self.in_place) if wants_forms else ()
            how = self._handing[call]
            try:
                if how is Handing.OWN:
                    results = as_results(entry(*inputs, self.scalars, *more), forms)
                else:
                    results = self._on_standing(entry, how, call, self.scalars, *more)
            except DeclinedCase as error:
                kept = [inputs[place] for place in self.in_place]
                fresh = [one.blank() for one in forms[len(kept) :]]
                codes[call], results = error.code, (*kept, *fresh)
            self.kept.append(results)
        if self._copy_out:  # after all calls: a caller may hold the results of several
            for (_, _, answers), returned in zip(self.calls, self.kept, strict=True):
                for answer, result in zip(answers, returned, strict=True):
                    answer.copy_(result)
            self.kept = []
        end = self._device.mark()
        self._device.finish()
        self.device_s = self._device.between_s(begin, end)
        return codes

    def _on_standing(
        self, entry: Entry, how: Handing, call: int, *more: object
    ) -> tuple[Tensor, ...]:
        """Make a call on tensors that stay; what it changed there is copied for the judge."""
        inputs, forms, _ = self.calls[call]
        found = self._standing.call(entry, how, call, inputs, self.in_place, *more)
        results = as_results(found, forms)
        # The reference's outputs may be views of its inputs: then the kernel's may be too.
        changed = len(results) if self._views else len(self.in_place)
        return (*(one.clone() for one in results[:changed]), *results[changed:])

    def reveal(self, descriptors: list[int]) -> None:
        """Map the memory where the arguments point; nothing can be written earlier."""
        self.regions[INPUTS].reveal(descriptors[0], writable=self.writable_inputs)
        self.regions[IN_PLACE].reveal(descriptors[1], writable=True)
        if self._map_out:
            self.regions[OUTPUTS].reveal(descriptors[2], writable=True)

    def release(self) -> None:
        """Give back the addresses and the kept results."""
        self.kept = []
        for region in self.regions:
            region.release()


def settle() -> None:
    """Remove what would cost one arm's calls time by chance, once everything is loaded.

    A garbage collection over torch's objects would fall into a timed batch. A process with one
    thread takes no locks, and a library may have started threads in one arm only.
    """
    gc.freeze()
    threading.Thread(target=threading.Event().wait, daemon=True).start()


class TorchWorker:
    """Loads and calls one kernel."""

    def __init__(self) -> None:
        self._entry: Entry | None = None
        self._batches: LastBatches[TorchBatch] = LastBatches()
        self._device = WorkerDevice()
        self._state: State = {}
        self._set_anew = SetAnew()
        self._standing = Standing()
        self._grad = "off"  # The gradient mode that the last calls left: on or off

    def answer(self, message: Message, descriptors: list[int]) -> Reply:
        actions: dict[str, Answer] = {
            "load": self._load,
            "warm": self._warm,
            "built": self._built,
            "prepare": self._prepare,
            "go": self._go,
        }
        try:
            with torch.no_grad():
                return actions[message["do"]](message, descriptors)
        except DriverRefusal as error:
            return {"no_device": str(error)}, []

    def _load(self, message: Message, descriptors: list[int]) -> Reply:
        kernel = Kernel.from_json(message["kernel"])
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)  # a crash must not take its last words
        _take_files(message.get("files", {}), descriptors)
        try:
            self._device = open_device(message.get("device"))
            self._device.try_sharing()
        except JudgeError as error:
            return {"no_device": str(error)}, []
        if EMULATOR in os.environ:
            from ratchet.judge.workers.candidate.census import listen

            listen()
        self._entry = _loaded(kernel)
        settle()
        return {"value": None, UNPLACED: getattr(self._entry, UNPLACED, [])}, []

    def _warm(self, message: Message, _: list[int]) -> Reply:
        """Prepare to count a GPU's work, before any candidate code is here."""
        from ratchet.judge.workers.candidate.census import DeviceCensus

        try:
            DeviceCensus(open_device(message["device"])).warm()
        except JudgeError as error:
            return {"no_device": str(error)}, []
        return {"value": None}, []

    def _built(self, message: Message, _: list[int]) -> Reply:
        packed = PackedFiles.of(Path(os.environ[BUILT_IN[message["what"]]]))
        return {"files": packed.files}, [packed.descriptor]

    def _prepare(self, message: Message, _: list[int]) -> Reply:
        layout, before = BatchLayout.of(message["layout"]), self._batches.now
        made = partial(TorchBatch, layout, self._device, message["outputs"], self._standing)
        self._batches.take(layout, made)
        if before is not None:
            before.kept = []
        if not self._device.memory.seals:
            self._batches.release()  # a GPU's memory is the limit of a batch
        return {"value": None, CHANGED: self._changes(layout)}, []

    def _changes(self, layout: BatchLayout) -> list[str]:
        """Return what earlier calls left changed in this process, in words."""
        now = {**state_with_torch(), **self._set_anew.state(), "torch's gradients": self._grad}
        if layout.seeds:
            del now[SEED]
        self._state = self._state or now
        return changes(self._state, now)

    def _go(self, message: Message, descriptors: list[int]) -> Reply:
        batch = self._batches.now
        assert batch is not None and self._entry is not None
        if message.get("census"):
            return self._counted(batch, self._entry, descriptors)
        began = time.process_time()
        codes = batch.run(self._entry, descriptors)
        self._grad = "on" if torch.is_grad_enabled() else "off"
        outputs = places(batch.kept)
        cpu_time_s = time.process_time() - began
        reply = {"codes": codes, "cpu_time_s": cpu_time_s, "device_s": batch.device_s}
        rejected = {str(int(how)): words for how, words in self._standing.rejected.items()}
        return {**reply, "outputs": outputs, "rejected": rejected}, []

    def _counted(self, batch: TorchBatch, entry: Entry, descriptors: list[int]) -> Reply:
        """Run a batch with a census of what the calls did; it is not timed."""
        from ratchet.judge.workers.candidate.census import Census, DeviceCensus

        census = DeviceCensus(self._device) if isinstance(self._device, Gpu) else Census()
        codes = census.take(lambda counted: batch.run(counted, descriptors), entry)
        told = {"census": census.as_json(), "outputs": places(batch.kept)}
        return {"codes": codes, "cpu_time_s": 0.0, **told}, []


def state_with_torch() -> State:
    """Return what a call must leave as it was, in words."""
    replaced = [
        name
        for held, owned in FUNCTIONS
        if any(map(operator.is_not, map(held.get, owned), owned.values()))
        for name, one in owned.items()
        if held.get(name) is not one
    ]
    replaced += _replaced_methods()
    modes = {
        "autocast": torch.is_autocast_enabled("cpu"),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "oneDNN": torch._C._get_mkldnn_enabled(),
        "deterministic oneDNN": torch._C._get_mkldnn_deterministic(),
        "flash attention": torch._C._get_flash_sdp_enabled(),
        "attention in steps": torch._C._get_math_sdp_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "anomalies": torch.is_anomaly_enabled(),
        "hooks of saved tensors": torch._C._autograd._top_saved_tensors_default_hooks(True),
        "cuDNN's benchmarks": torch._C._get_cudnn_benchmark(),
        "deterministic cuDNN": torch._C._get_cudnn_deterministic(),
        "filled memory": torch._C._get_deterministic_fill_uninitialized_memory(),
        "gradients on threads": torch._C._is_multithreading_enabled(),
        "every warning": torch.is_warn_always_enabled(),
        "the order of einsum": torch.backends.opt_einsum.enabled,
    }
    hooks = torch.nn.modules.module
    stacks = [
        torch._C._len_torch_function_stack(),
        torch._C._len_torch_dispatch_stack(),
        *(len(getattr(hooks, name)) for name in HOOKS),
        *(len(found) for name, found in OF_OPTIMIZERS.items() if name in HOOKS_OF_STEPS),
    ]
    compiling = sys.modules.get("torch._dynamo.eval_frame")
    return {
        **process_state(),
        "torch's threads": str(torch.get_num_threads()),
        "torch's threads between operations": str(torch.get_num_interop_threads()),
        "torch's default dtype": str(torch.get_default_dtype()),
        SEED: str(torch.initial_seed()),
        "torch's precision of products": str(
            [
                torch.get_float32_matmul_precision(),
                getattr(torch.backends.mkldnn, "matmul").fp32_precision,  # noqa: B009
            ]
        ),
        "torch's replaced functions": ", ".join(replaced) or "none",
        "torch's modes": ", ".join(name for name, is_on in modes.items() if is_on) or "none",
        "torch's function modes and hooks of all modules": str(stacks),
        "torch's own operators": f"{_replaced(len(torch.library._impls))} of them replaced",
        "when torch compiles": "default" if compiling is None else compiling._stance.stance,
        "how tensors are printed": str(torch._tensor_str.PRINT_OPTS),
        "handlers of signals": str([hash(signal.getsignal(one)) for one in HANDLED]),
        "warnings": "errors"
        if any(one[0] == "error" and one[2] is Warning for one in warnings.filters)
        else "no errors",
        "logging": f"off up to {logging.root.manager.disable}",
        "where Python prints": str([id(sys.stdout), id(sys.stderr)]),
        "the garbage collector": "on" if gc.isenabled() else "off",
        "the garbage collector's thresholds": str(gc.get_threshold()),
        "what traces Python": ", ".join(
            name
            for name, one in (("trace", sys.gettrace()), ("profile", sys.getprofile()))
            if one is not None
        )
        or "nothing",
        "the depth of Python's calls": f"{min(DEPTH, sys.getrecursionlimit())} or more",
        "numpy's errors": _numpy_errors(),
        "how long a thread keeps the interpreter": f"{sys.getswitchinterval():g} s",
    }


@functools.lru_cache(maxsize=1)
def _replaced(kernels: int) -> int:
    """Return how many of torch's operators have another kernel for the CPU, as Python tells it.

    `kernels` is how many torch.library keeps now: it is asked again once there are more.
    """
    return sum(one.startswith("aten/") and one.endswith("/CPU") for one in torch.library._impls)


def _replaced_methods() -> Iterator[str]:
    for owner, name, own in METHODS:
        now: object = vars(owner).get(name)
        while now is not own and hasattr(now, "__wrapped__"):
            now = now.__wrapped__
        if now is not own:
            yield f"{owner.__name__}.{name}"


def _numpy_errors() -> str:
    """Return what numpy does at errors of arithmetic; its default before it is imported."""
    numpy = sys.modules.get("numpy")
    return NUMPY_ERRORS if numpy is None else ", ".join(numpy.geterr().values())


class SetAnew:
    """Sees whether calls leave a generator of random numbers in one state of their own.

    It draws a number after each batch, so calls that leave the generator alone never do.
    """

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def state(self) -> State:
        """Return what is told of Python's and numpy's generators, after each batch."""
        numpy_random = sys.modules.get("numpy.random")
        now = {SEEDS[0]: hash(random.getstate())}
        random.random()
        if numpy_random is not None:
            kind, keys, *rest = numpy_random.get_state()
            now[SEEDS[1]] = hash((kind, keys.tobytes(), *rest))
            numpy_random.random_sample()
        same = {name for name, one in now.items() if one == self._last.get(name)}
        self._last = now
        return {name: "set by each call" if name in same else "free" for name in SEEDS}


def _take_files(told: Message, descriptors: list[int]) -> None:
    """Unpack the files that the judge handed over; a failure only means building them again.

    An additional first descriptor is the emulator's library, which the source will load.
    """
    if len(descriptors) > len(told):
        os.environ[EMULATOR] = f"/proc/self/fd/{descriptors[0]}"
        descriptors = descriptors[1:]
    for (what, files), descriptor in zip(told.items(), descriptors, strict=True):
        folder = os.environ[BUILT_IN[what]] if what in BUILT_IN else OWN_COMPILATIONS
        if what == "compilations":
            os.environ.update(COMPILED)
        with contextlib.suppress(OSError):
            PackedFiles(files=files, descriptor=descriptor).unpack(Path(folder))
        os.close(descriptor)


def _loaded(kernel: Kernel) -> Entry:
    """Return the entry of a source, which is a module in a file.

    Triton, TorchScript and torch.compile look texts up there, and dataclasses their module.
    """
    if kernel.language == "triton":
        from ratchet.judge.kernels.source_files import load_source

        folder = Path(tempfile.mkdtemp(prefix="triton-"))
        return load_source(kernel.source, kernel.entry, folder / "kernel.py")
    path = Path(tempfile.mkdtemp(prefix="candidate-")) / "kernel.py"
    path.write_text(kernel.source)
    return load(path, kernel.entry)


def main() -> None:
    """Confine this process, then serve the judge; argv holds the limits and the channel."""
    channel = inherited(int(sys.argv[2]))
    confine(sys.argv[1])
    shift_heap()
    make_first_calls()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    serve_candidate(channel, TorchWorker().answer)
    os._exit(0)


if __name__ == "__main__":
    main()
