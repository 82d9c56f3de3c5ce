"""Levers that apply only to GPUs, on one made up: what they set, and what they need."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_levers_rocm import situation
from torch import Tensor, nn

from ratchet.train.levers import all_levers
from ratchet.train.recipe import with_config
from ratchet.train.recipe.module_calls import ModuleCall
from ratchet.train.turn.rivals import RivalModes
from ratchet.train.turn.schedule import Costs
from ratchet.train.workloads.compiling import REPLAYS, BoundedCompile
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.load import FAMILIES, load
from ratchet.train.workloads.step import ATTENTION_BACKENDS, TrainingStep, inductor_options

ANY_GPU = (
    "compile-reduce-overhead",
    "coordinate-descent",
    "attention-flash",
    "attention-efficient",
    "expandable-segments",
)
HERE, H100, MI300X = situation("avx512"), situation("sm_90", vendor="NVIDIA"), situation("gfx942")


@pytest.mark.parametrize("name", ANY_GPU)
def test_they_apply_to_gpus_of_both_vendors_and_to_no_cpu(name: str) -> None:
    applies = all_levers()[name].applies
    assert applies(HERE) == "it applies only to GPUs"
    assert applies(H100) is None and applies(MI300X) is None


def test_cudnn_needs_nvidia_and_attention() -> None:
    applies = all_levers()["attention-cudnn"].applies
    assert applies(H100) is None
    assert applies(MI300X) == "it applies only to NVIDIA GPUs"
    assert applies(situation("sm_90", vendor="NVIDIA", attention=False)) is not None


def test_fp8_products_need_a_gpu_that_has_them() -> None:
    applies = all_levers()["fp8-products"].applies
    for target in ("sm_89", "sm_90", "sm_90a", "sm_100", "sm_120"):
        assert applies(situation(target, vendor="NVIDIA")) is None
    assert applies(situation("sm_80", vendor="NVIDIA")) is not None
    assert applies(MI300X) is None and applies(situation("gfx950")) is None
    assert "no fp8" in str(applies(situation("gfx90a")))
    assert applies(HERE) == "it applies only to GPUs"


def test_each_attention_lever_chooses_a_back_end_that_torch_has() -> None:
    found = [one for one in all_levers().values() if one.field == "attention"]
    assert {str(one.value) for one in found} == ATTENTION_BACKENDS.keys()


def test_tuning_reaches_inductor_and_memory_reaches_the_environment() -> None:
    compiled = StepConfig(compile_mode="default")
    tuned = all_levers()["coordinate-descent"].set(compiled, H100)
    assert inductor_options(tuned) == {"coordinate_descent_tuning": True}
    assert inductor_options(compiled) == {}
    growing = all_levers()["expandable-segments"].set(compiled, H100)
    assert growing.variables() == {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def test_graphs_of_launches_are_a_rival_on_a_gpu_only() -> None:
    def modes(of: Any) -> set[Any]:
        turn = SimpleNamespace(settings=SimpleNamespace(keep_precision=False))
        written = with_config(StepConfig(), {})
        rivals = RivalModes(turn=turn, written=written, situation=of, sitting=None)  # type: ignore[arg-type]
        return {one.config.compile_mode for one in rivals.waiting}

    assert modes(HERE) == {"default", "max-autotune"}
    assert modes(H100) == {"default", "reduce-overhead", "max-autotune"}
    seen = Costs()
    seen.note_setup(with_config(StepConfig(compile_mode="default"), {}), 10.0)
    replayed = with_config(StepConfig(compile_mode="reduce-overhead"), {})
    assert seen.compiled_s(replayed) == 10.0


def test_a_replayed_step_returns_results_that_the_next_replay_does_not_overwrite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: begun.append(1))
    pool = torch.zeros(2)

    def step(x: Tensor) -> dict[str, Tensor]:
        pool.copy_(x)  # as a graph writes into memory of its own
        return {"loss": pool}

    replayed = BoundedCompile(step, {REPLAYS: True})
    monkeypatch.setattr(replayed, "_call", lambda arguments, named: step(*arguments))
    first, second = replayed(torch.ones(2)), replayed(torch.full((2,), 2.0))
    assert len(begun) == 2
    assert first["loss"].tolist() == [1.0, 1.0] and second["loss"].tolist() == [2.0, 2.0]


def test_single_modules_are_never_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    config = StepConfig(compile_mode="reduce-overhead")
    options = inductor_options(config)
    assert options[REPLAYS]
    call = ModuleCall(nn.Linear(2, 2), config, "cuda", options)
    assert [part._replays for part in call.compiled] == [False]


def test_every_size_but_the_smallest_has_a_batch_for_a_gpu() -> None:
    for family in FAMILIES.values():
        for name, size in family.sizes.items():
            assert size.on_gpu >= size.batch_size or (name, size.on_gpu) == ("tiny", 0)


def test_gradients_that_add_up_are_out_of_reach_of_the_next_replay() -> None:
    """A replay writes each part's gradients over those of the part before, as torch's graphs do."""
    workload = replace(load("llama-tiny", batch_size=2, sequence=8), device="cuda")
    plain = TrainingStep(workload, StepConfig(micro_batches=2))
    batch = workload.batch(0)
    plain.forward_backward(batch)
    whole = {name: one.clone() for name, one in plain.gradients().items()}
    for parameter in plain.parameters.values():
        parameter.grad = None

    memory: dict[str, Tensor] = {}

    def replayed(model: nn.Module, part: Any) -> Tensor:
        parameters = plain.parameters
        kept = {name: one.grad for name, one in parameters.items()}
        for one in parameters.values():
            one.grad = None
        torch.autograd.backward(workload.loss(model, part) / 2)  # type: ignore[misc]
        for name, one in parameters.items():
            fresh = one.grad
            assert fresh is not None
            one.grad = memory.setdefault(name, torch.empty_like(one)).copy_(fresh)
            if (before := kept[name]) is not None:
                one.grad = before.add_(one.grad)
        return torch.zeros((), requires_grad=True)

    step = TrainingStep(workload, StepConfig(micro_batches=2))
    step.config = StepConfig(micro_batches=2, compile_mode="reduce-overhead")
    step.loss = replayed
    step.forward_backward(batch)
    for name, found in step.gradients().items():
        torch.testing.assert_close(found, whole[name])
