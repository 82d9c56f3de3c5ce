"""step_adamw against torch.optim.AdamW.step: same weights, same state, whoever computes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gemm_variants import built
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import AdamW

from ratchet.base.devices.probe import best_isa
from ratchet.base.errors import KernelError
from ratchet.judge.kernels import registry
from ratchet.judge.kernels.library import LIBRARY
from ratchet.judge.kernels.library.adamw import check_optimizer, global_norm, step_adamw

pytestmark = pytest.mark.compiler

SHAPES = ((33, 17), (5,), (64, 32), (3, 4, 5), (0,))


@pytest.fixture(params=["composite", "kernel"], autouse=True)
def computed_by(request: pytest.FixtureRequest, compiled: Path) -> Iterator[str]:
    if request.param == "kernel":
        for kernel in LIBRARY["adamw"].kernels(best_isa()):
            registry.activate(kernel, built(kernel, compiled))
    registry.fallbacks.clear()
    yield request.param
    registry.deactivate()


def parameters(seed: int, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    draw = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=draw).to(dtype)) for shape in SHAPES]


def give_gradients(own: list[nn.Parameter], seed: int, scale: float = 1.0) -> None:
    draw = torch.Generator().manual_seed(seed)
    for parameter in own:
        value = (torch.randn(parameter.shape, generator=draw) * scale).to(parameter.dtype)
        if parameter.grad is None:
            parameter.grad = value
        else:
            parameter.grad.copy_(value)


def assert_alike(one: list[nn.Parameter], other: list[nn.Parameter]) -> None:
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=2e-6, atol=2e-6)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    lr=st.floats(1e-5, 1e-1),
    beta1=st.floats(0.0, 0.99),
    beta2=st.floats(0.5, 0.999),
    decay=st.floats(0.0, 0.5),
    clip=st.sampled_from([None, 0.1, 1.0, 1e6]),
    seed=st.integers(0, 100),
)
def test_steps_are_those_of_torch(
    lr: float, beta1: float, beta2: float, decay: float, clip: float | None, seed: int
) -> None:
    ours, theirs = parameters(seed), parameters(seed)
    chosen = {"lr": lr, "betas": (beta1, beta2), "weight_decay": decay, "eps": 1e-6}
    new, old = AdamW(ours, **chosen), AdamW(theirs, **chosen)
    for step in range(5):
        give_gradients(ours, 10 * seed + step)
        give_gradients(theirs, 10 * seed + step)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(theirs, clip)
        old.step()
        step_adamw(new, clip_norm=clip)
    # Both round m / (sqrt(v) + eps) in their own order: a few units of lr's last place.
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-5, atol=max(1e-6, 1e-4 * lr))


def test_gradients_stay_are_zeroed_in_place_or_dropped() -> None:
    own = parameters(0)
    optimizer = AdamW(own)
    give_gradients(own, 1)
    kept = [parameter.grad for parameter in own]
    values = [gradient.clone() for gradient in kept if gradient is not None]
    step_adamw(optimizer)
    for parameter, gradient, value in zip(own, kept, values, strict=True):
        assert parameter.grad is gradient
        assert gradient is not None and torch.equal(gradient, value)
    step_adamw(optimizer, clip_norm=1.0, gradients="zero")
    for parameter, gradient in zip(own, kept, strict=True):
        assert parameter.grad is gradient
        assert gradient is not None and not gradient.any()
    step_adamw(optimizer, gradients="drop")
    assert all(parameter.grad is None for parameter in own)


def test_the_kernel_computed_it(computed_by: str) -> None:
    own = parameters(0)
    give_gradients(own, 1)
    step_adamw(AdamW(own), clip_norm=1.0)
    expected = {} if computed_by == "kernel" else {"gradient_square_sum": 1, "adamw_step": 1}
    assert dict(registry.fallbacks) == expected


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
def test_groups_schedulers_and_absent_gradients() -> None:
    pairs = []
    for stepped in (step_adamw, AdamW.step):
        own = parameters(3)
        groups = [
            {"params": own[:2], "lr": 1e-2, "weight_decay": 0.0},
            {"params": own[2:], "betas": (0.8, 0.9), "eps": 1e-5},
        ]
        optimizer = AdamW(groups, lr=1e-3)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
        for step in range(6):
            give_gradients(own, step)
            if step % 2:
                own[0].grad = None
            stepped(optimizer)
            schedule.step()
        pairs.append(own)
    assert_alike(*pairs)


def test_state_is_torch_s_and_either_goes_on() -> None:
    ours, theirs = parameters(4), parameters(4)
    new, old = AdamW(ours, lr=1e-2), AdamW(theirs, lr=1e-2)
    for step in range(6):
        give_gradients(ours, step)
        give_gradients(theirs, step)
        if step < 3:
            step_adamw(new)
            old.step()
        else:
            new.step()
            step_adamw(old)
    assert set(new.state_dict()["state"][0]) == {"step", "exp_avg", "exp_avg_sq"}
    for index, values in old.state_dict()["state"].items():
        for key, value in values.items():
            found = new.state_dict()["state"][index][key]
            torch.testing.assert_close(found, value, rtol=1e-5, atol=1e-7)
    assert_alike(ours, theirs)


KINDS = {
    "float64": {"dtype": torch.float64},
    "bf16": {"dtype": torch.bfloat16},
    "complex": {"dtype": torch.complex64},
    "amsgrad": {"amsgrad": True},
    "maximize": {"maximize": True},
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("clip", [None, 0.1])
def test_what_the_kernel_does_not_take_is_stepped_by_torch(
    kind: dict[str, Any], clip: float | None
) -> None:
    chosen = dict(kind)
    dtype = chosen.pop("dtype", torch.float32)
    pairs = []
    for ours in (True, False):
        own = [*parameters(2), *parameters(3, dtype)]
        optimizer = AdamW([{"params": own[:2]}, {"params": own[2:], **chosen}], lr=1e-2)
        for step in range(3):
            give_gradients(own, step)
            if ours:
                step_adamw(optimizer, clip_norm=clip, gradients="drop")
                assert all(parameter.grad is None for parameter in own)
                continue
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(own, clip)
            optimizer.step()
            optimizer.zero_grad()
        pairs.append(own)
        assert {len(optimizer.state[parameter]) for parameter in own[:2]} == {3}
    assert_alike(*pairs)


def test_a_gradient_in_another_layout_is_taken() -> None:
    ours, theirs = nn.Parameter(torch.ones(6, 4)), nn.Parameter(torch.ones(6, 4))
    gradient = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).t()
    ours.grad, theirs.grad = gradient.clone(), gradient.clone()
    assert not ours.grad.is_contiguous()
    step_adamw(AdamW([ours]), gradients="zero")
    AdamW([theirs]).step()
    assert_alike([ours], [theirs])
    assert ours.grad is not None and not ours.grad.any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_norm_that_is_not_a_number_is_not_hidden(bad: float) -> None:
    own = [nn.Parameter(torch.ones(8))]
    own[0].grad = torch.full((8,), bad)
    step_adamw(AdamW(own), clip_norm=1.0)
    assert own[0].isnan().any()


@pytest.mark.parametrize("scale", [0.0, 1e-12, 1.0, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_norm_is_that_of_torch(scale: float, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    gradients = [(torch.randn(s, generator=draw) * scale).to(dtype) for s in ((999, 77), (3,))]
    expected = float(torch.cat([g.double().flatten() for g in gradients]).norm())
    assert global_norm(gradients) == pytest.approx(expected, rel=1e-6)


def test_another_optimizer_is_refused() -> None:
    class Own(AdamW):
        pass

    for optimizer in (torch.optim.SGD(parameters(0)), Own(parameters(0))):
        with pytest.raises(KernelError, match=f"a {type(optimizer).__name__}: use torch"):
            check_optimizer(optimizer)
