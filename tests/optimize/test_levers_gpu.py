"""Levers that apply only to GPUs, on one made up: what they set, and what they need."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_levers_rocm import situation
from torch import Tensor, nn

from ratchet.optimize.levers import all_levers
from ratchet.optimize.recipe.module_calls import ModuleCall
from ratchet.optimize.step.candidate import with_config
from ratchet.optimize.step.environment import environment
from ratchet.optimize.turn.costs import Costs
from ratchet.optimize.turn.rivals import RivalModes
from ratchet.workloads.config import StepConfig
from ratchet.workloads.load import FAMILIES
from ratchet.workloads.recompilation import REPLAYS, BoundedCompile
from ratchet.workloads.step import ATTENTION_BACKENDS, inductor_options

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


def test_each_attention_lever_chooses_a_back_end_that_torch_has() -> None:
    found = [one for one in all_levers().values() if one.field == "attention"]
    assert {str(one.value) for one in found} == ATTENTION_BACKENDS.keys()


def test_tuning_reaches_inductor_and_memory_reaches_the_environment() -> None:
    compiled = StepConfig(compile_mode="default")
    tuned = all_levers()["coordinate-descent"].set(compiled, H100)
    assert inductor_options(tuned) == {"coordinate_descent_tuning": True}
    assert inductor_options(compiled) == {}
    growing = all_levers()["expandable-segments"].set(compiled, H100)
    assert environment(growing) == {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


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
        assert {*family.on_gpu} == {*family.sizes} - {"tiny"}
        for name, batch in family.on_gpu.items():
            assert batch >= family.sizes[name].batch_size
