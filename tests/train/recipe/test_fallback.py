"""A recipe that torch cannot run for a step leaves the step as written, if nothing has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from own_recipes import recipe
from own_steps import Script, adamw, batch, loss_of, net, only_a_batch, plain, takes_numbers
from test_script_steps import QUIET, said
from torch import Tensor, nn

import ratchet
from ratchet.train.recipe import signature_of
from ratchet.train.recipe.script_state import loses_gradient
from ratchet.train.workloads.config import StepConfig

pytestmark = QUIET
COMPILED = StepConfig(compile_mode="default")
BF16 = StepConfig(precision="bf16_autocast")


def compiled(script: Script, config: StepConfig) -> Any:
    made = recipe(config, model=signature_of(script.model), optimizer="AdamW")
    return ratchet.compile(script.step, script.model, script.optimizer, recipe=made)


@pytest.fixture
def uncompilable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torch fails on whatever it is to compile."""
    real = torch.compile

    def fails(*_: Any) -> Any:
        raise ValueError("no code for this graph")

    def compile(function: Any, *, dynamic: bool | None = None, options: Any = None) -> Any:
        return real(function, dynamic=dynamic, backend=fails)

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", compile)
    yield
    torch._dynamo.reset()


def trains_as_written(make: Callable[[], Script], config: StepConfig) -> None:
    written, script = make(), make()
    step = compiled(script, config)
    for index in range(4):
        torch.manual_seed(index)
        without = written.step(batch(index))
        torch.manual_seed(index)
        assert torch.equal(step(batch(index)), without)
    for one, other in zip(script.model.parameters(), written.model.parameters(), strict=True):
        assert torch.equal(one, other)


def drops_out() -> Script:
    model = net()
    model.insert(2, nn.Dropout(0.5))
    optimizer = adamw(model)

    def step(x: Tensor) -> Tensor:
        loss = loss_of(model, x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Script(model, optimizer, step, only_a_batch)


def zeroes_first() -> Script:
    """The order of torch's own tutorials: gradients stay from step to step."""
    model = net()
    optimizer = adamw(model)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Script(model, optimizer, step, only_a_batch)


def zeroes_in_place() -> Script:
    """It also reads its gradients first, so zeros in their place would change what it returns."""
    model = net()
    optimizer = adamw(model)

    def step(x: Tensor) -> Tensor:
        held = [one.grad for one in model.parameters() if one.grad is not None]
        norm = torch.stack([one.square().sum() for one in held]).sum() if held else 0.0
        optimizer.zero_grad(set_to_none=False)
        loss = loss_of(model, x)
        loss.backward()
        optimizer.step()
        return loss.detach() + norm

    return Script(model, optimizer, step, only_a_batch)


def gradients_are_written_before_it_raises() -> Script:
    """Its graphs end after the zeros, in front of what torch cannot compile."""
    made = zeroes_in_place()

    def step(x: Tensor) -> Tensor:
        made.optimizer.zero_grad(set_to_none=False)
        torch._dynamo.graph_break()
        return made.step(x)

    return Script(made.model, made.optimizer, step, only_a_batch)


@pytest.mark.usefixtures("uncompilable")
@pytest.mark.parametrize(
    "make",
    [plain, drops_out, zeroes_first, zeroes_in_place, gradients_are_written_before_it_raises],
)
def test_a_step_that_torch_cannot_compile(
    make: Callable[[], Script], caplog: pytest.LogCaptureFixture
) -> None:
    trains_as_written(make, COMPILED)
    (line,) = said(caplog)
    assert line.startswith("ratchet: the step runs as written") and "no code for this" in line


def test_a_number_that_a_graph_cannot_hold_ends_the_graph(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, refused, graphs = torch.compile, [], []

    def without_numbers(graph: torch.fx.GraphModule, _: Any) -> Any:
        if any(node.target == "item" for node in graph.graph.nodes):
            refused.append(graph)
            raise ValueError("no code for numbers")
        graphs.append(graph)
        return graph

    def compile(function: Any, *, dynamic: bool | None = None, options: Any = None) -> Any:
        return real(function, dynamic=dynamic, backend=without_numbers)

    def told_first() -> Script:
        script = takes_numbers()
        return Script(script.model, script.optimizer, lambda x: torch.tensor(script.step(x)), batch)

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", compile)
    trains_as_written(told_first, COMPILED)
    assert len(refused) == 1 and graphs
    assert not any("as written" in line for line in said(caplog))
    torch._dynamo.reset()


def adaptive() -> Script:
    """Torch's adaptive softmax writes what a product returns into an fp32 tensor."""
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {"body": nn.Linear(8, 16), "loss": nn.AdaptiveLogSoftmaxWithLoss(16, 12, [4, 8])}
    )
    optimizer = adamw(model)

    def step(x: Tensor) -> Tensor:
        loss = model["loss"](model["body"](x), (x[:, 0].abs() * 10).long() % 12).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Script(model, optimizer, step, only_a_batch)


def test_an_operation_that_bf16_does_not_have(caplog: pytest.LogCaptureFixture) -> None:
    trains_as_written(adaptive, BF16)
    (line,) = said(caplog)
    assert "raises RuntimeError: index_copy_()" in line


def test_an_error_after_an_update_is_raised() -> None:
    """Planted: the second call updates the weights, and then fails where autocast is on."""
    model = net()
    optimizer = adamw(model)

    def step(x: Tensor) -> Tensor:
        out = model(x)
        optimizer.zero_grad()
        out.square().mean().backward()
        optimizer.step()
        if out.grad_fn is not None and "ToCopy" in type(out.grad_fn).__name__:
            raise RuntimeError("planted")
        return out.detach()

    run = compiled(Script(model, optimizer, step, only_a_batch), BF16)
    run(batch(0))
    with pytest.raises(RuntimeError, match="planted"):
        run(batch(1))


def test_what_the_step_itself_raises_does_not_stop_the_recipe(
    caplog: pytest.LogCaptureFixture,
) -> None:
    script = plain()
    run = compiled(script, BF16)
    run(batch(0))
    with pytest.raises(RuntimeError):
        run(torch.ones(2, 3))
    run(batch(1))
    assert not said(caplog)


def test_a_gradient_set_after_an_update_in_place_is_found_in_the_code() -> None:
    def lost(model: nn.Module) -> None:
        for parameter in model.parameters():
            parameter -= 0.1  # type: ignore[misc,assignment]
            parameter.grad = None

    def kept(model: nn.Module) -> None:
        for parameter in model.parameters():
            parameter.data -= 0.1
            parameter.grad = None

    def calls(model: nn.Module) -> None:
        for _ in ():
            lost(model)

    assert loses_gradient(lost) == loses_gradient(calls) == "parameter"
    assert loses_gradient(kept) == ""
