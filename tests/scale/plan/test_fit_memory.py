"""A step is measured, planned and run: predictions hold, and so do losses and messages."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from ratchet.base.errors import PlanError
from ratchet.cli import main
from ratchet.train.levers import find_lever
from ratchet.train.memory.arm import MemoryArm, estimate_bytes
from ratchet.train.memory.fit import MemoryRequest, step_memory
from ratchet.train.memory.measured import MeasuredStep, MemoryParts, Stretch
from ratchet.train.memory.plan import CompiledPlans, costs_of
from ratchet.train.workloads.checkpointing import find_blocks
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.load import load
from ratchet.train.workloads.workload import Workload

MIB = 1 << 20


def run(arm: MemoryArm, checkpointing: str, **levers: Any) -> MeasuredStep:
    """Measure a step in this process, over JSON as from another."""
    config = StepConfig(checkpointing=checkpointing, **levers)
    found = json.loads(json.dumps(arm.measure(msgspec.to_builtins(config))))
    parts = MemoryParts(**found.pop("parts"))
    cut = tuple(Stretch(**one) for one in found.pop("stretches"))
    return MeasuredStep(**found, parts=parts, stretches=cut)


class Wide(nn.Module):
    """A block that saves eight times its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(x)))


def stack(accumulate: int = 1) -> Workload:
    """Four blocks whose steps are quick."""
    torch.manual_seed(0)
    return Workload(
        name="stack",
        model=nn.Sequential(nn.Linear(16, 16), Wide(16), Wide(16), Wide(16)),
        loss=lambda model, batch: model(batch).square().mean(),
        batch=lambda index: torch.randn(64, 16, generator=torch.Generator().manual_seed(index)),
        accumulate=accumulate,
    )


@pytest.mark.parametrize("accumulate", [1, 2])
def test_every_mixed_plan_has_the_peak_that_was_predicted(accumulate: int) -> None:
    arm = MemoryArm(stack(accumulate))
    costs = costs_of({one: run(arm, f"plan:{one * 4}") for one in "nsf"}, 4)
    assert costs.mixes
    for choices in ("nnnn", "ffff", "ffnn", "nnff", "nsfn", "fnsf"):
        peak = run(arm, f"plan:{choices}").peak_bytes
        assert costs.peak_bytes(choices) == pytest.approx(peak, rel=0.05), choices


def test_a_block_keeps_what_autograd_saves() -> None:
    workload = stack()
    arm = MemoryArm(workload)
    costs = costs_of({"n": run(arm, "plan:nnnn")}, 4)
    block = find_blocks(workload.model)[1]
    own = {one.untyped_storage().data_ptr() for one in block.parameters()}
    kept: dict[int, int] = {}
    alive = []
    x = torch.randn(64, 16, requires_grad=True)

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own | {x.untyped_storage().data_ptr()}:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        output = block(x)
    assert costs.saved[1]["n"] == sum(kept.values()) + output.untyped_storage().nbytes()


def test_a_step_of_the_script_s_own_is_measured() -> None:
    def step(model: nn.Module, batch: torch.Tensor, optimizer: torch.optim.Optimizer) -> Any:
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    own = replace(stack(), loss=None, train_step=step)
    assert run(MemoryArm(own), "none").peak_bytes > 0


def test_the_parts_at_the_peak_are_the_whole_peak() -> None:
    workload = load("llama-tiny")
    step = run(MemoryArm(workload), "none")
    parts = step.parts
    weights = sum(one.numel() * 4 for one in workload.model.parameters())
    assert weights <= parts.parameters <= 1.1 * weights
    assert 1.9 * weights <= parts.optimizer <= 2.1 * weights
    assert parts.activations > parts.rest > 0
    total = parts.states + parts.gradients + parts.activations + parts.rest
    assert total == step.peak_bytes


def test_torch_s_memory_tracker_estimates_the_peak_without_running() -> None:
    workload = load("llama-tiny")
    estimated = estimate_bytes(workload)
    # The measured peak counts what other tests have left in this process.
    assert estimated == pytest.approx(run(MemoryArm(workload), "none").peak_bytes, rel=0.1)


def test_a_compiled_step_s_plan_is_the_least_recomputation_that_fits_as_measured() -> None:
    arm = MemoryArm(stack())
    costs = costs_of({one: run(arm, f"plan:{one * 4}") for one in "nsf"}, 4)
    # What a compiled step needs differs from the eager prediction: half, and 500 for each n.
    peaks = {
        choices: 500 * choices.count("n") + costs.peak_bytes(choices) // 2
        for choices in map("".join, itertools.product("nsf", repeat=4))
    }
    step = run(arm, "plan:ffff")
    plans = CompiledPlans(costs, lambda choices: replace(step, peak_bytes=peaks[choices]))
    budget = (peaks["nnnn"] + peaks["ffff"]) // 2
    plans.search(budget)
    found, least = plans.best(budget), plans.least()
    assert found is not None and least is not None
    assert found.predicted_bytes == peaks[found.choices] <= budget
    assert 0 < found.added_s < costs.added_s("ffff")
    assert plans.best(least.predicted_bytes - 1) is None
    assert len(plans.steps) <= 9


@pytest.mark.thorough
def test_a_compiled_budget_is_planned_and_kept() -> None:
    request = MemoryRequest(
        workload="gpt2-tiny", options={"device": "cpu"}, budget_bytes=6_900_000, compiled=True
    )
    fitted = step_memory(request, lambda words: None).fitted
    assert fitted is not None and fitted.fits
    assert abs(fitted.error) < 0.01


def test_a_budget_is_planned_and_kept(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", "llama-tiny", "--fit", "8.2MiB", "--device", "cpu", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    plan = document["plan"]
    assert document["written"]["peak_bytes"] > plan["budget_bytes"]
    assert plan["fits"] and plan["measured"]["peak_bytes"] <= plan["budget_bytes"]
    assert abs(plan["error"]) < 0.05
    assert plan["checkpointing"] in ("plan:fn", "plan:nf", "plan:sf", "plan:fs", "plan:ss")


def test_a_small_budget_pulls_more_levers_and_is_kept() -> None:
    request = MemoryRequest(workload="gpt2-tiny", options={"device": "cpu"}, budget_bytes=4 * MIB)
    fitted = step_memory(request, lambda words: None).fitted
    assert fitted is not None and fitted.fits and abs(fitted.error) < 0.05
    assert fitted.levers[:2] == ("fused-optimizer", "chunked-logits")
    assert ("logits", "chunked") in find_lever(fitted.lever).also


def test_a_budget_below_the_states_says_what_would_fit() -> None:
    request = MemoryRequest(workload="llama-tiny", options={"device": "cpu"}, budget_bytes=MIB)
    with pytest.raises(PlanError) as caught:
        step_memory(request, lambda words: None)
    said = str(caught.value)
    assert "parameters and optimizer state alone take 2MiB" in said
    assert "the least that fits is --fit 3MiB" in said


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("nothing", "--fit", "2GiB"), "workload 'nothing' is unknown"),
        (("llama-tiny", "--fit", "two"), "size 'two' is not a size"),
    ],
)
def test_a_mistake_is_one_line(
    words: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["memory", *words]) == 2
    said = capsys.readouterr().err
    assert line in said and said.count("\n") == 1
