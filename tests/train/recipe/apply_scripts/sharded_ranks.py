"""A Trainer and accelerate's loop under FSDP2 learn the same with a recipe, or this ends with 1.

torch traces and generates no code, and the optimizer's kernel runs as its torch composite.
"""

import logging
import sys
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import torch

TESTS = Path(__file__).parents[3]
sys.path[:0] = [str(TESTS), str(TESTS.parent / "examples")]
warnings.simplefilter("ignore")

import own_recipes  # noqa: E402
import pytest  # noqa: E402
import train_accelerate  # noqa: E402
import train_transformers  # noqa: E402
from accelerate.state import AcceleratorState, PartialState  # noqa: E402
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin  # noqa: E402
from own_recipes import recipe  # noqa: E402
from torch.distributed.fsdp import (  # noqa: E402
    FSDPModule,
    FullyShardedDataParallel,
    fully_shard,
)
from transformers import TrainerCallback  # noqa: E402

import ratchet  # noqa: E402
from ratchet.base.errors import RecipeError  # noqa: E402
from ratchet.train.recipe import apply, signature_of  # noqa: E402
from ratchet.train.recipe.installed import ReadyKernels  # noqa: E402
from ratchet.train.workloads.config import StepConfig  # noqa: E402
from ratchet.train.workloads.parallel import ParallelTuning, TunedLayout  # noqa: E402

real = torch.compile
graphs: list[Any] = []


def traced(graph: Any, inputs: Any) -> Any:
    graphs.append(graph)
    return graph.forward


torch.compile = lambda function, dynamic=None, options=None: real(function, backend=traced)
apply.ready_kernels = lambda *_, **__: ReadyKernels()
said: list[str] = []
apply.log = SimpleNamespace(warning=lambda form, what: said.append(what))  # type: ignore[assignment]
logging.disable(logging.WARNING)

FP32 = StepConfig(
    compile_mode="default",
    optimizer="kernel",
    checkpointing="selective",
    logits="chunked",
    kernels=("rms_norm", "linear_cross_entropy"),
)
PLAIN = msgspec.structs.replace(FP32, checkpointing="none", logits="whole", kernels=())
BF16, MASTER = (
    msgspec.structs.replace(PLAIN, precision=one, optimizer="fused")
    for one in ("bf16_autocast", "bf16_master")
)


class SumsGradients(TrainerCallback):
    """FSDP2 averages gradients, and gloo can only sum them."""

    def on_train_begin(self, *arguments: Any, model: Any, **others: Any) -> None:
        sum_gradients(model)


def sum_gradients(model: Any) -> None:
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)


set_device = PartialState.set_device


def set_device_that_shards(state: Any) -> None:
    """Make accelerate shard here: on CPUs it takes DistributedDataParallel, whatever is asked."""
    set_device(state)
    state.distributed_type = DistributedType.MULTI_GPU


PartialState.set_device = set_device_that_shards  # type: ignore[method-assign]
TUNING = ParallelTuning(reshard_after_forward=False, prefetch=1, reduction="bf16", no_sync=True)
HERE = tempfile.mkdtemp()


def trainer_losses(config: StepConfig | None, **changes: Any) -> list[float]:
    sharded = {"fsdp": True, "fsdp_config": {"version": 2}, "use_cpu": True, "logging_steps": 1}
    AcceleratorState._reset_state(True)
    callbacks = [SumsGradients()]
    trainer = train_transformers.make_trainer(HERE, callbacks, max_steps=4, **sharded, **changes)
    if config is not None:
        part = TunedLayout(layout="fsdp=2", tuning=TUNING)
        made = recipe(config, model=signature_of(trainer.model), parallel=part)
        trainer.add_callback(ratchet.trainer_callback(recipe=made))
    trainer.train()
    assert isinstance(trainer.model, FSDPModule)
    return [log["loss"] for log in trainer.state.log_history if "loss" in log]


def loop_losses(config: StepConfig | None) -> list[float]:
    AcceleratorState._reset_state(True)
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="no_wrap")
    made = recipe(config, model=signature_of(train_accelerate.NextCharacter())) if config else None
    found = train_accelerate.train(made, steps=4, cpu=True, fsdp_plugin=plugin)
    AcceleratorState._reset_state(True)
    return found


def are_alike(plain: list[float], by_recipe: list[float], most: float, units: int) -> None:
    """The curves agree, and each unit was compiled, and nothing else."""
    worst = max(abs(a - b) for a, b in zip(plain, by_recipe, strict=True))
    assert len(plain) in (4, 8) and worst < most, (worst, plain, by_recipe)
    assert len(graphs) == units, len(graphs)
    graphs.clear()


def steps_of_a_function(config: StepConfig | None) -> list[float]:
    """A step that is a function runs in Python, and its model's unit is compiled."""
    model, _ = own_recipes.make()
    made = own_recipes.recipe(config) if config is not None else None
    fully_shard(model)
    sum_gradients(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = own_recipes.step_of(model, optimizer)
    if made is not None:
        step = ratchet.compile(step, model, optimizer, recipe=made)
    return [float(step(own_recipes.batch(index))) for index in range(4)]


def fsdp1_is_refused() -> None:
    made = own_recipes.recipe(PLAIN)
    model = FullyShardedDataParallel(own_recipes.Model(), device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(RecipeError, match="FSDP1 has flattened the model's weights") as caught:
        ratchet.compile(model, optimizer=optimizer, recipe=made)
    assert "\n" not in str(caught.value)
    assert model._compiled_call_impl is None and "step" not in vars(optimizer)


def main() -> None:
    plain = trainer_losses(None)
    are_alike(plain, trainer_losses(FP32), 1e-4, 2)
    told = "\n".join(said)
    for what in (
        "logits stay whole: FSDP2 frees the head's weights",
        "linear_cross_entropy is not installed: FSDP2's units are compiled one by one",
        "the recipe also has fully_shard(mp_policy=",
    ):
        assert what in told, told
    in_bf16 = trainer_losses(None, bf16=True)
    are_alike(in_bf16, trainer_losses(BF16, bf16=True), 2e-2, 2)
    are_alike(plain, trainer_losses(MASTER), 2e-2, 2)
    are_alike(loop_losses(None), loop_losses(PLAIN), 1e-4, 1)
    assert steps_of_a_function(None) == pytest.approx(steps_of_a_function(PLAIN), abs=1e-4)
    assert len(graphs) == 1, len(graphs)
    fsdp1_is_refused()


main()
