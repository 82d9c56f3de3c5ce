"""Runs the ops with the Triton library, in Triton's interpreter on CPU tensors; JSON on stdout.

The interpreter changes Triton for the whole process, so this has a process of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ratchet.amd.compile.triton_source import load_interpreted
from ratchet.judge.kernels import registry
from ratchet.judge.kernels.library import kernels_for, register_ops
from ratchet.judge.kernels.library.adamw import step_adamw
from ratchet.judge.kernels.library.sources import ANY_GPU
from ratchet.judge.kernels.registry import build_kernel

OPS = torch.ops.ratchet


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype).requires_grad_()


def stepped() -> list[Tensor]:
    """The parameters after two clipped AdamW steps."""
    parameters = [torch.nn.Parameter(draw(5, 7).detach()), torch.nn.Parameter(draw(3).detach())]
    optimizer = torch.optim.AdamW(parameters)
    for _ in range(2):
        for one in parameters:
            one.grad = torch.sin(one.detach())
        step_adamw(optimizer, clip_norm=0.5)
    return [one.detach() for one in parameters]


def differentiated(op: Callable[..., Any], *arguments: Any) -> list[Tensor]:
    """An op's outputs and gradients."""
    found = op(*arguments)
    outputs = found if isinstance(found, tuple) else (found,)
    leaves = [one for one in arguments if isinstance(one, Tensor) and one.requires_grad]
    total = sum(one.float().sin().sum() for one in outputs if one.requires_grad)
    return [*outputs, *torch.autograd.grad(total, leaves)]


def everything() -> dict[str, list[Tensor]]:
    half = torch.bfloat16
    x, h, weight = draw(2, 3, 24), draw(3, 2, 24).transpose(0, 1), draw(24)
    heads = draw(1, 5, 2, 16).transpose(1, 2)
    q, k = (draw(1, count, 20, 16, dtype=half) for count in (4, 2))
    table = draw(5, 16).detach()
    hidden, classes = draw(9, 16, dtype=half), draw(30, 16, dtype=half)
    target = torch.arange(9)
    return {
        "rms_norm": differentiated(OPS.rms_norm, x, weight, 1e-5),
        "add_rms_norm": differentiated(OPS.add_rms_norm, x, h, weight, 1e-5),
        "layer_norm": differentiated(OPS.layer_norm, x, weight, draw(24), 1e-5),
        "add_layer_norm": differentiated(OPS.add_layer_norm, x, h, weight, None, 1e-5),
        "gated_activation": differentiated(OPS.gated_activation, x, h, "gelu"),
        "rope": differentiated(OPS.rope, heads, table.cos(), table.sin()),
        "attention": differentiated(OPS.attention, q, k, k, True, 0.25),
        "linear_cross_entropy": differentiated(
            OPS.linear_cross_entropy, hidden, classes, None, target
        ),
        "adamw": stepped(),
    }


def main() -> None:
    torch.set_num_threads(1)
    register_ops()
    wanted = everything()
    kernels = kernels_for(ANY_GPU)
    load_interpreted("def prepared(): ...", "prepared")
    for kernel in kernels.values():
        registry.activate(kernel, build_kernel(kernel), device="cpu")
    registry.fallbacks.clear()
    found = everything()
    errors = {
        name: [
            float((one.double() - other.double()).abs().max())
            if (one.dtype, one.stride()) == (other.dtype, other.stride())
            else f"{one.dtype} {one.stride()} for {other.dtype} {other.stride()}"
            for one, other in zip(found[name], wanted[name], strict=True)
        ]
        for name in wanted
    }
    print(json.dumps({"errors": errors, "fallbacks": registry.fallbacks}))


if __name__ == "__main__":
    main()
