"""What these tests share: a compile that installs kernels and stops there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.debugging import aot_eager
from torch.fx import GraphModule

from ratchet.train.graph.patterns import PATTERNS, select
from ratchet.train.graph.scope import InstallReport, graphs_of, rewrite

Loss = Callable[[], Tensor]
RATCHET = "ratchet"


@dataclass(kw_only=True)
class Compiled:
    """A loss compiled with kernels: what was installed, what came out, the custom ops called."""

    report: InstallReport
    loss: Tensor
    gradients: dict[str, Tensor]
    called: list[str] = field(default_factory=list)
    """The custom ops in the graphs after the rewriting."""


def rewriting_backend(report: InstallReport, called: list[str], names: tuple[str, ...]) -> Any:
    """A dynamo backend that installs kernels and stops short of generating code."""
    patterns = select(names) if names else PATTERNS

    def backend(module: GraphModule, inputs: Any) -> Any:
        for inner in graphs_of(module):
            rewrite(inner.graph, patterns, report)
            inner.recompile()
            called.extend(
                node.target._schema.name.split("::")[1]
                for node in inner.graph.nodes
                if getattr(node.target, "namespace", "") == RATCHET
            )
        return aot_eager(module, inputs)

    return backend


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def compile_loss() -> Callable[..., Compiled]:
    """(model, loss, autocast, kernels) -> the loss and gradients with the kernels installed."""

    def run(model: nn.Module, loss: Loss, *, autocast: bool = False, kernels: Any = ()) -> Compiled:
        report, called = InstallReport(), []
        backend = rewriting_backend(report, called, tuple(kernels))
        model.zero_grad()
        value = torch.compile(with_autocast(loss, autocast), backend=backend, dynamic=False)()
        value.backward()
        found = Compiled(
            report=report, loss=value.detach(), gradients=gradients_of(model), called=called
        )
        model.zero_grad()
        return found

    return run


@pytest.fixture
def plain_loss() -> Callable[..., tuple[Tensor, dict[str, Tensor]]]:
    """(model, loss, autocast) -> the loss and the gradients without torch.compile."""

    def run(model: nn.Module, loss: Loss, *, autocast: bool = False) -> Any:
        model.zero_grad()
        value = with_autocast(loss, autocast)()
        value.backward()
        gradients = gradients_of(model)
        model.zero_grad()
        return value.detach(), gradients

    return run


def with_autocast(loss: Loss, enabled: bool) -> Loss:
    def run() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            return loss()

    return run


@pytest.fixture
def assert_same() -> Callable[..., None]:
    """(compiled, plain) agree: fp32 closely, bf16 to a few roundings of the largest gradient."""

    def check(compiled: Compiled, plain: Any, *, autocast: bool = False) -> None:
        loss, gradients = plain
        assert compiled.loss.dtype == loss.dtype
        assert compiled.loss.shape == loss.shape
        torch.testing.assert_close(compiled.loss, loss, rtol=2e-3 if autocast else 1e-5, atol=1e-5)
        assert compiled.gradients.keys() == gradients.keys()
        scale = max(float(gradient.norm()) for gradient in gradients.values())
        for name, gradient in gradients.items():
            error = float((compiled.gradients[name] - gradient).norm())
            allowed = (4e-2, 4e-3) if autocast else (2e-5, 2e-6)
            bound = allowed[0] * float(gradient.norm()) + allowed[1] * scale
            assert error <= bound, f"{name}: {error} > {bound}"

    return check
