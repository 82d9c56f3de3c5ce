"""Write the program that Inductor makes of a reference for an AMD GPU that is not here.

Inductor runs no kernel to write one. It asks torch about the device, and gets the architecture's
answers. `pretend` changes torch for the whole process: call it in a process of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from ratchet.amd.architectures import Architecture, PretendedDevice
from ratchet.amd.compile.torch_cuda import PRETENDED_HIP, device_answers
from ratchet.amd.emulator.estimates.device_guard import allow_entering_gpu
from ratchet.base.errors import KernelError

KNOWN: Final = ((2, 11), (2, 13))
"""The oldest and the newest supported torch; 2.13 was tried."""
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


def pretend(architecture: Architecture, units: int) -> None:
    """Make torch describe a GPU of `architecture` with `units` compute units from now on."""
    answers = device_answers(
        PretendedDevice(architecture=architecture, name=architecture.name, units=units)
    )
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

    It only holds for these shapes, strides, dtypes and scalars, and has no gradients.

    Raises:
        KernelError: a library or the host would run a part of it.
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
        node.args, node.kwargs = torch.fx.node.map_aggregate(
            (node.args, node.kwargs), lambda value: _moved(value)
        )
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
