"""A step, model, optimizer or recipe that is not what it should be: one line, nothing changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from own_recipes import Model, make, recipe, step_of
from simulated_turns import description
from torch import nn

import ratchet
from ratchet.base.devices import probe as probing
from ratchet.base.devices.probe import Device
from ratchet.base.errors import RecipeError
from ratchet.judge.kernels import registry
from ratchet.train.recipe import fits, signature_of, with_config
from ratchet.train.recipe.compiled_step import CompiledStep
from ratchet.train.recipe.facts import StepFacts
from ratchet.train.turn.compose import make_recipe
from ratchet.train.turn.settings import Settings
from ratchet.train.workloads.config import StepConfig
from ratchet.train.workloads.load import load

PLAIN = StepConfig()
FUSED = StepConfig(optimizer="fused")
KERNEL = StepConfig(optimizer="kernel")
BF16_WEIGHTS = StepConfig(precision="bf16_master")


@pytest.fixture(autouse=True)
def nothing_changes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail where a mistake comes to light only after something was installed."""

    def installed(*_: object, **__: object) -> None:
        raise AssertionError("something was changed before the mistake was found")

    monkeypatch.setattr("ratchet.train.recipe.apply.ready_kernels", installed)
    monkeypatch.setattr("ratchet.train.recipe.apply.CompiledStep", installed)
    monkeypatch.setattr("ratchet.train.recipe.apply.compile_module", installed)
    monkeypatch.setattr("ratchet.train.workloads.config.StepConfig.enter", installed)
    yield
    assert registry.active() == {}


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(RecipeError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


MODEL, OPTIMIZER = make()
CALLS: dict[str, tuple[tuple[Any, ...], str]] = {
    "a number": ((1, MODEL, OPTIMIZER), "step is 1"),
    "no step": ((None, MODEL, OPTIMIZER), "step is None"),
    "a class": ((Model, MODEL, OPTIMIZER), "step is the class Model"),
    "no model": ((print, None, OPTIMIZER), "model is None"),
    "no optimizer": ((print, MODEL, None), "optimizer is None"),
    "a step alone": ((print,), "model is None"),
    "a model and an optimizer": ((MODEL, OPTIMIZER), "model is of type AdamW"),
    "parameters": ((print, MODEL.parameters(), OPTIMIZER), "model is of type generator"),
    "no optimizer in a list": ((print, MODEL, []), "optimizer is None"),
    "one that is none in a list": ((print, MODEL, [OPTIMIZER, 3]), "optimizer is 3"),
    "a schedule": (
        (print, MODEL, torch.optim.lr_scheduler.ConstantLR(OPTIMIZER)),
        "optimizer is of type ConstantLR",
    ),
}


@pytest.mark.parametrize("arguments, said", CALLS.values(), ids=CALLS)
def test_what_is_no_step_model_or_optimizer(arguments: tuple[Any, ...], said: str) -> None:
    assert said in refused(lambda: ratchet.compile(*arguments, recipe=recipe(PLAIN)))


@pytest.mark.parametrize("given", [5, None, b"recipe.json", {}, Model])
def test_what_is_no_recipe(given: Any) -> None:
    assert "recipe is" in refused(lambda: ratchet.compile(print, MODEL, OPTIMIZER, recipe=given))


def test_a_pipe_in_the_recipe_s_place(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "recipe.json")
    path = tmp_path / "recipe.json"
    said = refused(lambda: ratchet.compile(print, MODEL, OPTIMIZER, recipe=path))
    assert "is a FIFO" in said


def test_what_is_no_workload() -> None:
    assert "of type Model" in refused(lambda: ratchet.apply(MODEL, recipe(PLAIN)))  # type: ignore[arg-type]


def test_a_model_that_is_not_the_recipe_s() -> None:
    model = nn.Linear(2, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    said = refused(lambda: ratchet.compile(print, model, optimizer, recipe=recipe(PLAIN)))
    assert "a model of 4 tensors with 4,192 parameters; this is a model of 2 tensors" in said


def test_a_model_of_as_many_parameters_in_other_shapes() -> None:
    model = Model()
    model.head = nn.Linear(64, 32)
    model.head.bias = nn.Parameter(torch.zeros(64))
    optimizer = torch.optim.AdamW(model.parameters())
    said = refused(lambda: ratchet.compile(print, model, optimizer, recipe=recipe(PLAIN)))
    assert "with other shapes" in said


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
def test_a_model_without_shapes_yet() -> None:
    model = nn.LazyLinear(3)
    optimizer = torch.optim.AdamW(MODEL.parameters())
    said = refused(lambda: ratchet.compile(print, model, optimizer, recipe=recipe(PLAIN)))
    assert "run one batch through it first" in said


def test_a_wrapped_model_is_the_recipe_s() -> None:
    wrapped = nn.ModuleDict({"module": Model()})
    assert signature_of(wrapped) == signature_of(Model())
    fits.check_model(recipe(PLAIN), wrapped)


def test_a_recipe_from_before_the_model_was_kept_takes_any() -> None:
    fits.check_model(recipe(PLAIN, model=None), nn.Linear(2, 3))


@pytest.mark.parametrize("config", [PLAIN, FUSED, KERNEL, BF16_WEIGHTS])
def test_sgd_for_a_recipe_of_adamw(config: StepConfig) -> None:
    optimizer = torch.optim.SGD(MODEL.parameters())
    said = refused(lambda: ratchet.compile(print, MODEL, optimizer, recipe=recipe(config)))
    assert "AdamW, but the script trains with SGD" in said


def test_sgd_for_an_old_recipe_that_updates_as_adamw() -> None:
    optimizer = torch.optim.SGD(MODEL.parameters())
    old = recipe(KERNEL, optimizer="")
    assert "trains with SGD" in refused(
        lambda: ratchet.compile(print, MODEL, optimizer, recipe=old)
    )


def test_a_class_of_one_s_own_is_not_torch_s() -> None:
    class AdamW(torch.optim.AdamW):
        pass

    optimizer = AdamW(MODEL.parameters())
    refused(lambda: ratchet.compile(print, MODEL, optimizer, recipe=recipe(KERNEL)))
    fits.check_optimizers(recipe(PLAIN), MODEL, (optimizer,))


def test_an_implementation_that_the_optimizer_lacks() -> None:
    optimizer = torch.optim.LBFGS(MODEL.parameters())
    made = recipe(FUSED, optimizer="LBFGS")
    assert "LBFGS has no fused" in refused(
        lambda: ratchet.compile(print, MODEL, optimizer, recipe=made)
    )


def test_a_setting_that_only_torch_s_update_knows() -> None:
    optimizer = torch.optim.AdamW(MODEL.parameters(), amsgrad=True)
    fits.check_optimizers(recipe(KERNEL), MODEL, (optimizer,))


def test_a_fused_update_of_complex_numbers() -> None:
    model = nn.Linear(2, 2, dtype=torch.complex64)
    optimizer = torch.optim.AdamW(model.parameters())
    made = recipe(FUSED, model=None)
    said = refused(lambda: ratchet.compile(print, model, optimizer, recipe=made))
    assert "fused AdamW takes no complex parameters" in said


def test_the_optimizer_of_another_model() -> None:
    _, other = make()
    said = refused(lambda: ratchet.compile(print, MODEL, other, recipe=recipe(PLAIN)))
    assert "has no parameter of the model" in said


def test_a_workload_that_is_not_the_recipe_s() -> None:
    said = refused(lambda: ratchet.apply(load("llama-tiny"), recipe(PLAIN)))
    assert "this is a model of" in said


def test_a_device_that_recipes_are_not_for() -> None:
    model = Model().to("meta")
    optimizer = torch.optim.AdamW(model.parameters())
    said = refused(lambda: ratchet.compile(print, model, optimizer, recipe=recipe(PLAIN)))
    assert "'meta'" in said


@pytest.mark.parametrize("described", [True, False])
def test_a_turn_s_recipe_holds_its_model_and_optimizer(described: bool) -> None:
    """An older ledger's description has neither."""
    model = signature_of(MODEL)
    written = with_config(PLAIN, {})
    more = {"model": msgspec.to_builtins(model), "optimizer": "SGD"} if described else {}
    facts = msgspec.convert({**description(), **more}, StepFacts)
    made = make_recipe(
        Settings(workload="w"), probing.probe("cpu"), written, model=facts.model,
        optimizer=facts.optimizer, speedup={}, changes_arithmetic=False,
    )  # fmt: skip
    assert (made.model, made.optimizer) == ((model, "SGD") if described else (None, ""))


class TestBesideAGpu:
    """A machine with a GPU, as far as torch and the probe can tell."""

    GPU = Device(kind="cuda", vendor="NVIDIA", model="a GPU", cores=1, threads=1, isa=("sm_90",))

    @pytest.fixture(autouse=True)
    def gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        check = "_accelerator_graph_capture_health_check"  # asks the driver, which is not here
        monkeypatch.setattr(torch.optim.Optimizer, check, lambda self: None, raising=False)
        monkeypatch.setattr(probing, "_gpu_count", lambda: 1)
        monkeypatch.setattr(probing, "_gpu", lambda index: self.GPU)

    def test_a_cpu_s_recipe_fits_a_model_on_the_cpu(self) -> None:
        assert fits.check_device(recipe(), MODEL, software=recipe().software).kind == "cpu"

    def test_a_gpu_s_recipe_installs_nothing_for_a_model_on_the_cpu(self) -> None:
        made = recipe(device=self.GPU.fingerprint, device_name="a GPU")
        assert ratchet.compile(print, MODEL, OPTIMIZER, recipe=made) is print
        said = refused(lambda: ratchet.compile(print, MODEL, OPTIMIZER, recipe=made, strict=True))
        assert "proven on a GPU" in said and "(cpu)" in said

    def test_autocast_is_of_the_model_s_device(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from ratchet.train.recipe import apply

        monkeypatch.setattr(StepConfig, "enter", lambda config: None)
        monkeypatch.setattr(apply, "_with_kernels", lambda recipe, config, *_, **__: config)
        monkeypatch.setattr(apply, "CompiledStep", CompiledStep)
        model, optimizer = make()
        seen: list[torch.dtype] = []
        model.head.register_forward_hook(lambda *found: seen.append(found[2].dtype))
        made = recipe(StepConfig(precision="bf16_autocast"))
        step = ratchet.compile(step_of(model, optimizer), model, optimizer, recipe=made)
        step(torch.zeros(2, 3, dtype=torch.long))
        step(torch.zeros(2, 3, dtype=torch.long))
        assert seen == [torch.float32, torch.bfloat16]
