from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from forked_ranks import in_fork
from torch import nn

import ratchet
from ratchet.base.errors import DeviceError, WorkloadError
from ratchet.train.workloads.checkpointing import find_blocks
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.load import load
from ratchet.train.workloads.step import TrainingStep
from ratchet.train.workloads.user import accepted
from ratchet.train.workloads.workload import AdamWSpec, Request, Workload


def losses(config: StepConfig, steps: int = 4, **changes: Any) -> list[float]:
    workload = replace(load("llama-tiny"), **changes)
    step = TrainingStep(workload, config)
    return [step(workload.batch(index)).item() for index in range(steps)]


def gradients(config: StepConfig, name: str = "llama-tiny") -> dict[str, torch.Tensor]:
    workload = load(name)
    step = TrainingStep(workload, config)
    step.forward_backward(workload.batch(0))
    return step.gradients()


def test_an_fp32_step_is_the_plain_loop_bit_for_bit() -> None:
    workload = load("llama-tiny")
    optimizer = torch.optim.AdamW(
        workload.model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1
    )
    expected = []
    for index in range(4):
        tokens, targets = workload.batch(index)
        logits = workload.model(tokens)
        loss = nn.functional.cross_entropy(logits.view(-1, 512), targets.view(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(workload.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        expected.append(loss.item())
    assert losses(StepConfig()) == expected


def test_the_gpu_of_a_workload_is_current_where_its_step_is_built_and_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    current: list[str] = []

    @contextmanager
    def entered(device: str) -> Iterator[None]:
        current.append(device)
        yield
        current.pop()

    seen: dict[str, list[str]] = {}

    class Watched(torch.optim.AdamW):
        def step(self, closure: Any = None) -> Any:
            seen["update"] = [*current]
            return super().step(closure)

    def made(parameters: Any) -> torch.optim.Optimizer:
        seen["build"] = [*current]
        return Watched(parameters)

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        seen["forward"] = [*current]
        return small.loss(model, batch)  # type: ignore[misc]

    small = load("llama-tiny")
    monkeypatch.setattr(torch.cuda, "device", entered)
    workload = replace(small, device="cuda:1", loss=loss, optimizer=made)
    TrainingStep(workload, StepConfig())(workload.batch(0))
    assert {"build", "forward", "update"} == set(seen) and not current
    assert all(one[:1] == ["cuda:1"] for one in seen.values())


def test_a_workload_on_the_second_gpu_is_asked_for_and_described_as_that(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = Request(
        seed=0,
        batch_size=None,
        sequence=None,
        precision=None,
        text=None,
        device=torch.device("cuda"),
    )
    workload = replace(load("llama-tiny"), device="cuda:1")
    with pytest.raises(WorkloadError, match="on 'cuda:1', but 'cuda' was requested"):
        accepted(workload, "train.py:make", asked)
    second = replace(asked, device=torch.device("cuda:1"))
    assert accepted(workload, "train.py:make", second).device == "cuda:1"
    assert accepted(replace(workload, device="cuda"), "train.py:make", second).device == "cuda"

    told: list[str] = []

    def described(device: str) -> None:
        told.append(device)
        raise DeviceError("there is none")

    monkeypatch.setattr("ratchet.train.turn.settings.probe", described)
    with pytest.raises(DeviceError):
        ratchet.optimize(workload, budget="30m", out=tmp_path / "out")
    assert told == ["cuda:1"]


def test_without_a_norm_nothing_is_clipped() -> None:
    assert losses(StepConfig(), clip_norm=1e-3) != losses(StepConfig(), clip_norm=None)
    assert losses(StepConfig(), clip_norm=1e9) == losses(StepConfig(), clip_norm=None)


def test_fused_adamw_is_the_same_adamw() -> None:
    step = TrainingStep(load("llama-tiny"), StepConfig(optimizer="fused"))
    assert isinstance(step.optimizer, torch.optim.AdamW)
    assert step.optimizer.param_groups[0]["fused"] is True
    assert losses(StepConfig(optimizer="fused")) == pytest.approx(losses(StepConfig()), rel=1e-5)


def test_an_optimizer_without_a_fused_form_is_refused_in_one_line() -> None:
    workload = replace(load("llama-tiny"), optimizer=lambda p: torch.optim.LBFGS(p))
    with pytest.raises(WorkloadError, match="LBFGS has no fused implementation; use optimizer"):
        TrainingStep(workload, StepConfig(optimizer="fused"))


@pytest.mark.parametrize("name", ["llama-tiny", "gpt2-tiny", "moe-tiny", "bert-tiny", "vit-tiny"])
@pytest.mark.parametrize(
    "checkpointing", ["blocks:1", "blocks:2", "selective", "plan:sf", "plan:on"]
)
def test_checkpointing_changes_no_gradient(name: str, checkpointing: str) -> None:
    plain, recomputed = (
        gradients(StepConfig(), name),
        gradients(StepConfig(checkpointing=checkpointing), name),
    )
    for key, gradient in plain.items():
        assert torch.equal(recomputed[key], gradient), key


def test_checkpointing_is_undone_by_the_next_step() -> None:
    workload = load("llama-tiny")
    TrainingStep(workload, StepConfig(checkpointing="blocks:2"))
    blocks = find_blocks(workload.model)
    assert ["forward" in vars(block) for block in blocks] == [True, False]
    TrainingStep(workload, StepConfig())
    assert not any("forward" in vars(block) for block in blocks)


def test_a_plan_for_another_number_of_blocks_is_refused() -> None:
    with pytest.raises(WorkloadError, match="'plan:fsn' is for 3 blocks, but the model has 2"):
        TrainingStep(load("llama-tiny"), StepConfig(checkpointing="plan:fsn"))


@pytest.mark.parametrize(
    ("checkpointing", "blocks"), [("none", 0), ("blocks:1", 2), ("plan:fn", 1)]
)
def test_a_compiled_step_recomputes_too(checkpointing: str, blocks: int) -> None:
    workload = load("gpt2-tiny")
    TrainingStep(workload, StepConfig(checkpointing=checkpointing))
    found = []

    def count(graph: torch.fx.GraphModule, inputs: object) -> object:
        found.extend(n for n in graph.graph.nodes if "Checkpoint" in type(n.target).__name__)
        return graph

    assert workload.loss is not None
    torch.compile(workload.loss, backend=count)(workload.model, workload.batch(0))
    assert len(found) == blocks


def test_a_model_without_blocks_cannot_be_checkpointed() -> None:
    model = nn.Linear(4, 1)
    workload = Workload(
        name="flat",
        model=model,
        loss=lambda m, x: m(x).mean(),
        batch=lambda index: torch.ones(2, 4),
        tokens_per_batch=2,
    )
    with pytest.raises(WorkloadError, match="Linear has none"):
        TrainingStep(workload, StepConfig(checkpointing="blocks:1"))


def test_an_unused_parameter_has_a_gradient_of_zeros() -> None:
    workload = load("llama-tiny")
    workload.model.register_parameter("idle", nn.Parameter(torch.ones(3)))
    step = TrainingStep(workload, StepConfig())
    step.forward_backward(workload.batch(0))
    assert torch.equal(step.gradients()["idle"], torch.zeros(3))


@pytest.mark.parametrize("attention", ["flash", "math"])
def test_attention_back_ends_agree(attention: Any) -> None:
    expected = gradients(StepConfig())
    for key, gradient in gradients(StepConfig(attention=attention)).items():
        torch.testing.assert_close(gradient, expected[key], rtol=1e-3, atol=1e-5)


def test_a_kernel_optimizer_does_the_whole_update() -> None:
    class Recorder:
        def __init__(self, step: TrainingStep) -> None:
            self.names = list(step.parameters)
            self.steps = 0

        def step(self) -> None:
            self.steps += 1

    workload = load("llama-tiny")
    step = TrainingStep(workload, StepConfig(optimizer="kernel"), optimizer_factory=Recorder)
    step(workload.batch(0))
    assert isinstance(step.optimizer, Recorder)
    assert step.optimizer.steps == 1
    assert step.optimizer.names == list(step.parameters)
    assert step.parameters["embedding.weight"].grad is not None


def test_contradictions_in_a_call_are_value_errors() -> None:
    with pytest.raises(ValueError, match="compile_mode"):
        TrainingStep(load("llama-tiny"), StepConfig(), compile_options={"max_autotune": True})
    with pytest.raises(ValueError, match="optimizer_factory"):
        TrainingStep(load("llama-tiny"), StepConfig(optimizer="kernel"))


def test_a_config_is_frozen_hashable_and_survives_json() -> None:
    config = StepConfig(checkpointing="blocks:3", kernels=("a", "b"))
    assert msgspec.json.decode(msgspec.json.encode(config), type=StepConfig) == config
    assert len({config, StepConfig()}) == 2
    for wrong in ({"checkpointing": "blocks:0"}, {"thread": 2}, {"threads": 0}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, StepConfig)


def test_as_written_is_eager_in_the_authors_precision() -> None:
    workload = load("llama-tiny", precision="bf16_autocast")
    assert workload.as_written() == StepConfig(precision="bf16_autocast")


def test_adamw_spec_makes_torchs_adamw() -> None:
    optimizer = AdamWSpec(lr=0.5, weight_decay=0.25)([nn.Parameter(torch.ones(1))])
    assert isinstance(optimizer, torch.optim.AdamW)
    assert (optimizer.defaults["lr"], optimizer.defaults["weight_decay"]) == (0.5, 0.25)


@pytest.mark.compiler
@pytest.mark.slow
def test_a_compiled_step_has_the_same_gradients_in_the_same_objects() -> None:
    torch.compiler.reset()
    workload = load("llama-tiny")
    config = StepConfig(compile_mode="default")
    step = TrainingStep(workload, config, compile_options={"max_autotune": False})
    step.forward_backward(workload.batch(0))
    assert step.parameters["head.weight"] is workload.model.head.weight
    expected = gradients(StepConfig())
    for name, gradient in step.gradients().items():
        assert (gradient - expected[name]).norm() < 1e-4 * expected[name].norm(), name


@pytest.mark.compiler
@pytest.mark.parametrize(
    "name", ["llama-tiny", "gpt2-tiny", "moe-tiny", "bert-tiny", "vit-tiny", "hf:qwen3"]
)
def test_a_loss_is_one_graph(name: str) -> None:
    torch.compiler.reset()
    workload = load(name)
    explained = torch._dynamo.explain(workload.loss)(workload.model, workload.batch(0))
    assert (explained.graph_count, explained.graph_break_count) == (1, 0)


def test_a_process_takes_the_settings_and_the_defaults_change_nothing() -> None:
    # In a process of its own: threads, affinity and malloc's thresholds belong to the whole of it.
    def take() -> None:
        torch.set_num_threads(3)
        torch.set_float32_matmul_precision("high")
        StepConfig().enter()
        assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == (3, "high")
        allowed = os.sched_getaffinity(0)
        StepConfig(threads=1, affinity=True, matmul_precision="medium", allocator="mallopt").enter()
        assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == (1, "medium")
        assert os.sched_getaffinity(0) == {min(allowed)}

    done = in_fork(take)
    assert done.returncode == 0, done.stderr
