"""`check=N`: the step runs twice from one state, and a recipe that differs is told and left."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import own_steps
import pytest
import torch
from own_steps import Script, batch, loss_of
from test_script_steps import QUIET, compiled, said, trace, weights
from torch import Tensor, nn

from ratchet.base.errors import RecipeError
from ratchet.train.recipe import slots
from ratchet.train.recipe.script_state import Snapshot, numbers, variables
from ratchet.train.recipe.slots import Attribute
from ratchet.train.workloads.config import StepConfig

pytestmark = QUIET
EAGER = StepConfig()
"""Nothing is compiled; what is tested is around it."""


@pytest.fixture(autouse=True)
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    trace(monkeypatch, "eager")
    yield
    torch._dynamo.reset()


def plant(monkeypatch: pytest.MonkeyPatch, update: Any) -> StepConfig:
    """Make the recipe's own update a wrong one."""

    def slot(optimizer: torch.optim.Optimizer) -> Attribute:
        written = type(optimizer).step.__get__(optimizer)
        return Attribute(
            optimizer, "step", lambda: update(optimizer.param_groups[0]["params"], written)
        )

    monkeypatch.setattr(slots, "kernel_slot", slot)
    monkeypatch.setattr(
        "ratchet.train.recipe.apply._with_kernels", lambda _, config, *a, **k: config
    )
    return StepConfig(optimizer="kernel")


def overwrites(parameters: Any, written: Any) -> None:
    written()
    with torch.no_grad():
        parameters[0].fill_(0.5)


def forgets(parameters: Any, written: Any) -> None:
    pass


def drops_gradients(parameters: Any, written: Any) -> None:
    written()
    for one in parameters:
        one.grad = None


def scales_gradients(parameters: Any, written: Any) -> None:
    for one in parameters:
        one.grad.mul_(1.01)
    written()


def raises(parameters: Any, written: Any) -> None:
    raise RuntimeError("no such kernel")


FAULTS = {
    overwrites: "parameter 0.weight",
    forgets: "gradient 0.bias (none with the recipe)",
    drops_gradients: "gradient left",
    scales_gradients: "gradient 0.bias is of norm",
    raises: "it raises RuntimeError: no such kernel",
}


def keeps_gradients() -> Script:
    model = own_steps.net()
    optimizer = own_steps.adamw(model)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Script(model, optimizer, step, own_steps.only_a_batch)


def test_a_fault_in_an_update_of_a_later_call_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first call updates nothing, so the recipe's update stays installed between calls."""
    config = plant(monkeypatch, overwrites)
    written, script = own_steps.counts(), own_steps.counts()
    step = compiled(script, config, check=3)
    for index in range(6):
        assert float(step(batch(index))) == float(written.step(batch(index)))
    assert torch.equal(weights(script), weights(written))
    (line,) = said(caplog)
    assert "differs" in line and "step" not in vars(script.optimizer)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda one: one.__name__)
def test_a_fault_is_told_and_the_step_goes_on_as_written(
    fault: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = plant(monkeypatch, fault)
    written, script = keeps_gradients(), keeps_gradients()
    step = compiled(script, config, check=3)
    for index in range(4):
        assert float(step(batch(index))) == float(written.step(batch(index)))
    assert torch.equal(weights(script), weights(written))
    (line,) = said(caplog)
    assert FAULTS[fault] in line and "runs as written from now on" in line


def test_strict_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    step = compiled(keeps_gradients(), plant(monkeypatch, overwrites), check=3, strict=True)
    step(batch(0))
    with pytest.raises(RecipeError, match=r"parameter 0\.weight is of norm"):
        step(batch(1))


RIGHT = ("counts", "schedule_in_the_step", "noise_and_an_average", "gan", "normalises_its_batch")


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_recipe_passes_and_training_is_what_it_was(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Counters, schedules, generators and averages go one step on in a call, not two."""
    written, script = getattr(own_steps, name)(), getattr(own_steps, name)()
    step = compiled(script, StepConfig(compile_mode="default", optimizer="as_written"), check=4)
    for index in range(6):
        without = float(written.step(*written.arguments(index)))
        assert float(step(*script.arguments(index))) == pytest.approx(without, abs=1e-5)
    assert not [line for line in said(caplog) if "differs" in line or "check" in line]


def test_dropout_is_held_against_other_draws_as_written(caplog: pytest.LogCaptureFixture) -> None:
    model = own_steps.net().append(nn.Dropout(0.5))
    optimizer = own_steps.adamw(model)
    script = Script(model, optimizer, own_steps.trained(model, optimizer), own_steps.only_a_batch)
    step = compiled(script, StepConfig(precision="bf16_autocast"), check=3)
    torch.manual_seed(3)
    for index in range(4):
        step(batch(index))
    assert said(caplog) == []


def test_an_iterator_cannot_be_put_back(caplog: pytest.LogCaptureFixture) -> None:
    model = own_steps.net()
    optimizer = own_steps.adamw(model)
    batches = iter([batch(index) for index in range(9)])
    inner = own_steps.trained(model, optimizer)
    script = Script(model, optimizer, lambda: inner(next(batches)), lambda _: ())
    step = compiled(script, EAGER, check=2)
    for _ in range(3):
        step()
    (line,) = said(caplog)
    assert "check is not made: batches is of type list_iterator" in line
    assert len(list(batches)) == 6


@pytest.mark.parametrize("given", [-1, True, 1.5, "20"])
def test_what_is_no_number_of_calls(given: Any) -> None:
    with pytest.raises(RecipeError, match="give a number of calls"):
        compiled(own_steps.plain(), EAGER, check=given)


CALLS = 0


class Loop:
    """A script in a class, with state of all kinds."""

    def __init__(self) -> None:
        self.model = own_steps.net()
        self.optimizer = own_steps.adamw(self.model)
        self.calls, self.seen, self.best = 0, [1.0], {"loss": 9.0, "kinds": {"a"}}
        self.config = SimpleNamespace(rate=1.0)
        self.generator = torch.Generator().manual_seed(1)
        self.numpy, self.random = np.random.default_rng(1), random.Random(1)
        self.average = torch.zeros(3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    def step(self, x: Tensor) -> float:
        global CALLS
        CALLS += 1
        self.calls += 1
        self.seen.append(self.numpy.random() + self.random.random() + random.random())
        self.best["loss"], self.best["new"] = 0.0, 1
        self.best["kinds"].add("b")  # type: ignore[union-attr]
        self.config.rate *= 0.5
        self.average += torch.rand(3, generator=self.generator) + np.random.rand()
        loss = loss_of(self.model, x)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return float(self.scaler.get_scale())

    def look(self) -> list[Any]:
        kept = [self.calls, list(self.seen), repr(self.best), self.config.rate, CALLS]
        kept += [self.average.tolist(), weights(Script(self.model, None, print, tuple)).tolist()]
        state = self.optimizer.state_dict()["state"]
        return [*kept, [one["exp_avg"].tolist() for one in state.values()], self.scaler._scale]


def test_a_snapshot_puts_everything_back_in_place() -> None:
    random.seed(1)
    np.random.seed(1)
    loop = Loop()
    loop.step(batch(0))
    snapshot = Snapshot(loop.step, loop.model, (loop.optimizer,))
    assert snapshot.refused == ""
    before, kept = loop.look(), loop.model[0].weight
    loop.step(batch(1))
    after = loop.look()
    snapshot.restore()
    assert loop.look() == before and after != before
    assert loop.model[0].weight is kept and kept.grad is not None
    loop.step(batch(1))
    assert loop.look() == after


def test_what_a_step_counts_is_found_by_name() -> None:
    loop = Loop()
    found = numbers(loop.step)
    assert {"self.calls", "self.best.loss", "self.config.rate", "self.seen.0", "CALLS"} <= set(
        found
    )
    assert {one.name for one in variables(own_steps.counts().step)} >= {"calls", "model"}
