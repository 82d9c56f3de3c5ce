"""Chunked logits, updates in the backward pass and micro-batches train as the plain step does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR

from ratchet.base.errors import RatchetError, WorkloadError
from ratchet.train.graph.steps import build_step
from ratchet.train.levers import find_lever
from ratchet.train.memory.measured import record
from ratchet.train.recipe.module_calls import memory_slots
from ratchet.train.recipe.slots import filled
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.deferred_logits import DeferredLogits, apply_logits
from ratchet.train.workloads.load import load
from ratchet.train.workloads.workload import Workload

CLASSES, HIDDEN = 300, 16


def gradients(workload: Workload, **levers: Any) -> tuple[Tensor, dict[str, Tensor]]:
    step = build_step(workload, msgspec.structs.replace(workload.as_written(), **levers))
    loss = step.forward_backward(workload.batch(0))
    found = {name: one.clone() for name, one in step.gradients().items()}
    for one in workload.model.parameters():
        one.grad = None
    apply_logits(workload.model, "whole")
    return loss, found


@pytest.mark.parametrize(
    ("name", "levers"),
    [
        ("gpt2-tiny", {}),
        ("gpt2-tiny", {"micro_batches": 4}),
        ("llama-tiny", {"compile_mode": "default"}),
        ("bert-tiny", {}),
    ],
)
def test_chunked_logits_have_the_gradients_of_whole_ones(name: str, levers: dict[str, Any]) -> None:
    workload = load(name, device="cpu")
    loss, plain = gradients(workload)
    other, chunked = gradients(workload, logits="chunked", **levers)
    torch.testing.assert_close(other, loss)
    for key, gradient in plain.items():
        torch.testing.assert_close(chunked[key], gradient, rtol=1e-4, atol=1e-6, msg=key)


class Head(nn.Module):
    """An embedding and a head, tied or not; `read` makes a loss of the logits."""

    def __init__(self, read: Callable[[Tensor, Tensor], Tensor], *, tied: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(CLASSES, HIDDEN)
        self.head = nn.Linear(HIDDEN, CLASSES)
        self.read = read
        if tied:
            self.head.weight = self.table.weight

    def forward(self, batch: Tensor) -> Tensor:
        return self.read(self.head(torch.tanh(self.table(batch[:, :-1]))), batch[:, 1:])


READS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], bool]] = {
    "flat": (lambda y, t: F.cross_entropy(y.view(-1, y.size(-1)).float(), t.reshape(-1)), True),
    "shifted": (
        lambda y, t: F.cross_entropy(y[:, :-1, :].reshape(-1, CLASSES), t[:, :-1].reshape(-1)),
        True,
    ),
    "ignored": (
        lambda y, t: F.cross_entropy(
            y.flatten(0, 1), t.flatten().where(t.flatten() > 50, -100), label_smoothing=0.1
        ),
        True,
    ),
    "summed": (lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten(), reduction="sum"), False),
    "transposed": (lambda y, t: F.cross_entropy(y.transpose(1, 2), t), False),
    "capped": (lambda y, t: F.cross_entropy(torch.tanh(y).flatten(0, 1), t.flatten()), False),
    "with a penalty": (
        lambda y, t: F.cross_entropy(y.flatten(0, 1), t.flatten()) + 1e-3 * (y * y).mean(),
        True,
    ),
    "some classes": (
        lambda y, t: F.cross_entropy(y[..., :200].flatten(0, 1), t.flatten() % 200),
        False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", READS)
def test_logits_are_deferred_only_as_far_as_the_loss_allows(
    kind: str, tied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, defers = READS[kind]
    batch = torch.randint(0, CLASSES, (4, 90), generator=torch.Generator().manual_seed(1))
    model = Head(read, tied=tied)
    model(batch).backward()
    plain = {name: one.grad for name, one in model.named_parameters()}
    model.zero_grad()
    seen: list[bool] = []
    written = DeferredLogits._cross_entropy

    def watched(self: DeferredLogits, *given: Any, **named: Any) -> Tensor | None:
        found = written(self, *given, **named)
        seen.append(found is not None)
        return found

    monkeypatch.setattr(DeferredLogits, "_cross_entropy", watched)
    apply_logits(model, "chunked")
    (2 * model(batch)).backward()  # a loss that is scaled
    assert any(seen) == defers
    for name, parameter in model.named_parameters():
        whole, found = plain[name], parameter.grad
        assert whole is not None and found is not None
        torch.testing.assert_close(found, 2 * whole, rtol=1e-4, atol=1e-6)
    apply_logits(model, "whole")
    assert "forward" not in model.head.__dict__ and "forward" not in model.table.__dict__


def test_tied_weights_hold_one_gradient() -> None:
    model = Head(READS["flat"][0], tied=True)
    batch = torch.randint(0, CLASSES, (1, 5))
    table = CLASSES * HIDDEN * 4

    def peak(logits: str) -> int:
        apply_logits(model, logits)
        model.zero_grad()
        trace = record(lambda: model(batch).backward(), torch.device("cpu"))
        return trace.peak_bytes - trace.base_bytes

    assert peak("whole") > 3 * table
    assert peak("chunked") < 2 * table


def test_a_second_backward_is_refused_in_one_line() -> None:
    model = Head(READS["flat"][0], tied=True)
    apply_logits(model, "chunked")
    loss = model(torch.randint(0, CLASSES, (1, 5)))
    loss.backward(retain_graph=True)
    with pytest.raises(WorkloadError, match="use logits whole"):
        loss.backward()


def test_a_script_has_its_own_layers_between_calls() -> None:
    model = Head(READS["flat"][0], tied=True)
    slots = memory_slots(model, StepConfig(logits="chunked"))
    assert "forward" not in model.head.__dict__
    with filled(slots):
        loss = model(torch.randint(0, CLASSES, (2, 9)))
        assert type(model.head(torch.zeros(1, HIDDEN))) is DeferredLogits
    assert "forward" not in model.head.__dict__ and loss.requires_grad


def stack(**more: Any) -> Workload:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
    return Workload(
        name="stack",
        model=model,
        loss=lambda model, batch: model(batch).square().mean(),
        batch=lambda index: torch.randn(4, 64, generator=torch.Generator().manual_seed(index)),
        scheduler=lambda optimizer: StepLR(optimizer, 1, 0.5),
        **more,
    )


def trained(workload: Workload, **levers: Any) -> dict[str, Tensor]:
    step = build_step(workload, StepConfig(**levers))
    for index in range(3):
        step(workload.batch(index))
    step.close()
    return dict(workload.model.named_parameters())


def test_an_update_in_the_backward_pass_is_the_same_update_in_less_memory() -> None:
    plain, early = trained(stack()), trained(stack(), update_in_backward=True)
    for name, one in plain.items():
        assert torch.equal(one, early[name]), name

    def peak(**levers: Any) -> int:
        workload = stack()
        step = build_step(workload, StepConfig(optimizer="fused", **levers))
        step(workload.batch(0))
        trace = record(lambda: step(workload.batch(1)), torch.device("cpu"))
        return trace.peak_bytes - trace.base_bytes

    weight = 64 * 64 * 4
    assert peak() - peak(update_in_backward=True) > 5 * weight


def test_gradients_stay_where_only_they_are_asked_for() -> None:
    workload = stack()
    _, plain = gradients(workload)
    _, early = gradients(workload, update_in_backward=True)
    assert all(torch.equal(early[name], one) for name, one in plain.items())


@pytest.mark.parametrize("more", [{"clip_norm": 1.0}, {"accumulate": 2}])
def test_an_update_that_needs_all_gradients_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(WorkloadError, match="cannot update in its backward pass"):
        build_step(stack(**more), StepConfig(update_in_backward=True))


def test_micro_batches_have_the_gradients_of_the_batch() -> None:
    workload = stack()
    loss, plain = gradients(workload)
    other, cut = gradients(workload, micro_batches=2)
    torch.testing.assert_close(other, loss)
    torch.testing.assert_close(cut, plain)
    with pytest.raises(WorkloadError, match="micro_batches 3 does not divide the batch's 4"):
        gradients(workload, micro_batches=3)
    twice = replace(workload, accumulate=2)
    step = build_step(twice, StepConfig(micro_batches=2))
    losses = [workload.loss(workload.model, workload.batch(i)) for i in (0, 1)]  # type: ignore[misc]
    found = step.forward_backward([workload.batch(0), workload.batch(1)])
    torch.testing.assert_close(found, torch.stack(losses).mean().detach())


def test_a_plan_s_levers_are_one_lever() -> None:
    lever = find_lever("checkpointing=plan:ff+chunked-logits+micro-batches=4")
    config = msgspec.structs.replace(StepConfig(), **{lever.field: lever.value}, **dict(lever.also))
    assert (config.checkpointing, config.logits, config.micro_batches) == ("plan:ff", "chunked", 4)
    for wrong in ("checkpointing=plan:ff+nothing", "micro-batches=1", "checkpointing=plan:xx"):
        with pytest.raises(RatchetError, match="lever"):
            find_lever(wrong)
