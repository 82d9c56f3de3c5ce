"""`ratchet.compile` never changes what a step means, however people write it."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import own_recipes
import own_steps
import pytest
import torch
from own_recipes import recipe
from own_steps import Script, batch, loss_of
from torch import Tensor, nn

import ratchet
from ratchet.base.errors import RecipeError
from ratchet.train.recipe import Recipe, signature_of
from ratchet.train.recipe.compiled_step import CompiledStep
from ratchet.train.workloads.config import StepConfig

QUIET = [
    # torch's own, when inductor is first imported
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning"),
    # dynamo's own look at a loss, which it hides itself where a warning is no error
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:Mismatch dtype between input:UserWarning"),
]
pytestmark = QUIET
COMPILED = StepConfig(compile_mode="default")
STEPS = 5


@pytest.fixture(autouse=True)
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let torch trace the step, and generate no code."""
    trace(monkeypatch, "eager")
    yield
    torch._dynamo.reset()


def trace(monkeypatch: pytest.MonkeyPatch, backend: str, real: Any = torch.compile) -> None:
    def compile(function: Any, *, dynamic: bool | None = None, options: Any = None) -> Any:
        return real(function, dynamic=dynamic, backend=backend)

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", compile)


def test_a_second_model_with_the_same_step_function_has_its_graphs(
    runners: list[CompiledStep],
) -> None:
    """Dynamo keeps graphs by code, so the second one finds those of the first."""
    for _ in range(2):
        model, optimizer = own_recipes.make()
        step = own_recipes.step_of(model, optimizer)
        compiled = ratchet.compile(step, model, optimizer, recipe=recipe(COMPILED))
        plain, plain_optimizer = own_recipes.make()
        written = own_recipes.step_of(plain, plain_optimizer)
        for index in range(3):
            given = own_recipes.batch(index)
            assert torch.allclose(compiled(given), written(given), atol=1e-5)
    assert [runner.notes for runner in runners] == [[], []]


@pytest.fixture
def runners(monkeypatch: pytest.MonkeyPatch) -> list[CompiledStep]:
    """The compiled steps of a test."""
    made: list[CompiledStep] = []
    real = CompiledStep.__init__

    def init(self: CompiledStep, *arguments: Any, **named: Any) -> None:
        real(self, *arguments, **named)
        made.append(self)

    monkeypatch.setattr(CompiledStep, "__init__", init)
    return made


def recipe_of(script: Script, config: StepConfig = COMPILED) -> Recipe:
    given = script.optimizer
    found = list(given.values()) if isinstance(given, dict) else [given]
    kinds = "+".join(dict.fromkeys(type(one).__name__ for one in found))
    return recipe(config, model=signature_of(script.model), optimizer=kinds)


def compiled(script: Script, config: StepConfig = COMPILED, **options: Any) -> Any:
    made = recipe_of(script, config)
    return ratchet.compile(script.step, script.model, script.optimizer, recipe=made, **options)


def weights(script: Script) -> Tensor:
    return nn.utils.parameters_to_vector(script.model.parameters()).detach().clone()


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "ratchet"]


WHOLE = ("plain", "sets_the_rate", "told_when_to_update", "own_optimizer", "subclass")
WHOLE += ("two_optimizers", "noise_and_an_average", "recomputes", "recomputes_reentrantly")
WHOLE += ("scales_and_varies", "takes_numbers", "scale_as_a_tensor")
DIFFERENTIATED = ("plain", "gan", "keeps_its_graph", "evaluates")
"""Steps whose graphs torch differentiates here too: backward passes may not share a graph."""
ONE_BY_ONE = {
    "rate_as_an_argument": "a number among its arguments changes; to have the whole step compiled, "
    "pass the number as a tensor, as in step(torch.tensor(i)), or use it outside of the step",
    "schedule_in_the_step": "a number that it keeps (schedule.last_epoch)",
    "counts": "a number that it keeps (calls)",
    "counts_in_a_dict": "a number that it keeps (state.calls)",
    "keeps_losses": "a number that it keeps (losses.0)",
    "keeps_tensors": "keeps recompiling for inputs of the same shapes",
    "accumulates_in_a_loop": "two backward passes",
    "gan": "only 2 Sequential, because it runs two backward passes",
    "keeps_its_graph": "two backward passes",
    "noise": "draws random numbers outside of its modules",
    "closure": "gives its optimizer a closure",
    "evaluates": "enters torch.inference_mode",
}


def trains_as_written(make: Callable[[], Script], config: StepConfig, near: float) -> Any:
    """Train with and without a recipe; return the script that had one, and its step."""
    written, script = make(), make()
    step = compiled(script, config)
    torch.manual_seed(1)
    without = [float(written.step(*written.arguments(index))) for index in range(STEPS)]
    torch.manual_seed(1)
    found = [float(step(*script.arguments(index))) for index in range(STEPS)]
    assert found == pytest.approx(without, abs=near)
    assert torch.allclose(weights(script), weights(written), atol=near)
    assert all(
        torch.allclose(one, other, atol=near)
        for one, other in zip(script.model.buffers(), written.model.buffers(), strict=True)
    )
    return script


@pytest.mark.parametrize("name", [*WHOLE, *ONE_BY_ONE])
def test_a_step_trains_as_written(
    name: str,
    runners: list[CompiledStep],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if name in DIFFERENTIATED:
        trace(monkeypatch, "aot_eager")
    script = trains_as_written(getattr(own_steps, name), COMPILED, 1e-4)
    (runner,) = runners
    if name in WHOLE:
        assert said(caplog) == []
        assert runner._whole is not None and runner._whole.graphs > 0
    else:
        (line,) = said(caplog)
        assert ONE_BY_ONE[name] in line and "compiles of it only" in line
        assert runner._whole is None
        assert all(one.compiled for one in runner._modules)
        parts = [part for one in runner._modules for part in one.compiled]
        assert all(part.graphs and not part.recompilations for part in parts)
    given = script.optimizer
    for optimizer in given.values() if isinstance(given, dict) else [given]:
        # A schedule of the script's own wraps the step.
        assert "step" not in vars(optimizer) or name == "schedule_in_the_step"
        assert not any(group.get("capturable") for group in optimizer.param_groups)
    assert all("_compiled_call_impl" not in vars(one) for one in script.model.modules())


@pytest.mark.parametrize("name", ["plain", "gan"])
def test_autocast_rounds_and_nothing_else(name: str) -> None:
    config = StepConfig(compile_mode="default", precision="bf16_autocast", optimizer="fused")
    trains_as_written(getattr(own_steps, name), config, 3e-2)


def test_autocast_without_torch_compile_reads_no_weight_from_before_an_update() -> None:
    trains_as_written(own_steps.gan, StepConfig(precision="bf16_autocast"), 3e-2)


def test_a_gradient_of_a_gradient_is_not_compiled(caplog: pytest.LogCaptureFixture) -> None:
    trains_as_written(own_steps.penalises_its_gradient, COMPILED, 1e-5)
    (line,) = said(caplog)
    assert "create_graph=True" in line


def test_a_recurrent_layer_is_not_compiled_and_one_line_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trains_as_written(own_steps.recurrent, COMPILED, 1e-5)
    (line,) = said(caplog)
    assert "compiles nothing of it" in line and "nn.LSTM" in line


class TestWhatAScriptDoesBetweenSteps:
    def test_freezes_and_unfreezes(self) -> None:
        def change(script: Script, index: int) -> None:
            script.model[0].requires_grad_(index >= 4)

        self.trains_alike(change)

    def test_adds_a_layer(self) -> None:
        def change(script: Script, index: int) -> None:
            if index == 3:
                torch.manual_seed(2)
                script.model.append(nn.Linear(4, 4))
                script.optimizer.add_param_group({"params": script.model[-1].parameters()})

        self.trains_alike(change)

    def test_casts(self) -> None:
        def change(script: Script, index: int) -> None:
            if index == 3:
                script.model.double()
                for state in script.optimizer.state.values():
                    for key in ("exp_avg", "exp_avg_sq"):
                        state[key] = state[key].double()

        self.trains_alike(change, dtype=True)

    def test_loads_clamps_and_evaluates(self) -> None:
        def change(script: Script, index: int) -> None:
            if index == 2:
                script.model.load_state_dict(
                    {k: v / 2 for k, v in script.model.state_dict().items()}
                )
            with torch.no_grad():
                for one in script.model.parameters():
                    one.clamp_(-0.3, 0.3)
            script.model.eval()
            loss_of(script.model, batch(0).to(script.model[0].weight.dtype)).backward()
            script.model.train().zero_grad()

        self.trains_alike(change)

    def test_makes_a_schedule(self) -> None:
        schedules: dict[int, Any] = {}

        def change(script: Script, index: int) -> None:
            if index == 2:
                made = torch.optim.lr_scheduler.ExponentialLR(script.optimizer, 0.5)
                schedules[id(script)] = made
            elif index > 2:
                schedules[id(script)].step()

        self.trains_alike(change)

    def trains_alike(self, change: Callable[[Script, int], None], dtype: bool = False) -> None:
        written, script = own_steps.plain(), own_steps.plain()
        step = compiled(script)
        for index in range(STEPS):
            losses = []
            for own, run in ((written, written.step), (script, step)):
                change(own, index)
                x = batch(index).to(own.model[0].weight.dtype) if dtype else batch(index)
                losses.append(float(run(x)))
            assert losses[0] == pytest.approx(losses[1], abs=1e-5)
        assert torch.allclose(weights(script), weights(written), atol=1e-4)


def ready(**options: Any) -> tuple[Script, Any]:
    """A script whose step has been called twice."""
    script = own_steps.plain()
    step = compiled(script, **options)
    step(batch(0))
    step(batch(1))
    return script, step


def test_another_thread_runs_the_step_as_written(caplog: pytest.LogCaptureFixture) -> None:
    written = own_steps.plain()
    for index in range(4):
        written.step(batch(index))
    script, step = ready()
    for index in (2, 3):
        thread = threading.Thread(target=step, args=(batch(index),))
        thread.start()
        thread.join()
    assert torch.allclose(weights(script), weights(written), atol=1e-5)
    (line,) = said(caplog)
    assert "another thread" in line


def test_one_first_call_is_watched_at_a_time(runners: list[CompiledStep]) -> None:
    """What is watched belongs to all threads: a second one would see the first one's modules."""
    scripts, written = [own_steps.plain() for _ in range(2)], own_steps.plain()
    call = nn.Module.__call__
    with ThreadPoolExecutor(1) as pool:
        second = compiled(scripts[1])
        others = [lambda: pool.submit(second, batch(0)).result()]
        inner = scripts[0].step

        def step(x: Tensor) -> Tensor:
            if others:
                others.pop()()
            return inner(x)

        first = compiled(Script(scripts[0].model, scripts[0].optimizer, step, tuple))
        for index in range(3):
            first(batch(index))
            written.step(batch(index))
            if index:
                pool.submit(second, batch(index)).result()
    assert nn.Module.__call__ is call
    assert all(runner.modules == (runner.script.model,) for runner in runners)
    for script in scripts:
        assert torch.allclose(weights(script), weights(written), atol=1e-5)


def test_without_gradients_the_step_runs_as_written(runners: list[CompiledStep]) -> None:
    model = own_steps.net()
    optimizer = own_steps.adamw(model)
    script = Script(model, optimizer, lambda x: model(x).sum(), own_steps.only_a_batch)
    step = compiled(script)
    with torch.no_grad():
        assert not step(batch(0)).requires_grad
    with torch.inference_mode():
        assert step(batch(0)).is_inference()
    assert runners[0]._seen is None


def test_inside_another_torch_compile_the_step_is_traced_as_written() -> None:
    model = own_steps.net()
    optimizer = own_steps.adamw(model)
    script = Script(model, optimizer, lambda x: loss_of(model, x), own_steps.only_a_batch)
    step = compiled(script)
    found = torch.compile(lambda x: step(x) * 2)(batch(0)).detach()
    assert float(found) == pytest.approx(2 * float(loss_of(model, batch(0)).detach()))


def test_an_error_of_the_step_leaves_nothing_behind() -> None:
    script, step = ready()
    with pytest.raises(RuntimeError):
        step(torch.ones(2, 3))
    assert "step" not in vars(script.optimizer)
    step(batch(2))


def test_a_recipe_is_not_in_what_is_copied_or_saved() -> None:
    script, _ = ready()
    model, optimizer = copy.deepcopy((script.model, script.optimizer))
    loss_of(model, batch(0)).backward()
    optimizer.step()
    assert not torch.equal(weights(Script(model, optimizer, print, tuple)), weights(script))


def test_wrapped_optimizers_are_unwrapped() -> None:
    class Wrapper(torch.optim.Optimizer):
        """As accelerate's: no constructor of torch's own runs."""

        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

    script = own_steps.plain()
    wrapped = [Wrapper(script.optimizer)]
    made = recipe_of(script, StepConfig(optimizer="fused"))
    step = ratchet.compile(script.step, script.model, wrapped, recipe=made)
    step(batch(0))
    assert not script.optimizer.param_groups[0]["fused"]
    step(batch(1))
    assert not script.optimizer.param_groups[0]["fused"]


def test_the_recipe_s_optimizer_must_be_among_the_script_s() -> None:
    script = own_steps.two_optimizers()
    made = recipe(COMPILED, model=signature_of(script.model), optimizer="AdamW")
    with pytest.raises(RecipeError, match="with AdamW, but the script trains with Descent"):
        ratchet.compile(script.step, script.model, [script.optimizer], recipe=made)


def test_what_the_config_holds_is_there_while_the_step_runs() -> None:
    seen: list[tuple[bool, bool]] = []
    script = own_steps.plain()
    hook = script.model[1].register_forward_hook(
        lambda *_: seen.append(
            (torch.backends.cuda.flash_sdp_enabled(), "forward" in vars(script.model[3]))
        )
    )
    config = StepConfig(attention="math", checkpointing="blocks:3", optimizer="fused")
    step = compiled(script, config)
    step(batch(0))
    step(batch(1))
    hook.remove()
    assert seen[0] == (True, False) and set(seen[1:]) == {(False, True)}
    assert "forward" not in vars(script.model[0]) and torch.backends.cuda.flash_sdp_enabled()


def test_checkpointing_needs_blocks() -> None:
    model = nn.Linear(8, 4)
    optimizer = own_steps.adamw(model)
    script = Script(model, optimizer, print, own_steps.only_a_batch)
    with pytest.raises(RecipeError, match="recomputes blocks"):
        compiled(script, StepConfig(checkpointing="blocks:1"))


def test_preallocate_is_told_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    script = own_steps.plain()
    compiled(script, StepConfig(preallocate=True))
    (line,) = said(caplog)
    assert "preallocate is not installed" in line
