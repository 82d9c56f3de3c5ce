"""The texts of a package's tests: each op against plain torch."""

from __future__ import annotations

from typing import Final

HEAD: Final = '''"""Each op against plain torch: results, gradients, opcheck, torch.compile."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

{load}


def x(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(DEVICE, dtype).requires_grad_()


def tensors(found: object) -> list[Tensor]:
    return list(found) if isinstance(found, tuple | list) else [found]


def close(found: Tensor, wanted: Tensor, tolerance: float) -> bool:
    apart = (found.double() - wanted.double()).abs().max()
    return bool(apart <= tolerance * wanted.double().abs().max().clamp(min=1e-6))


def gradients(results: list[Tensor], arguments: tuple[object, ...]) -> list[Tensor]:
    leaves = [one for one in arguments if isinstance(one, Tensor) and one.requires_grad]
    total = sum((one.float() * one.detach().float().cos()).sum() for one in results)
    assert isinstance(total, Tensor)
    return list(torch.autograd.grad(total, leaves))


def check(name: str, arguments: tuple[object, ...], wanted: list[Tensor], tolerance: float) -> None:
    op, expected = getattr(package, name), gradients(wanted, arguments)
    torch._dynamo.reset()
    for call in (op, torch.compile(lambda *given: op(*given), backend="aot_eager", fullgraph=True)):
        found = tensors(call(*arguments))[: len(wanted)]
        pairs = list(zip(found, wanted))
        pairs += zip(gradients(found, arguments), expected)
        for index, (one, other) in enumerate(pairs):
            assert close(one, other, tolerance), f"{{name}}: result or gradient {{index}} is wrong"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.library.opcheck(op.default, arguments, rtol=tolerance, atol=tolerance)
'''

ADAMW: Final = """

def test_adamw() -> None:
    models = [torch.nn.Linear(24, 16).to(DEVICE) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    own, other = (torch.optim.AdamW(one.parameters(), lr=1e-2) for one in models)
    for _ in range(3):
        for model in models:
            model(x(8, 24).detach()).square().sum().backward()
        package.step_adamw(own)
        other.step()
        for optimizer in (own, other):
            optimizer.zero_grad()
    for one, two in zip(models[0].parameters(), models[1].parameters()):
        assert close(one.detach(), two.detach(), 1e-5), "a parameter after three steps is wrong"
"""

OP: Final = """

def test_{name}() -> None:
    a = ({arguments})
    check("{name}", a, tensors({expected}), {tolerance})
"""

REGION: Final = """

def test_{name}() -> None:
    inputs = [{inputs}]
    with torch.no_grad():
        found = package.{name}(inputs)
        wanted = package.{reference}.reference(*inputs, ())
        fake = torch.compile(lambda: package.{name}(inputs), backend="aot_eager", fullgraph=True)()
    for one, other, shape in zip(found, wanted, fake):
        assert one.shape == other.shape == shape.shape and one.dtype == other.dtype
        assert close(one, other, {tolerance}), "a result is wrong"
"""

TAIL: Final = '''

def test_kernels_served() -> None:
    """Last: what ran above ran the kernels, if this machine can."""
    if not package.LEFT_OUT:
        assert not package.FALLBACKS, f"plain torch ran instead of {dict(package.FALLBACKS)}"


if __name__ == "__main__":
    tests = [one for name, one in list(globals().items()) if name.startswith("test_")]
    for test in tests:
        test()
    print(json.dumps({"checked": len(tests) - 1, "left_out": package.LEFT_OUT}))
'''
