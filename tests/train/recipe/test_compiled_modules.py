"""`ratchet.compile(model, recipe=...)`: a module alone, in anyone's loop."""

from __future__ import annotations

import copy
import inspect
import io
from collections.abc import Iterator
from typing import Any

import msgspec
import own_steps
import pytest
import torch
from own_recipes import recipe
from own_steps import batch, loss_of
from test_script_steps import QUIET, said, trace
from torch import Tensor, nn
from torch._dynamo.utils import counters

import ratchet
from ratchet.train.recipe import signature_of
from ratchet.train.workloads.config import StepConfig

pytestmark = QUIET
BF16 = StepConfig(compile_mode="default", precision="bf16_autocast")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = own_steps.net()

    def forward(self, x: Tensor, *, labels: Tensor | None = None) -> dict[str, Any]:
        out = self.net(x)
        loss = None if labels is None else nn.functional.cross_entropy(out, labels)
        return {"loss": loss, "out": out}


@pytest.fixture(autouse=True)
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    trace(monkeypatch, "aot_eager")
    yield
    torch._dynamo.reset()


def compiled(config: StepConfig = BF16) -> Model:
    model = Model()
    made = recipe(config, model=signature_of(model), optimizer="AdamW")
    assert ratchet.compile(model, recipe=made) is model
    return model


def train(model: nn.Module, steps: int = 4) -> list[float]:
    optimizer = own_steps.adamw(model)
    losses = []
    for index in range(steps):
        loss = model(batch(index), labels=batch(index)[:, :4].argmax(1))["loss"]
        loss.backward(retain_graph=True)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def test_a_module_trains_as_written_and_evaluates_uncompiled() -> None:
    model, written = compiled(), Model()
    counters.clear()
    assert train(model) == pytest.approx(train(written), abs=3e-2)
    assert counters["stats"]["unique_graphs"] == 1
    out = model(batch(0))["out"]
    assert out.dtype == torch.float32  # a loss outside of the module reads what it did before
    model.eval()
    assert torch.equal(model(batch(0))["out"], model.net(batch(0)))
    with torch.no_grad():
        assert torch.equal(model(batch(0))["out"], model.net(batch(0)))
        # The recipe is in bf16, and a loss may compare this pass with one that has gradients.
        assert torch.equal(model.train()(batch(0))["out"], out)


def test_the_signature_stays_and_copies_are_plain() -> None:
    model = compiled()
    assert inspect.signature(model.forward) == inspect.signature(Model().forward)
    torch.save(model, io.BytesIO())
    plain = copy.deepcopy(model)
    assert "_compiled_call_impl" not in vars(plain)
    assert torch.equal(plain(batch(0))["out"], model.net(batch(0)))
    assert set(model.state_dict()) == set(Model().state_dict())


def test_a_second_recipe_takes_the_first_one_s_place() -> None:
    model = compiled()
    made = recipe(StepConfig(compile_mode="default"), model=signature_of(model))
    ratchet.compile(model, recipe=made)
    counters.clear()
    assert train(model, 2) == pytest.approx(train(Model(), 2), abs=1e-5)
    assert counters["stats"]["unique_graphs"] == 1


def test_what_a_module_cannot_carry_is_told(caplog: pytest.LogCaptureFixture) -> None:
    compiled(msgspec.structs.replace(BF16, optimizer="fused"))
    (line,) = said(caplog)
    assert "carries no optimizer" in line


def test_a_recurrent_module_is_left_as_written(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.LSTM(8, 4)
    made = recipe(StepConfig(compile_mode="default"), model=signature_of(model))
    ratchet.compile(model, recipe=made)
    (line,) = said(caplog)
    assert "LSTM is not compiled" in line
    model(batch(0))


@pytest.mark.parametrize("way", ["called", "inside a compile", "by a method", "compiled update"])
def test_a_model_that_does_not_run_by_the_recipe_is_told_once(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    made = recipe(StepConfig(compile_mode="default"), model=signature_of(model), optimizer="AdamW")
    ratchet.compile(model, optimizer=optimizer, recipe=made)
    steps: list[object] = []
    optimizer.register_step_post_hook(lambda *_: steps.append(None))  # the script's own, after ours
    call: Any = {
        "inside a compile": torch._dynamo.optimize("eager", nopython=True)(model),
        "by a method": model.forward,
    }.get(way, model)
    step: Any = optimizer.step
    if way == "compiled update":
        step = torch._dynamo.optimize("eager")(optimizer.step)
    for index in range(2):
        call(batch(index))["out"].sum().backward()
        step()
    told = ["has not run by the recipe" in line for line in said(caplog)]
    assert told == ([] if way in ("called", "compiled update") else [True])
    assert way == "compiled update" or len(steps) == 2


KEPT: list[nn.Module] = []
"""Models whose gloo groups live until the process ends. torch joins a group's threads while it
holds the GIL, which such a thread needs to let go of a gradient: a group that ends right after a
step can hang."""


@pytest.mark.parametrize("by", ["model", "step"])
def test_a_model_in_ddp_is_compiled(by: str) -> None:
    """Dynamo leaves DDP's own code out, and with it what torch's own containers do inside."""
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        written = losses_of(own_steps.net(), "")
        counters.clear()
        model = nn.parallel.DistributedDataParallel(own_steps.net())
        KEPT.append(model)
        assert losses_of(model, by) == pytest.approx(written, abs=1e-5)
        assert counters["stats"]["unique_graphs"] == 1
    finally:
        torch.distributed.destroy_process_group()


def losses_of(model: nn.Module, by: str) -> list[float]:
    """Train with a recipe for the `model` or the `step`, which counts, so it is never whole."""
    optimizer, calls = own_steps.adamw(model), [0]
    config = StepConfig(compile_mode="default")
    made = recipe(config, model=signature_of(model), optimizer="AdamW")

    def step(x: Tensor) -> Tensor:
        calls[0] += 1
        loss = loss_of(model, x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    run = step
    if by == "step":
        run = ratchet.compile(step, model, optimizer, recipe=made)
    elif by == "model":
        ratchet.compile(model, optimizer=optimizer, recipe=made)
    return [float(run(batch(index))) for index in range(3)]


def test_blocks_recompute_in_training_alone() -> None:
    model = compiled(StepConfig(checkpointing="blocks:1"))
    seen: list[Any] = []
    model.net[0].register_forward_pre_hook(lambda one, _: seen.append("forward" in vars(one)))
    loss_of(lambda x: model(x)["out"], batch(0)).backward()  # type: ignore[arg-type]
    assert seen[0] is True
    seen.clear()
    model.eval()(batch(0))
    assert seen == [False]
