"""The forms that a step may take: own steps, several optimizers, accumulation, carried state."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from ratchet.base.errors import WorkloadError
from ratchet.train.workloads.bench import bench
from ratchet.train.workloads.blame import batch_of
from ratchet.train.workloads.check import check, load_checked
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.fake import flops_of
from ratchet.train.workloads.load import load
from ratchet.train.workloads.own_step import loss_returned
from ratchet.train.workloads.step import TrainingStep
from ratchet.train.workloads.workload import Workload, count


def seeded_batch(index: int) -> Tensor:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(index))


def regression(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) - x.sum(1, keepdim=True)).square().mean()


def mlp(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def own(**changes: Any) -> Workload:
    workload = Workload(
        name="own", model=mlp(), batch=seeded_batch, optimizer=adam, train_step=plain_step
    )
    return replace(workload, **changes)


def adam(parameters: Any) -> Optimizer:
    return Adam(parameters, lr=1e-2)


def plain_step(model: nn.Module, batch: Tensor, optimizer: Optimizer) -> Tensor:
    loss = regression(model, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
    return loss


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten().clone() for p in model.parameters()])


def trained(workload: Workload, steps: int) -> Tensor:
    step = TrainingStep(workload, workload.as_written())
    for index in range(steps):
        step(batch_of(workload, index))
    return weights(workload.model)


def test_an_own_step_trains_as_the_loss_does() -> None:
    by_loss = replace(own(model=mlp()), train_step=None, loss=regression)
    assert torch.equal(trained(own(), 3), trained(by_loss, 3))


def test_the_gradients_of_an_own_step_are_those_before_its_update() -> None:
    step = TrainingStep(own(), StepConfig())
    before, x = weights(step.model), seeded_batch(0)
    loss = step.forward_backward(x)
    assert torch.equal(weights(step.model), before)  # the update is undone
    expected = mlp()
    again = regression(expected, x)
    again.backward()  # type: ignore[no-untyped-call]
    assert loss == again.detach()
    for name, parameter in expected.named_parameters():
        assert torch.equal(step.gradients()[name], parameter.grad)  # type: ignore[arg-type]


class Pair(nn.Module):
    """A generator and a discriminator."""

    def __init__(self) -> None:
        super().__init__()
        self.g, self.d = nn.Linear(4, 4), nn.Linear(4, 1)


def gan_step(model: Any, real: Tensor, optimizers: Mapping[str, Optimizer]) -> Tensor:
    fake = model.g(real.flip(0))
    d_loss = F.softplus(model.d(fake.detach())).mean() + F.softplus(-model.d(real)).mean()
    d_loss.backward()
    optimizers["d"].step()
    model.zero_grad()
    g_loss = F.softplus(-model.d(fake)).mean()
    g_loss.backward()
    optimizers["g"].step()
    model.zero_grad()
    return (d_loss + g_loss).detach()


GAN = {"g": lambda model: Adam(model.g.parameters()), "d": lambda model: SGD(model.d.parameters())}


def gan() -> Workload:
    torch.manual_seed(0)
    return own(model=Pair(), optimizers=GAN, train_step=gan_step)


def test_two_losses_and_two_optimizers_alternate() -> None:
    assert check(gan()) == ()
    step = TrainingStep(gan(), StepConfig())
    step.forward_backward(seeded_batch(0))
    # The generator's gradient is through the discriminator's first weights.
    torch.manual_seed(0)
    model, real = Pair(), seeded_batch(0)
    F.softplus(-model.d(model.g(real.flip(0)))).mean().backward()  # type: ignore[no-untyped-call]
    assert torch.equal(step.gradients()["g.weight"], model.g.weight.grad)  # type: ignore[arg-type]
    assert step.gradients()["d.weight"].count_nonzero()


def test_several_optimizers_of_a_loss_have_their_own_parameters() -> None:
    def decayed(model: nn.Module) -> Optimizer:
        return AdamW([p for p in model.parameters() if p.dim() == 2], weight_decay=0.5)

    def plain(model: nn.Module) -> Optimizer:
        return SGD([p for p in model.parameters() if p.dim() == 1], lr=0.0)

    workload = own(
        train_step=None, loss=regression, optimizers={"decayed": decayed, "plain": plain}
    )
    check(workload)
    before = {name: p.detach().clone() for name, p in workload.model.named_parameters()}
    trained(workload, 2)
    moved = {n for n, p in workload.model.named_parameters() if not torch.equal(p, before[n])}
    assert moved == {"0.weight", "2.weight"}


def test_accumulated_batches_are_averaged() -> None:
    workload = own(train_step=None, loss=regression, accumulate=4)
    step = TrainingStep(workload, StepConfig())
    batches = batch_of(workload, 1)
    assert [torch.equal(a, seeded_batch(i)) for a, i in zip(batches, range(4, 8), strict=True)]
    loss = step.forward_backward(batches)
    whole = mlp()
    regression(whole, torch.cat(batches)).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(step.gradients()["0.weight"], whole[0].weight.grad)  # type: ignore[index]
    torch.testing.assert_close(loss, regression(mlp(), torch.cat(batches)).detach())
    assert count(workload, batches)[0] == 32
    assert flops(workload) == 4 * flops(replace(workload, accumulate=1))


def flops(workload: Workload) -> int:
    return flops_of(TrainingStep(workload, StepConfig()), batch_of(workload, 0))


def test_an_own_step_gets_the_list_of_its_batches() -> None:
    seen: list[Any] = []

    def step(model: nn.Module, batches: list[Tensor], optimizer: Optimizer) -> Tensor:
        seen.append(len(batches))
        return plain_step(model, torch.cat(batches), optimizer)

    trained(own(train_step=step, accumulate=2), 1)
    assert seen == [2]


def test_state_is_carried_from_step_to_step() -> None:
    def start(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
        return {"ema": copy.deepcopy(model), "schedule": schedule, "losses": []}

    states: list[dict[str, Any]] = []

    def step(
        model: nn.Module, batch: Tensor, optimizer: Optimizer, state: dict[str, Any]
    ) -> Tensor:
        loss = plain_step(model, batch, optimizer)
        for kept, new in zip(state["ema"].parameters(), model.parameters(), strict=True):
            kept.data.lerp_(new.data, 0.1)
        state["schedule"].step()
        state["losses"].append(loss.item())
        states.append(state)
        return loss

    workload = own(train_step=step, state=start)
    trained(workload, 3)
    assert states[-1]["schedule"].get_last_lr() == [1e-2 / 8]
    assert len(states[-1]["losses"]) == 3
    assert not torch.equal(weights(states[-1]["ema"]), weights(workload.model))


def test_a_schedule_steps_after_each_update() -> None:
    workload = own(
        train_step=None,
        loss=regression,
        scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.0),
    )
    once = trained(workload, 1)
    assert torch.equal(trained(replace(workload, model=mlp()), 3), once)


def scaled_step(
    model: nn.Module, batch: Tensor, optimizer: Optimizer, scaler: torch.amp.GradScaler
) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        loss = regression(model, batch).float()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss


@pytest.mark.parametrize("fused", [False, True])
def test_the_gradients_of_a_scaled_loss_are_unscaled(fused: bool) -> None:
    workload = own(
        train_step=scaled_step,
        state=lambda model, optimizer: torch.amp.GradScaler("cpu"),
        optimizer=lambda parameters: AdamW(parameters, fused=fused),
        precision="bf16_autocast",
    )
    assert check(workload) == ()
    written, exact = (
        TrainingStep(replace(workload, model=mlp()), StepConfig(precision=precision))
        for precision in ("bf16_autocast", "fp32")
    )
    losses = [step.forward_backward(seeded_batch(0)) for step in (written, exact)]
    reference = mlp()
    regression(reference, seeded_batch(0)).backward()  # type: ignore[no-untyped-call]
    expected = reference[0].weight.grad  # type: ignore[index]
    torch.testing.assert_close(exact.gradients()["0.weight"], expected)
    torch.testing.assert_close(written.gradients()["0.weight"], expected, rtol=0.1, atol=0.02)
    assert not torch.equal(*losses)  # the reference left autocast


def closure_step(model: nn.Module, batch: Tensor, optimizer: Optimizer) -> float:
    def closure() -> float:
        optimizer.zero_grad()
        loss = regression(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    return float(optimizer.step(closure))  # type: ignore[arg-type]


def test_a_closure_gives_the_gradients_of_its_first_call() -> None:
    workload = own(
        train_step=closure_step, optimizer=lambda parameters: torch.optim.LBFGS(list(parameters))
    )
    assert check(workload) == ()
    step = TrainingStep(workload, StepConfig())
    step.forward_backward(seeded_batch(0))
    reference = mlp()
    regression(reference, seeded_batch(0)).backward()  # type: ignore[no-untyped-call]
    assert torch.equal(step.gradients()["0.weight"], reference[0].weight.grad)  # type: ignore[index]
    assert trained(workload, 2).isfinite().all()


def test_bench_times_an_own_step_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratchet.train.workloads.bench.gemm_rate", lambda *_: 0.0)
    found = bench(own(), StepConfig(), 2)
    assert found.flops_per_step == flops(own(train_step=None, loss=regression))
    assert (found.unit, found.steps) == ("samples", 2)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"loss": regression}, "both loss and train_step; give one"),
        ({"train_step": None}, "neither loss nor train_step; give one"),
        ({"train_step": 3}, "train_step is not callable"),
        ({"clip_norm": 1.0}, "clip_norm belongs to a loss; do it in train_step"),
        ({"scheduler": lambda optimizer: None}, "scheduler belongs to a loss"),
        ({"precision": "bf16_master"}, "'bf16_master' belongs to a loss"),
        ({"precision": "bf16_autocast"}, "does not enter torch.autocast"),
        ({"accumulate": 0}, "accumulate is 0; give a whole number"),
        ({"optimizers": [adam]}, "give a dict of name: function"),
        ({"optimizers": {"a": lambda model: 3}}, "optimizers['a'] returned int 3"),
        ({"state": 3}, "state is not callable"),
        (
            {"train_step": None, "loss": regression, "state": lambda m, o: 1},
            "state is for a train_step",
        ),
        ({"train_step": lambda model, batch, optimizer: None}, "train_step returned None"),
        ({"train_step": lambda model, batch, optimizer: 1.0}, "does not depend on the weights"),
        ({"train_step": scaled_step, "state": None}, "raised TypeError"),
        (
            {
                "train_step": scaled_step,
                "state": lambda model, optimizer: torch.amp.GradScaler("cpu"),
            },
            "train_step enters torch.autocast; say so with precision='bf16_autocast'",
        ),
    ],
)
def test_a_form_that_cannot_be_is_one_line(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(WorkloadError) as error:
        check(own(**changes))
    assert expected in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "returned",
    [
        (torch.tensor(2.0), torch.ones(3)),
        {"loss": torch.tensor(2.0), "accuracy": 0.5},
        SimpleNamespace(loss=2.0),
    ],
)
def test_a_loss_is_found_in_what_a_step_returns(returned: Any) -> None:
    assert loss_returned(own(), returned) == 2.0


class Outer(torch.optim.Optimizer):
    """Steps the optimizer that it holds, by a method of its own, as SAM does."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        self.base = torch.optim.SGD(self.param_groups, lr=0.1)

    def second_step(self) -> None:
        self.base.step()


def test_the_update_of_an_optimizer_inside_another_counts() -> None:
    def step(model: nn.Module, batch: Any, optimizer: Outer) -> Tensor:
        loss = regression(model, batch)
        loss.backward()
        optimizer.second_step()
        optimizer.zero_grad()
        return loss

    workload = own(train_step=step, optimizer=Outer)
    before = [one.detach().clone() for one in workload.model.parameters()]
    check(workload)
    for parameter, value in zip(workload.model.parameters(), before, strict=True):
        assert torch.equal(parameter, value)


SCRIPT = """
import torch
from torch import nn

def build():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    counted = []

    def step(batch):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        counted.append(1)
        assert len(counted) < 3
        return loss.detach()

    return model, optimizer, step, lambda index: torch.ones(2, 4) * (index + 1)

def several():
    model, optimizer, step, batch = build()
    return model, [optimizer, torch.optim.Adam(model.parameters())], step, batch

def short():
    return build()[:3]
"""


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return lambda name: f"{path}:{name}"


def test_a_plain_script_is_a_workload(script: Callable[[str], str]) -> None:
    # The check's own step is of another load: what a script counts begins anew.
    workload, warnings = load_checked(script("build"))
    assert (warnings, workload.source) == ((), script("build"))
    assert workload.name == "train.py:build"
    step = TrainingStep(workload, workload.as_written())
    assert step(workload.batch(0)) > step(workload.batch(0))
    assert list(load(script("several")).make_optimizers()) == ["0", "1"]


def test_a_script_that_returns_something_else_is_one_line(script: Callable[[str], str]) -> None:
    with pytest.raises(WorkloadError, match=r"returned \(Linear, SGD, function\); return \(model"):
        load(script("short"))
