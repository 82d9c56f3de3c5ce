"""The process that compiles a reference for a GPU that is not here and emulates the kernels.

It is trusted like the reference worker: it runs the reference, and no candidate. It changes torch
for its whole process, so it does nothing else. Inductor's program runs on tensors in memory, with
every launch emulated and counted.
"""

from __future__ import annotations

import ctypes
import importlib.util
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from ratchet.amd.architectures import PretendedDevice
from ratchet.amd.compile.torch_cuda import PRETENDED_HIP, device_answers
from ratchet.amd.emulator.estimates import bound_s
from ratchet.amd.emulator.hip_build import compiled_machine
from ratchet.amd.emulator.loading import EmulatedLaunch, EmulatorDriver
from ratchet.amd.emulator.program import NO_TRITON
from ratchet.base.errors import KernelError
from ratchet.base.process import families
from ratchet.base.process.channel import Message, inherited
from ratchet.judge.problems.problem import Problem, Reference
from ratchet.judge.sandbox.serving import Reply, serve
from ratchet.judge.workers.arm import extend_import_path
from ratchet.judge.workers.candidate.census import add_launch

REGISTRY: Final = "_ZN3c104impl26device_guard_impl_registryE"
"""c10::impl::device_guard_impl_registry: one pointer for each of c10's device types."""
CUDA: Final = 1
META: Final = 14  # places of `c10::DeviceType` in it. The meta device's guard does nothing either.


def allow_entering_gpu() -> None:
    """Give GPUs the guard that does nothing, in this process, if torch has none for them.

    `x[i]` and `~x` in Python enter the device of `x` before they call an operator, as c10's
    registry of device guards says. For fake tensors a torch for GPUs without a GPU gets a guard
    that does nothing (`ensureCUDADeviceGuardSet` in `c10/core/impl/DeviceGuardImplInterface.h`). A
    torch for CPUs does not, because its registry has no entry to replace.
    """
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    try:
        guards = (ctypes.c_void_p * (META + 1)).in_dll(library, REGISTRY)
    except ValueError:
        return
    if not guards[CUDA]:
        guards[CUDA] = guards[META]
        torch._C._ensureCUDADeviceGuardSet()


KNOWN: Final = ((2, 11), (2, 13))  # the oldest and the newest supported torch; 2.13 was tried
GPU: Final = "cuda:0"


def check_version(version: str = torch.__version__) -> None:
    """Raise KernelError if this torch's Inductor is unknown."""
    oldest, newest = KNOWN
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or not oldest <= (int(found[1]), int(found[2])) <= newest:
        raise KernelError(
            f"the Inductor of torch {version:.20} is not known: its kernels are emulated with "
            f"torch {oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}"
        )


def pretend(target: str, units: int) -> None:
    """Make torch describe a target's GPU with `units` compute units from now on."""
    from torch._inductor import config

    config.compile_threads = 1  # else torch starts processes that compile, and imports torch anew
    answers = device_answers(PretendedDevice.of(target, {"units": units}))
    allow_entering_gpu()
    changed: Any = torch
    for name, value in answers.items():
        setattr(changed.cuda, name, value)
    changed.version.hip, changed.version.cuda = PRETENDED_HIP, None
    from torch._dynamo.device_interface import CudaInterface

    for name, value in answers.items():
        if callable(value) and hasattr(CudaInterface, name):
            setattr(CudaInterface, name, staticmethod(value))


def written(
    reference: Callable[..., tuple[Tensor, ...]], inputs: Sequence[Tensor], scalars: Sequence[float]
) -> str:
    """Return the Python program whose Triton kernels compute the reference on such inputs.

    Inductor runs no kernel to write one: it asks torch about the device, which `pretend` answers.
    It only holds for these shapes, strides, dtypes and scalars, and has no gradients. Raises
    KernelError if a library or the host would run a part of it.
    """
    from torch._inductor.compile_fx import _recursive_post_grad_passes, fake_tensor_prop
    from torch._inductor.debug import DebugContext
    from torch._inductor.fx_passes.post_grad import view_to_reshape
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    shapes = ShapeEnv()
    mode = FakeTensorMode(shape_env=shapes, static_shapes=True, allow_non_fake_inputs=True)
    with mode:
        given = [
            torch.empty_strided(one.size(), one.stride(), dtype=one.dtype, device=GPU)
            for one in inputs
        ]
        whole = _traced(reference, [mode.from_tensor(one) for one in inputs], given, scalars)
    view_to_reshape(whole)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        fake_tensor_prop(whole, given)
    with V.set_fake_mode(mode):
        _recursive_post_grad_passes(whole, is_inference=True)
        graph = GraphLowering(whole, example_inputs=given, shape_env=shapes, is_inference=True)
        with V.set_graph_handler(graph), V.set_debug_handler(DebugContext()):
            graph.run(*given)
            _check(graph)
            code = graph.codegen()[0]
    text = str(getattr(code, "value", code))
    if "async_compile.cpp" in text or graph.constants:
        raise KernelError("a part of the reference would run on the host")
    return text


def _traced(
    reference: Callable[..., tuple[Tensor, ...]],
    here: Sequence[Tensor],
    there: Sequence[Tensor],
    scalars: Sequence[float],
) -> Any:
    """Trace the reference on fake tensors of the CPU, gradients included, then on the GPU's.

    torch's autograd only runs on existing devices. The second trace decomposes operators for
    Inductor, and changes nothing in place.
    """
    from torch._dispatch.python import enable_python_dispatcher
    from torch._inductor.decomposition import select_decomp_table
    from torch.func import functionalize
    from torch.fx.experimental.proxy_tensor import make_fx

    def call(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(reference(*tensors, scalars))

    with enable_python_dispatcher():
        plain = make_fx(call, tracing_mode="real")(*here)
    for node in plain.graph.nodes:
        node.args, node.kwargs = torch.fx.node.map_aggregate((node.args, node.kwargs), _moved)
    plain.recompile()
    pure = functionalize(plain, remove="mutations")
    whole = make_fx(pure, decomposition_table=select_decomp_table(), tracing_mode="real")(*there)
    whole.graph.eliminate_dead_code()
    whole.recompile()
    return whole


def _moved(value: Any) -> Any:
    is_device = isinstance(value, torch.device) and value.type == "cpu"
    return torch.device(GPU) if is_device else value


def _check(graph: Any) -> None:
    """Raise KernelError if Inductor leaves work to a library."""
    from torch._inductor import ir

    for one in graph.operations:
        if isinstance(one, ir.ExternKernel) and not isinstance(one, ir.MultiOutput):
            name = getattr(one, "op_overload", None) or getattr(one, "python_kernel_name", None)
            raise KernelError(
                f"Inductor leaves {name or type(one).__name__} to a library, whose code is not here"
            )


MOST_CONFIGURATIONS: Final = 4
"""The first configurations of a kernel are tried, and that with the least bound is kept."""


class CountingDriver(EmulatorDriver):
    """Emulates launches and keeps their counts."""

    def __init__(self, target: str, library: Path) -> None:
        super().__init__(PretendedDevice.of(target, {}), library, lambda _: False)
        self.target = target
        self.done: list[EmulatedLaunch] = []

    def add(self, launch: EmulatedLaunch) -> None:
        self.done.append(launch)


class InductorKernel:
    """One Triton kernel of a program, in place of Inductor's tuner."""

    def __init__(self, tuner: Any, driver: CountingDriver) -> None:
        self._tuner, self._driver = tuner, driver
        self._chosen: object = None

    def run(self, *given: object, stream: object = None, **_: object) -> None:
        """Launch it in the configuration with the least bound."""
        if self._chosen is None:
            tried = self._tuner.configs[:MOST_CONFIGURATIONS]
            bounds = [self._bound_s(one, given) for one in tried] if len(tried) > 1 else [0.0]
            self._chosen = tried[bounds.index(min(bounds))]
        self._launch(self._chosen, given)

    def _bound_s(self, configuration: object, given: Sequence[object]) -> float:
        """Return the bound of a launch on copies; infinity if it cannot be compiled."""
        from triton.runtime.errors import OutOfResources

        kept, self._driver.done = self._driver.done, []
        try:
            self._launch(configuration, [_copy(one) for one in given])
            return bound_s(told_of(self._driver.done), self._driver.target)
        except OutOfResources:
            return math.inf
        finally:
            self._driver.done = kept

    def _launch(self, configuration: Any, given: Sequence[object]) -> None:
        from torch._inductor.runtime.triton_heuristics import GridExpr

        function = self._tuner.fn
        declared = {one.name for one in function.params if one.is_constexpr}
        names = [name for name in function.arg_names if name not in declared]
        if len(names) != len(given):
            raise KernelError(f"Inductor's kernel {function.__name__} has other arguments here")
        named = dict(zip(names, given, strict=True))
        settings = dict(configuration.kwargs)
        grid = GridExpr.from_meta(self._tuner.inductor_meta, configuration)
        sizes = grid.eval_slow(named | settings)
        known = self._tuner.triton_meta.get("constants", {})
        settings |= {name: known[name] for name in declared - settings.keys() if name in known}
        function[tuple(int(size) for size in sizes)](
            **named,
            **settings,
            num_warps=configuration.num_warps,
            num_stages=configuration.num_stages,
        )


def told_of(done: Sequence[EmulatedLaunch]) -> Message:
    """Return the counts of launches by kernel, in the form of a census."""
    told: Message = {}
    for one in done:
        add_launch(told, one)
    return told


def emulated(
    program: str, inputs: Sequence[Tensor], driver: CountingDriver
) -> Mapping[str, object]:
    """Run a program on its inputs; return each kernel's counts, in the form of a census."""
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.codecache import PyCodeCache

    def kernel(_: object, name: str, source: str, **__: object) -> InductorKernel:
        return InductorKernel(getattr(PyCodeCache.load(source), name), driver)

    changed: Any = AsyncCompile
    changed.triton, changed.wait = kernel, lambda *_, **__: None
    _replace_calls(driver)
    driver.done = []
    namespace: dict[str, Any] = {"__name__": "inductor_program"}
    exec(compile(program, "inductor_program.py", "exec"), namespace)
    namespace["call"](list(inputs))
    return told_of(driver.done)


def _replace_calls(driver: CountingDriver) -> None:
    """Replace what a program calls on the GPU besides its kernels."""
    from torch._inductor.runtime import triton_helpers

    changed: Any = torch
    triton_helpers.set_driver_to_gpu = driver.install
    changed._C._cuda_getCurrentRawStream = lambda *_: 0
    changed._C._dynamo.guards._empty_strided_cuda = lambda size, stride, dtype: torch.empty_strided(
        size, stride, dtype=dtype
    )
    changed.cuda._DeviceGuard = changed.cuda.device


def _copy(value: object) -> object:
    if not isinstance(value, Tensor):
        return value
    storage = value.untyped_storage().clone()  # type: ignore[no-untyped-call]
    whole = torch.empty(0, dtype=value.dtype).set_(storage)
    return whole.as_strided(value.size(), value.stride(), value.storage_offset())


SEED: Final = 1  # seed of the values; only counts matter


class CompiledReferenceWorker:
    """Holds one problem and one target."""

    def __init__(self) -> None:
        self._problem: Problem | None = None
        self._reference: Reference | None = None
        self._driver: CountingDriver | None = None

    def answer(self, message: Message, _: list[int]) -> Reply:
        """Do what the judge asks; an exception says why there is no estimate."""
        actions = {"open": self._open, "case": self._case}
        return actions[message["do"]](message), []

    def _open(self, message: Message) -> Message:
        check_version()
        if importlib.util.find_spec("triton") is None:
            raise KernelError(NO_TRITON)
        target = message["target"]
        self._problem = Problem.from_json(message["problem"])
        self._driver = CountingDriver(target, compiled_machine(target))
        self._reference = self._problem.load_reference()
        pretend(target, message["units"])
        self._driver.install()
        return {}

    def _case(self, message: Message) -> Message:
        assert self._problem and self._reference and self._driver
        case = self._problem.cases[message["case"]]
        inputs = self._problem.build_inputs(case, SEED)
        program = written(self._reference, inputs, case.scalars)
        return {"emulated": emulated(program, inputs, self._driver)}


def main() -> None:
    """Serve the judge; argv holds the channel and the parent's process id."""
    channel = inherited(int(sys.argv[1]))
    families.die_with_parent(int(sys.argv[2]))
    families.adopt_orphans()
    extend_import_path()
    torch.set_num_threads(1)
    serve(channel, CompiledReferenceWorker().answer)
    os._exit(0)


if __name__ == "__main__":
    main()
