"""A model alone that torch cannot compile or run by its recipe trains as written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import own_steps
import pytest
import torch
from own_recipes import recipe
from own_steps import batch
from test_script_steps import QUIET, said
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd

import ratchet
from ratchet.train.recipe import signature_of
from ratchet.train.workloads.config import StepConfig

pytestmark = QUIET
COMPILED = StepConfig(compile_mode="default")
BF16 = StepConfig(precision="bf16_autocast")


def plain_compiler(graph: torch.fx.GraphModule, _: Any) -> Any:
    return graph


def fails(*_: Any) -> Any:
    raise ValueError("no code for this graph")


BACK_ENDS = {
    "forward": fails,
    "backward": aot_autograd(fw_compiler=plain_compiler, bw_compiler=fails),
}


@pytest.fixture(params=sorted(BACK_ENDS))
def uncompilable(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torch fails on each forward graph, or on each backward graph."""
    real = torch.compile
    back_end = BACK_ENDS[request.param]

    def compile(function: Any, *, dynamic: bool | None = None, options: Any = None) -> Any:
        return real(function, dynamic=dynamic, backend=back_end)

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", compile)
    yield
    torch._dynamo.reset()


class Counts(nn.Module):
    """A model with dropout, a buffer that each call changes and a graph break between its parts."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.net = own_steps.net()
        self.drop = nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        hidden = self.drop(self.net(x))
        torch._dynamo.graph_break()
        return hidden.square() * self.calls


class Copies(nn.Module):
    """A model that copies a product into a tensor, which torch does not do from bf16 to fp32."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.drop = nn.Dropout(0.5)
        self.body = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.arange(len(x))
        return torch.zeros(len(x), 3).index_copy_(0, rows, self.body(self.drop(x)))


def train(model: nn.Module, config: StepConfig | None) -> list[float]:
    optimizer = own_steps.adamw(model)
    if config is not None:
        made = recipe(config, model=signature_of(model), optimizer="AdamW")
        ratchet.compile(model, optimizer=optimizer, recipe=made)
    torch.manual_seed(1)
    losses = []
    for index in range(4):
        loss = model(batch(index)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def trains_as_written(make: Callable[[], nn.Module], config: StepConfig) -> None:
    written, model = make(), make()
    assert train(model, config) == train(written, None)
    for one, other in zip(model.state_dict().items(), written.state_dict().items(), strict=True):
        assert one[0] == other[0] and torch.equal(one[1], other[1])


@pytest.mark.usefixtures("uncompilable")
def test_what_torch_cannot_compile_runs_as_written(caplog: pytest.LogCaptureFixture) -> None:
    trains_as_written(Counts, COMPILED)
    (line,) = said(caplog)
    assert "runs as written (ValueError: no code for this graph)" in line
    assert not [r for r in caplog.records if r.exc_info and r.levelno >= logging.WARNING]


def test_what_bf16_does_not_have_runs_as_written(caplog: pytest.LogCaptureFixture) -> None:
    trains_as_written(Copies, BF16)
    (line,) = said(caplog)
    assert line.startswith("ratchet: Copies runs as written; by its recipe it raises RuntimeError")


def test_an_error_of_the_script_is_raised_and_the_recipe_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = own_steps.net()
    optimizer = own_steps.adamw(model)
    made = recipe(BF16, model=signature_of(model), optimizer="AdamW")
    ratchet.compile(model, optimizer=optimizer, recipe=made)
    with pytest.raises(RuntimeError, match="shapes"):
        model(torch.ones(2, 3))
    out = model(batch(0))
    assert "ToCopy" in type(out.grad_fn).__name__  # widened from bf16
    assert not said(caplog)


def test_an_error_after_a_change_is_raised() -> None:
    class Counted(Copies):
        steps = 0

        def forward(self, x: Tensor) -> Tensor:
            self.steps += 1
            return super().forward(x)

    with pytest.raises(RuntimeError, match="index_copy"):
        train(Counted(), BF16)
