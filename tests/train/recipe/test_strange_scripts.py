"""Scripts that keep, watch or transform what a recipe runs find what they do without it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import own_steps
import pytest
import torch
from own_recipes import recipe
from own_steps import adamw, batch, net
from test_script_steps import QUIET, said, trace
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import ratchet
from ratchet.base.errors import RecipeError
from ratchet.train.recipe import signature_of
from ratchet.train.recipe.fits import check_optimizers
from ratchet.train.workloads.config import StepConfig

pytestmark = QUIET
COMPILED = StepConfig(compile_mode="default")
BF16 = StepConfig(compile_mode="default", precision="bf16_autocast")
RECOMPUTED = StepConfig(checkpointing="blocks:1")


@pytest.fixture(autouse=True)
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    trace(monkeypatch, "eager")
    yield
    torch._dynamo.reset()


def compiled(step: Callable[..., Any], model: nn.Module, optimizer: Any, config: StepConfig) -> Any:
    made = recipe(config, model=signature_of(model), optimizer="AdamW")
    return ratchet.compile(step, model, optimizer, recipe=made)


def trained(build: Callable[[], Any], config: StepConfig | None, steps: int = 4) -> list[Any]:
    """What each step returns; `build` gives the model, the optimizer, the step, and more."""
    model, optimizer, step, between = build()
    if config is not None:
        step = compiled(step, model, optimizer, config)
    found = []
    for index in range(steps):
        found.append(step(batch(index)))
        between(index)
    return found


def same(build: Callable[[], Any], config: StepConfig) -> None:
    for written, found in zip(trained(build, None), trained(build, config), strict=True):
        assert torch.as_tensor(found).tolist() == pytest.approx(
            torch.as_tensor(written).tolist(), abs=1e-5
        )


def test_hooks_that_are_added_or_removed_later_run() -> None:
    def build() -> Any:
        model, hooks = net(), []
        optimizer = adamw(model)

        def between(index: int) -> None:
            if index == 0:
                hooks.append(model[0].register_forward_hook(lambda _, __, out: out * 2))
            if index == 2:
                hooks[0].remove()

        return model, optimizer, own_steps.trained(model, optimizer), between

    same(build, COMPILED)


def test_a_step_under_vmap_trains_as_written() -> None:
    def build() -> Any:
        model = net()
        optimizer = adamw(model)

        def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
            return functional_call(model, weights, (x[None],)).square().mean()

        def step(x: Tensor) -> Tensor:
            weights = {name: one.detach() for name, one in model.named_parameters()}
            found = vmap(grad(loss), (None, 0))(weights, x)
            for name, parameter in model.named_parameters():
                parameter.grad = found[name].mean(0)
            optimizer.step()
            return next(iter(found.values())).norm()

        return model, optimizer, step, lambda _: None

    same(build, COMPILED)
    same(build, RECOMPUTED)


def test_a_step_that_compiles_itself_is_compiled_as_a_whole(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Torch's own tracing runs no backward pass of the step."""

    def build() -> Any:
        model = net()
        optimizer, inner = adamw(model), torch.compile(model)

        def step(x: Tensor) -> Tensor:
            loss = inner(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return model, optimizer, step, lambda _: None

    same(build, COMPILED)
    assert not said(caplog)


@dataclasses.dataclass(frozen=True)
class Out:
    logits: Tensor


class Keeps(nn.Module):
    """Keeps a hidden state in an attribute and in a buffer, and returns a dataclass."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()
        self.last: tuple[Tensor, ...] = ()
        self.register_buffer("before", torch.zeros(()))

    def forward(self, x: Tensor) -> Out:
        out = self.net(x)
        self.last, self.before = (out.detach(),), out.detach().mean()
        return Out(out)


@pytest.mark.parametrize("config", [BF16, StepConfig(precision="bf16_master")], ids=["whole", "no"])
def test_what_leaves_a_module_is_fp32(config: StepConfig) -> None:
    model, kept = Keeps(), []
    optimizer = adamw(model)

    def step(x: Tensor) -> Tensor:
        out = model(x).logits
        loss = nn.functional.cross_entropy(out, x[:, :4].argmax(1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(out.detach())
        return out.detach()

    run = compiled(step, model, optimizer, config)
    for index in range(3):
        found = run(batch(index))
        assert {one.dtype for one in (found, *kept, *model.last, model.before)} == {torch.float32}


def test_a_script_in_autocast_keeps_its_bf16_results() -> None:
    model = net()
    optimizer = adamw(model)

    def step(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out = model(x)
        out.square().mean().backward()
        optimizer.step()
        return out.detach()

    run = compiled(step, model, optimizer, BF16)
    assert {run(batch(index)).dtype for index in range(3)} == {torch.bfloat16}


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = nn.Linear(8, 8), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        out: Tensor = self.inner(x)
        return out


def test_blocks_that_keep_something_are_not_recomputed(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), Counts())
    optimizer = adamw(model)
    step = own_steps.trained(model, optimizer)
    model[2].inner.register_forward_hook(lambda *_: None)
    run = compiled(step, model, optimizer, RECOMPUTED)
    for index in range(3):
        run(batch(index))
    assert model[1].num_batches_tracked == 3 and model[2].calls == 3
    assert said(caplog)[0].startswith("ratchet: 2 of the model's blocks are not recomputed")


def test_blocks_recompute_with_the_weights_that_they_were_called_with() -> None:
    def build() -> Any:
        model = net()
        optimizer = adamw(model)

        def step(x: Tensor) -> Tensor:
            weights = dict(model.named_parameters())
            fast = {name: one * 0.5 for name, one in weights.items()}
            loss = functional_call(model, fast, (x,)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return model, optimizer, step, lambda _: None

    same(build, RECOMPUTED)


def test_of_several_optimizers_those_that_can_get_the_fused_update() -> None:
    model = nn.Sequential(nn.EmbeddingBag(8, 4, sparse=True), nn.Linear(4, 4))
    sparse = torch.optim.SparseAdam(model[0].parameters())
    dense = torch.optim.AdamW(model[1].parameters())
    made = recipe(StepConfig(optimizer="fused"), optimizer="SparseAdam+AdamW")
    assert check_optimizers(made, model, (sparse, dense)) == (dense,)
    with pytest.raises(RecipeError, match="SparseAdam has no fused"):
        check_optimizers(made, model, (sparse,))


@pytest.mark.parametrize("nesterov", [True, False])
def test_an_update_leaves_gradients_alone(nesterov: bool, caplog: pytest.LogCaptureFixture) -> None:
    model, gradients = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=nesterov)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        before = model[0].weight.grad.clone()
        optimizer.step()
        gradients.append(torch.equal(before, model[0].weight.grad))
        return loss.detach()

    made = recipe(StepConfig(optimizer="fused"), model=signature_of(model), optimizer="SGD")
    run = ratchet.compile(step, model, optimizer, recipe=made)
    for index in range(3):
        run(batch(index))
    assert all(gradients) and not said(caplog)
