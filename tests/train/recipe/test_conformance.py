"""Every way of running a step, under every habit of scripts: it trains as written, or is refused.

The short tier pairs each script with one config, but for those that `test_script_steps` trains as
written; the long tier takes all pairs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import own_steps
import phased_steps
import pytest
import research_steps
import torch
from own_recipes import recipe
from own_steps import Script
from test_script_steps import ONE_BY_ONE
from test_script_steps import WHOLE as WHOLE_STEPS
from torch import Tensor, nn

import ratchet
from ratchet.base.errors import RatchetError
from ratchet.train.recipe import signature_of
from ratchet.train.workloads.config import AUTOCAST, StepConfig

WHOLE = {"compile_mode": "default"}
CONFIGS: dict[str, dict[str, Any]] = {
    "torch.compile": WHOLE,
    "fused update": {**WHOLE, "optimizer": "fused"},
    "autocast, uncompiled": {"precision": "bf16_autocast"},
    "autocast": {**WHOLE, "precision": "bf16_autocast", "optimizer": "fused"},
    "bf16 weights": {**WHOLE, "precision": "bf16_master", "optimizer": "fused"},
    "bf16 weights, uncompiled": {"precision": "bf16_master"},
    "AdamW kernel": {"optimizer": "kernel"},
    "all": {
        **WHOLE,
        "precision": "bf16_master",
        "optimizer": "kernel",
        "attention": "math",
        "preallocate": True,
    },
}
SCRIPTS = (
    *("plain", "sets_the_rate", "rate_as_an_argument", "schedule_in_the_step", "counts"),
    *("counts_in_a_dict", "keeps_losses", "keeps_tensors", "told_when_to_update"),
    *("accumulates_in_a_loop", "gan", "keeps_its_graph", "penalises_its_gradient", "closure"),
    *("own_optimizer", "subclass", "two_optimizers", "noise_and_an_average", "noise"),
    *("normalises_its_batch", "recomputes", "recomputes_reentrantly", "scales_and_varies"),
    *("recurrent", "distils", "perturbs_its_weights", "learns_to_learn", "sets_its_gradients"),
    *("updates_in_backward", "moves_a_buffer", "thaws_a_group", "goes_back", "scales_fp16"),
    *("takes_a_dictionary", "updates_by_hand", "starts_a_second_phase", "removes_weight_norm"),
    *("merges_adapters", "rolls_out", "weighs_its_tasks", "reverses_gradients", "grows_its_table"),
    *("takes_numbers",),
)
TRAINED = {*WHOLE_STEPS, *ONE_BY_ONE} - {"plain"}
EVERYTHING = os.environ.get("RATCHET_TEST") == "all"
BACKEND = "aot_eager" if EVERYTHING else "eager"
"""The step is differentiated as a graph in the long tier alone."""
STEPS = 6
EXACT, LOSS, TURNED = 1e-4, 5e-2, 0.5
"""Largest difference of a value in the written arithmetic; of a loss in bf16, and of the weights in
bf16 as a share of the way that training moved them."""
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:Mismatch dtype between input:UserWarning"),
]


@pytest.fixture(autouse=True)
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torch traces the step, and generates no code; nothing is judged."""
    real = torch.compile

    def compile(function: Any, *, dynamic: bool | None = None, options: Any = None) -> Any:
        return real(function, dynamic=dynamic, backend=BACKEND)

    monkeypatch.setattr(torch, "compile", compile)
    monkeypatch.setattr(
        "ratchet.train.recipe.apply._with_kernels", lambda _, config, *a, **k: config
    )
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def pairs() -> Iterator[Any]:
    """Every script and config; most are for the long tier: see above."""
    names = list(CONFIGS)
    for row, script in enumerate(SCRIPTS):
        for column, config in enumerate(names):
            short = row % len(names) == column and script not in TRAINED
            marks = () if short else pytest.mark.thorough
            yield pytest.param(script, config, marks=marks, id=f"{script}-{config}")


@pytest.mark.parametrize(("name", "how"), [*pairs()])
def test_a_script_trains_as_written_or_its_recipe_is_refused(name: str, how: str) -> None:
    config = StepConfig(**CONFIGS[how])
    places = (own_steps, research_steps, phased_steps)
    made = next(getattr(place, name) for place in places if hasattr(place, name))
    written, script = (made() for _ in range(2))
    before = weights(written)
    states = states_of(script)
    try:
        step = compiled(script, config)
    except RatchetError as error:
        assert "\n" not in str(error) and config.optimizer != "as_written"
        assert torch.equal(weights(script), before) and states_of(script) == states
        step = script.step  # nothing was changed: it still trains
        config = StepConfig()
    without, found = run(written, written.step), run(script, step)
    now = weights(written)
    moved = now - before if now.shape == before.shape else now
    apart = weights(script) - weights(written)
    if config.precision in AUTOCAST:
        assert found == pytest.approx(without, abs=LOSS)
        assert apart.norm() <= TURNED * moved.norm()
    else:
        assert found == pytest.approx(without, abs=EXACT)
        assert apart.abs().max() <= EXACT
    assert {one.dtype for one in script.model.parameters()} == {torch.float32}


def compiled(script: Script, config: StepConfig) -> Any:
    found = optimizers_of(script)
    kinds = "+".join(dict.fromkeys(type(one).__name__ for one in found))
    made = recipe(config, model=signature_of(script.model), optimizer=kinds, kernels=())
    return ratchet.compile(script.step, script.model, script.optimizer, recipe=made)


def run(script: Script, step: Any) -> list[float]:
    torch.manual_seed(1)
    losses = []
    for index in range(STEPS):
        losses.append(float(step(*script.arguments(index))))
        script.between(index)
    return losses


def optimizers_of(script: Script) -> list[torch.optim.Optimizer]:
    given = script.optimizer
    return list(given.values()) if isinstance(given, dict) else [given]


def states_of(script: Script) -> list[Any]:
    """What a refused recipe must leave as it was."""
    return [
        [
            {key: value for key, value in group.items() if key != "params"}
            for group in one.param_groups
        ]
        for one in optimizers_of(script)
    ]


def weights(script: Script) -> Tensor:
    return nn.utils.parameters_to_vector(script.model.parameters()).detach().clone()
