"""A model alone is compiled after a first step, unless that step differentiates its gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import own_steps
import pytest
import torch
from own_recipes import recipe
from own_steps import batch
from test_script_steps import QUIET, said, trace
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.autograd import grad

import ratchet
from ratchet.train.recipe import first_call, signature_of
from ratchet.train.recipe.first_call import Seen, _backwards
from ratchet.train.workloads.config import StepConfig

pytestmark = QUIET
LEARNS = torch.optim.AdamW


@pytest.fixture(autouse=True)
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    trace(monkeypatch, "aot_eager")
    counters.clear()
    before = list(first_call._watching), first_call.AUTOGRAD._engine_run_backward
    yield
    torch._dynamo.reset()
    # Nothing of these models stays in torch.
    assert before == (first_call._watching, first_call.AUTOGRAD._engine_run_backward)


def critic() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def compiled(model: nn.Module, given: bool) -> nn.Module:
    if given:
        made = recipe(
            StepConfig(compile_mode="default"), model=signature_of(model), optimizer="AdamW"
        )
        ratchet.compile(model, recipe=made)
    return model


def penalises(given: bool) -> list[float]:
    """WGAN-GP's critic (Gulrajani et al. 2017)."""
    model = compiled(critic(), given)
    optimizer = LEARNS(model.parameters(), lr=1e-2)
    losses = []
    for index in range(3):
        x = batch(index).requires_grad_()
        (slope,) = grad(model(x).sum(), x, create_graph=True)
        loss = model(x).mean() + (slope.norm(dim=1) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def adversaries(given: bool) -> list[float]:
    """A generator whose critic is penalised: of the two only the generator is compiled."""
    torch.manual_seed(1)
    maker, model = own_steps.net(), nn.Linear(4, 1)
    for one in (maker, model):
        compiled(one, given)
    learn_maker, learn = LEARNS(maker.parameters(), lr=1e-2), LEARNS(model.parameters(), lr=1e-2)
    losses = []
    for index in range(3):
        made = maker(batch(index))
        seen = made.detach().requires_grad_()
        (slope,) = grad(model(seen).square().sum(), seen, create_graph=True)
        learn.zero_grad()
        (model(seen).mean() + slope.square().mean()).backward()
        learn.step()
        loss = -model(made).mean()
        learn_maker.zero_grad()
        loss.backward()
        learn_maker.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(("script", "graphs"), [(penalises, 0), (adversaries, 1)])
def test_a_model_that_is_differentiated_twice_is_not_compiled(
    script: Callable[[bool], list[float]], graphs: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert script(True) == script(False)
    (line,) = said(caplog)
    assert "is not compiled" in line and "create_graph=True" in line
    assert counters["stats"]["unique_graphs"] == graphs


@pytest.mark.parametrize("updates", ["by an optimizer", "by hand"])
def test_other_models_are_compiled_after_a_step_or_a_few_backward_passes(updates: str) -> None:
    model = compiled(critic(), True)
    optimizer = LEARNS(model.parameters(), lr=1e-2)
    graphs = []
    for index in range(first_call.MOST_BACKWARDS + 1):
        loss: Tensor = model(batch(index)).mean()
        loss.backward()
        graphs.append(counters["stats"]["unique_graphs"])
        if updates == "by an optimizer":
            optimizer.step()
    first = 1 if updates == "by an optimizer" else first_call.MOST_BACKWARDS
    assert graphs == [0] * first + [1] * (len(graphs) - first)


def test_the_watch_of_a_model_may_end_while_a_step_is_watched() -> None:
    model, seen = critic(), Seen()
    watched = first_call.FirstGradients(model)
    with _backwards(seen):
        model(batch(0)).mean().backward()
        watched.end()
    model(batch(0)).mean().backward()
    watched.release()
    assert seen.backwards == 1 and not watched.twice
    first_call.FirstGradients(model).end()  # puts torch's own function back
