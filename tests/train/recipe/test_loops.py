"""A recipe in the loops of transformers.Trainer, Lightning, accelerate, and in a plain one.

The loops are those of `examples/`. With a recipe, each must learn what it learns without.
"""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from own_recipes import recipe
from torch import nn

import ratchet
from ratchet.base.errors import RecipeError
from ratchet.train.recipe import Candidate, Recipe, apply, signature_of
from ratchet.train.recipe.installed import ReadyKernels
from ratchet.train.turn.compose import paste_lines
from ratchet.train.workloads.config import StepConfig

EXAMPLES = Path(__file__).parents[3] / "examples"
PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "training-loops.md"
FP32 = StepConfig(compile_mode="default", optimizer="kernel")
KERNEL = StepConfig(optimizer="kernel")
"""No compilation, for what a test asks after the curves."""
BF16 = msgspec.structs.replace(FP32, precision="bf16_autocast")
SAME = 1e-4
BF16_NOISE = 2e-2
STEPS, SAVED = 4, 2
pytestmark = [
    # torch's own: dynamo looks at a loss and hides this itself, where a warning is no error.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    # Lightning's and torch's about each other.
    pytest.mark.filterwarnings("ignore:::lightning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
]


@pytest.fixture(autouse=True)
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let torch trace and generate no code; the optimizer's kernel is its torch composite."""
    real = torch.compile

    def compile(function: Any, *, dynamic: bool | None = None, options: Any = None) -> Any:
        return real(function, dynamic=dynamic, backend="eager")

    monkeypatch.setattr(torch, "compile", compile)
    monkeypatch.setattr("ratchet.train.recipe.apply.ready_kernels", lambda *_, **__: ReadyKernels())
    monkeypatch.syspath_prepend(str(EXAMPLES))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch._dynamo.reset()


def recipe_of(model: nn.Module, config: StepConfig = FP32) -> Recipe:
    return recipe(config, model=signature_of(model))


class Trainers:
    """Runs of `examples/train_transformers.py`."""

    def __init__(self, folder: Path) -> None:
        import train_transformers

        self.example, self.folder = train_transformers, folder

    def losses(
        self,
        config: StepConfig | None,
        *,
        name: str = "out",
        resume: Path | None = None,
        **changes: Any,
    ) -> list[float]:
        """The losses of each step, and those of the evaluations."""
        trainer = self.trainer(config, name=name, **changes)
        trainer.train(resume_from_checkpoint=resume and str(resume))
        logs = trainer.state.log_history
        return [log[key] for log in logs for key in ("loss", "eval_loss") if key in log]

    def trainer(self, config: StepConfig | None, *, name: str = "out", **changes: Any) -> Any:
        from transformers import PrinterCallback

        settings = {"use_cpu": True, "logging_steps": 1, "max_steps": STEPS, **changes}
        trainer = self.example.make_trainer(str(self.folder / name), **settings)
        trainer.remove_callback(PrinterCallback)
        if config is not None:
            made = recipe_of(trainer.model, config)
            trainer.add_callback(ratchet.trainer_callback(recipe=made))
        return trainer


def test_a_trainer_learns_the_same_and_its_checkpoints_go_both_ways(tmp_path: Path) -> None:
    trainers = Trainers(tmp_path)
    saved = {"eval_strategy": "steps", "eval_steps": SAVED, "save_strategy": "steps"}
    saved["save_steps"] = SAVED
    plain = trainers.losses(None, name="plain", **saved)
    by_recipe = trainers.losses(FP32, name="recipe", **saved)
    assert len(plain) == STEPS + STEPS // SAVED
    assert by_recipe == pytest.approx(plain, abs=SAME)
    rest = plain[SAVED + 1 : STEPS + 1]
    checkpoint = f"checkpoint-{SAVED}"
    went_on = trainers.losses(None, resume=tmp_path / "recipe" / checkpoint)
    assert went_on[-len(rest) :] == pytest.approx(rest, abs=SAME)
    came_in = trainers.losses(KERNEL, resume=tmp_path / "plain" / checkpoint)
    assert came_in[-len(rest) :] == pytest.approx(rest, abs=SAME)


@pytest.mark.thorough
def test_a_trainer_in_bf16_learns_the_same_within_its_noise(tmp_path: Path) -> None:
    trainers = Trainers(tmp_path)
    plain = trainers.losses(None, bf16=True)
    assert trainers.losses(BF16, bf16=True) == pytest.approx(plain, abs=BF16_NOISE)


def test_a_trainer_s_own_torch_compile_is_refused_before_anything_is_changed(
    tmp_path: Path,
) -> None:
    trainer = Trainers(tmp_path).trainer(FP32)
    trainer.args.torch_compile = True
    with pytest.raises(RecipeError, match="leave torch_compile out"):
        trainer.train()
    assert trainer.model._compiled_call_impl is None
    assert "step" not in vars(trainer.optimizer.optimizer)


def test_a_trainer_that_trains_again_installs_once_and_in_a_new_model_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    hooks = apply._Hooks
    monkeypatch.setattr(hooks, "_install", lambda _, *given: asked.append(given))
    callback = pickle.loads(pickle.dumps(ratchet.trainer_callback(recipe=recipe())))
    arguments = SimpleNamespace(torch_compile=False)
    trained = [("first", "one"), ("first", "one"), ("second", "one"), ("second", "two")]
    for model, optimizer in trained:
        callback.on_train_begin(arguments, None, None, model=model, optimizer=optimizer)
    assert asked == [(model, None, optimizer) for model, optimizer in trained[1:]]


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_trainer_with_adapters_and_checkpointing_learns_the_same(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import Trainer

    trainers = Trainers(tmp_path)
    curves = []
    for config in (None, FP32):
        made = trainers.trainer(None, activation_checkpointing=True)
        torch.manual_seed(1)
        adapters = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        model = get_peft_model(made.model, adapters)
        callbacks = [ratchet.trainer_callback(recipe=recipe_of(model, config))] if config else []
        trainer = Trainer(model, made.args, train_dataset=made.train_dataset, callbacks=callbacks)
        trainer.train()
        curves.append([log["loss"] for log in trainer.state.log_history if "loss" in log])
    assert curves[1] == pytest.approx(curves[0], abs=SAME)


QUIET = {
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "max_steps": STEPS,
}


@pytest.fixture
def lightning() -> Any:
    import train_lightning

    return train_lightning


def saving(folder: Path) -> Any:
    from lightning.pytorch.callbacks import ModelCheckpoint

    return ModelCheckpoint(folder, every_n_train_steps=SAVED, save_top_k=-1, filename="{step}")


def test_lightning_learns_the_same_and_its_checkpoints_go_both_ways(
    lightning: Any, tmp_path: Path
) -> None:
    made = recipe_of(lightning.Lit())
    saved = {**QUIET, "enable_checkpointing": True}
    plain = lightning.train([saving(tmp_path / "plain")], **saved)
    callback = ratchet.lightning_callback(recipe=made)
    by_recipe = lightning.train([callback, saving(tmp_path / "recipe")], **saved)
    assert len(plain.losses) == 2 * STEPS
    assert by_recipe.losses == pytest.approx(plain.losses, abs=SAME)
    assert "training_step" not in vars(by_recipe)
    place = f"step={SAVED}.ckpt"
    rest = lightning.train([], tmp_path / "plain" / place, **QUIET).losses
    assert len(rest) == 2 * (STEPS - SAVED)
    went_on = lightning.train([], tmp_path / "recipe" / place, **QUIET).losses
    assert went_on == pytest.approx(rest, abs=SAME)
    callback = ratchet.lightning_callback(recipe=recipe_of(lightning.Lit(), KERNEL))
    came_in = lightning.train([callback], tmp_path / "plain" / place, **QUIET).losses
    assert came_in == pytest.approx(rest, abs=SAME)


@pytest.mark.thorough
def test_lightning_in_bf16_learns_the_same_within_its_noise(lightning: Any) -> None:
    settings = {**QUIET, "precision": "bf16-mixed"}
    made = recipe_of(lightning.Lit(), BF16)
    plain = lightning.train([], **settings).losses
    by_recipe = lightning.train([ratchet.lightning_callback(recipe=made)], **settings).losses
    assert by_recipe == pytest.approx(plain, abs=BF16_NOISE)


def test_lightning_that_the_script_has_not_imported_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in apply.LIGHTNING:
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(RecipeError, match="import lightning or pytorch_lightning before"):
        ratchet.lightning_callback(recipe=recipe())


@pytest.fixture
def accelerated() -> Iterator[Any]:
    import train_accelerate
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)
    yield train_accelerate
    AcceleratorState._reset_state(True)


def test_accelerate_learns_the_same_and_its_states_go_both_ways(
    accelerated: Any, tmp_path: Path
) -> None:
    made = recipe_of(accelerated.NextCharacter())
    cpu = {"steps": STEPS, "cpu": True}
    plain = accelerated.train(save=(SAVED, tmp_path / "plain"), **cpu)
    by_recipe = accelerated.train(made, save=(SAVED, tmp_path / "recipe"), **cpu)
    assert len(plain) == 2 * STEPS
    assert by_recipe == pytest.approx(plain, abs=SAME)
    rest = accelerated.train(resume=tmp_path / "plain", **cpu)
    went_on = accelerated.train(resume=tmp_path / "recipe", **cpu)
    assert went_on == pytest.approx(rest, abs=SAME)
    eager = recipe_of(accelerated.NextCharacter(), KERNEL)
    came_in = accelerated.train(eager, resume=tmp_path / "plain", **cpu)
    assert came_in == pytest.approx(rest, abs=SAME)


@pytest.mark.thorough
def test_accelerate_in_bf16_learns_the_same_within_its_noise(accelerated: Any) -> None:
    made = recipe_of(accelerated.NextCharacter(), BF16)
    settings = {"steps": STEPS, "cpu": True, "mixed_precision": "bf16"}
    plain = accelerated.train(**settings)
    assert accelerated.train(made, **settings) == pytest.approx(plain, abs=BF16_NOISE)


@pytest.mark.thorough
@pytest.mark.parametrize("script", ["two_ranks.py", "sharded_ranks.py"])
def test_two_ranks_learn_what_they_learn_without_a_recipe(script: str) -> None:
    """The model is wrapped in DistributedDataParallel, or sharded by FSDP2; both are compiled."""
    script = str(Path(__file__).parent / "apply_scripts" / script)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launch, script], capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("scale", "config"), [(0.0, FP32), (2.0**10, KERNEL)], ids=["fp32", "scaled bf16"]
)
def test_a_plain_loop_learns_the_same_and_its_checkpoints_go_both_ways(
    scale: float, config: StepConfig
) -> None:
    import train_loop

    def run(made: Recipe | None, state: Any = None, steps: int = STEPS) -> tuple[Any, list[float]]:
        one = train_loop.Run(scale)
        if state is not None:
            one.load_state(state)
        return one, train_loop.train(one, made, steps=steps)

    made = recipe_of(train_loop.NextCharacter(), config)
    allowed = BF16_NOISE if scale else SAME
    plain, losses = run(None)
    by_recipe, got = run(made)
    assert got == pytest.approx(losses, abs=allowed)
    assert by_recipe.evaluate() == pytest.approx(plain.evaluate(), abs=allowed), "the EMA"
    eager = recipe_of(train_loop.NextCharacter(), KERNEL)
    for first, second in ((eager, None), (None, eager)):
        half, _ = run(first, steps=SAVED)
        _, rest = run(second, half.state())
        assert rest == pytest.approx(losses[SAVED:], abs=allowed)


def updated(config: StepConfig | None, *, overflow: bool, wrapped: bool = False) -> torch.Tensor:
    """Weights after three steps of a GradScaler, of which one may overflow."""
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    inner: Any = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = inner
    if wrapped:
        from accelerate import Accelerator
        from accelerate.optimizer import AcceleratedOptimizer

        Accelerator(cpu=True)
        optimizer = AcceleratedOptimizer(inner, scaler=scaler)
    if config is not None:
        ratchet.compile(model, optimizer=optimizer, recipe=recipe_of(model, config))
    for index in range(3):
        loss = model(torch.ones(2, 8)).square().mean()
        scaler.scale(loss * float("inf") if overflow and index == 1 else loss).backward()
        if wrapped:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
    if wrapped and config is not None:
        assert inner.step.__func__ is not type(inner).step, "torch's own step ran"
    return model.weight.detach()


@pytest.mark.parametrize("overflow", [False, True])
def test_the_kernel_skips_what_a_gradscaler_finds_infinite(overflow: bool) -> None:
    """torch's fused AdamW unscales by itself, and a GradScaler leaves that to it."""
    plain, by_recipe = updated(None, overflow=overflow), updated(KERNEL, overflow=overflow)
    assert by_recipe.isfinite().all()
    torch.testing.assert_close(by_recipe, plain, atol=1e-5, rtol=0)


def test_accelerate_s_optimizer_with_a_gradscaler_runs_the_kernel(accelerated: Any) -> None:
    plain = updated(None, overflow=False, wrapped=True)
    by_recipe = updated(KERNEL, overflow=False, wrapped=True)
    torch.testing.assert_close(by_recipe, plain, atol=1e-5, rtol=0)


def test_the_lines_to_paste_into_a_trainer_s_script_are_its_callback() -> None:
    paste = paste_lines(Candidate(title="best", config=FP32), "recipe.json", of_trainer=True)
    line = 'trainer.add_callback(ratchet.trainer_callback(recipe="recipe.json"))'
    assert paste.apply == ["import ratchet", line]


BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def script_of(block: str, folder: Path) -> tuple[nn.Module, dict[str, Any]]:
    """The model of a block of the page, and all that its script has made before."""
    if "Trainer(" in block and "L.Trainer" not in block:
        made = Trainers(folder).trainer(None, max_steps=2)
        names = {"arguments": made.args, "dataset": made.train_dataset}
        return made.model, {"model": made.model, **names}
    import train_loop
    from torch.utils.data import DataLoader

    loader = DataLoader(train_loop.rows("bisect")[:16], batch_size=4)
    if "L.Trainer" in block:
        import train_lightning

        module = train_lightning.Lit()
        return module, {"module": module, "loader": loader}
    run = train_loop.Run()
    names = {"optimizer": run.optimizer, "schedule": run.schedule, "average": run.average}
    names |= {"loader": loader, "loss_of": train_loop.loss_of, "device": "cpu"}
    return run.model, {"model": run.model, "steps": [list(loader)] * 2, **names}


@pytest.mark.usefixtures("accelerated")
@pytest.mark.parametrize("place", range(len(BLOCKS)))
def test_a_loop_of_the_page_trains(
    place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = BLOCKS[place]
    monkeypatch.chdir(tmp_path)
    model, names = script_of(block, tmp_path)
    recipe_of(model, KERNEL).save(tmp_path / "recipe.json")
    before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    exec(compile(block, "training-loops.md", "exec"), names)
    if "def make_trainer" in block:
        names["make_trainer"]().train()
    assert not torch.equal(nn.utils.parameters_to_vector(model.parameters()), before)


@pytest.mark.parametrize(
    "name", ["train_transformers", "train_lightning", "train_accelerate", "train_loop"]
)
@pytest.mark.usefixtures("accelerated")
def test_each_example_is_a_script_with_a_recipe_or_without(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Eager, on the CPU: the curves are compared above."""
    import importlib

    example = importlib.import_module(name)
    model = {
        "train_transformers": lambda: example.make_trainer(use_cpu=True).model,
        "train_lightning": lambda: example.Lit(),
    }.get(name, lambda: example.NextCharacter())()
    monkeypatch.chdir(tmp_path)
    recipe_of(model, KERNEL).save(tmp_path / "recipe.json")
    example.main(["--steps", "2", "--recipe", "recipe.json"])
    assert "loss" in capsys.readouterr().out
